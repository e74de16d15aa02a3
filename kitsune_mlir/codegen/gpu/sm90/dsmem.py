"""The blocks of a thread-block cluster: addresses in each other's shared memory.

A block names another's memory by a pointer to the same place in its own, and the other's rank in the cluster. Before the first
access all blocks have to have started, and none may end while others still reach for it: `mbarrier.sync_cluster` does both.
(CUDA C++ Programming Guide, "Distributed Shared Memory".)
"""

from __future__ import annotations

from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32, wrap

__all__ = ["remote"]

CLUSTER = "!llvm.ptr<7>"
"""Pointers into the shared memory of any block of the cluster."""


def remote(pointer: Value, rank: Value | int) -> Value:
    """Where `pointer` (shared memory of this block) is in the block of rank `rank`."""
    return wrap(nvvm.mapa(as_type(CLUSTER), pointer.ir, i32(rank).ir))
