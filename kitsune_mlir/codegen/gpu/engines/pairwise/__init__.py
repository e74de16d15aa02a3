"""Reductions of all pairs of rows that are no products: distances, additive attention."""
