"""What all kinds of chains share: reading the body, and element-wise work on fragments."""
