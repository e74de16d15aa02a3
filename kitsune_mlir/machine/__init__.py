"""The machines that are compiled for: what they have, and what work costs on them."""
