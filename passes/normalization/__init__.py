"""What `kitsune-normalize` is made of."""
