"""Kernels written by hand: fragments, matrices and rings for tests of the primitives."""
