"""What `kitsune-fuse-attention` writes."""
