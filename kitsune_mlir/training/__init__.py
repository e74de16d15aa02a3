"""Whole training steps, traced and compiled as one graph."""
