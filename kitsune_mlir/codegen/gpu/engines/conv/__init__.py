"""Convolutions with channels innermost: implicit GEMM, and depthwise ones."""
