"""The blocks of a thread-block cluster: addresses in each other's shared memory, and bulk copies between them.

A block names another's memory by a pointer to the same place in its own, and the other's rank in the cluster. Before the first
access all blocks have to have started, and none may end while others still reach for it: `barriers.sync_cluster` does both.
(CUDA C++ Programming Guide, "Distributed Shared Memory".)
"""

from __future__ import annotations

from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.memory import SHARED
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32, wrap
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier

__all__ = ["push_span", "remote"]

CLUSTER = "!llvm.ptr<7>"
"""Pointers into the shared memory of any block of the cluster."""


def remote(pointer: Value, rank: Value | int) -> Value:
    """Where `pointer` (shared memory of this block) is in the block of rank `rank`."""
    return wrap(nvvm.mapa(as_type(CLUSTER), pointer.ir, i32(rank).ir))


def push_span(target: Value, source: Value, bytes: Value | int, barrier: Barrier, rank: Value | int) -> None:
    """Copy `bytes` (a multiple of 16) of this block's shared memory to another's; they arrive on the other's `barrier`.

    One thread starts it. What threads wrote to the source needs `fence_async_shared` and a barrier before. The source may be
    overwritten when the other block says that the data has arrived: nothing is reported here.

    Args:
        target, barrier: given as this block's own, at the same place.
    """
    # The operation takes the barrier as a pointer of the block's own space; the instruction wants the other block's address.
    there = llvm.ptrtoint(as_type("i32"), remote(barrier.pointer, rank).ir)
    reached = llvm.inttoptr(as_type(SHARED), there)
    nvvm.cp_async_bulk_shared_cluster_shared_cta(remote(target, rank).ir, source.ir, reached, i32(bytes).ir)
