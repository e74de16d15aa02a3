"""What `kitsune-materialize` is made of."""
