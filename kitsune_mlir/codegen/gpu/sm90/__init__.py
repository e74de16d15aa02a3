"""Hopper's units, one hardware idea a file: mbarriers, tensor maps, TMA, wgmma, mma.sync, clusters, dependent launch."""
