"""The engines, a folder each; `registry` is the list of them."""
