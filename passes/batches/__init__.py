"""What `kitsune-micro-batches` is made of."""
