"""What `kitsune-split-reductions` is made of."""
