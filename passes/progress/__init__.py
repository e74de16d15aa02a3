"""What `kitsune-check-progress` is made of."""
