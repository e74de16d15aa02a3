"""Who runs stages: one launch or several, all multiprocessors or shares of them."""
