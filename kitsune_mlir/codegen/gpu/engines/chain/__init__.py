"""Fused chains of GEMMs with row-local work between them (CUTLASS: back-to-back GEMM)."""
