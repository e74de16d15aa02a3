"""What `kitsune-fuse-pairs` looks at beyond the products."""
