"""Products on tensor cores (wgmma): a persistent, warp-specialised GEMM."""
