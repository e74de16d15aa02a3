"""What `kitsune-form-stages` is made of: which ops become one stage."""
