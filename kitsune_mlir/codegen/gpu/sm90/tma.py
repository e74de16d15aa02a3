"""Bulk copies by the tensor memory accelerator: 1-D spans and tiles of 1 to 5 dimensions, both ways.

One thread starts a copy. A load reports its bytes to an mbarrier. Stores join this thread's bulk group:
`commit`, then `wait`. Shared memory that threads wrote needs `mbarrier.fence_async_shared` (by each writer, then a
barrier) before a store reads it. Coordinates are elements, outermost first, as in `TensorMap`. A tile may stick out of
the tensor at the end of any dimension; before its start (negative coordinates) only a load may: a store or reduction
there ends with "illegal instruction" (CUDA C++ Programming Guide, "Tensor Memory Access", reading and writing out of
bounds: "the top left corner cannot have any negative indices"; seen on an H200).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.memory import Cache
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i16, i32, i64, wrap
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier

__all__ = [
    "commit",
    "innermost_first",
    "load_span",
    "load_tile",
    "prefetch_map",
    "prefetch_tile",
    "store_span",
    "store_tile",
    "wait",
]


def _cluster_pointer(pointer: Value) -> Value:
    """The intrinsic takes the destination in the cluster's address space (7)."""
    return wrap(llvm.addrspacecast(as_type("!llvm.ptr<7>"), pointer.ir))


def _hint(cache: Cache) -> dict:
    return {} if cache is Cache.DEFAULT else {"l2_cache_hint": i64(cache.value).ir}


def innermost_first(coordinates: Sequence[Value | int], written: bool = False) -> list[Value]:
    """Coordinates as instructions take them; `written`: none may be negative."""
    if not 1 <= len(coordinates) <= 5:
        raise ValueError(f"a tile has 1 to 5 coordinates, not {len(coordinates)}")
    if written and any(isinstance(coordinate, int) and coordinate < 0 for coordinate in coordinates):
        raise ValueError(f"TMA writes no tile that starts before the tensor: coordinates {list(map(str, coordinates))}")
    return [i32(coordinate) for coordinate in reversed(coordinates)]


def load_tile(
    target: Value,
    tensor_map: Value,
    barrier: Barrier,
    coordinates: Sequence[Value | int],
    multicast: Value | int | None = None,
    cache: Cache = Cache.DEFAULT,
) -> None:
    """Load the box at `coordinates` (they may be negative) into shared memory; `TensorMap.box_bytes` arrive on `barrier`.

    Args:
        target: aligned to 128 bytes; to 1024 with the 128-byte swizzle, 512 with 64, 256 with 32.
        multicast: i16 mask of the cluster's blocks that all get the box, at the same offset, each on its own barrier.
    """
    nvvm.cp_async_bulk_tensor_shared_cluster_global(
        _cluster_pointer(target).ir,
        tensor_map.ir,
        [coordinate.ir for coordinate in innermost_first(coordinates)],
        barrier.pointer.ir,
        [],
        multicast_mask=None if multicast is None else i16(multicast).ir,
        **_hint(cache),
    )


def store_tile(tensor_map: Value, source: Value, coordinates: Sequence[Value | int], cache: Cache = Cache.DEFAULT) -> None:
    """Store a box from shared memory at `coordinates`, none of them negative; what lies outside of the tensor is dropped."""
    places = [coordinate.ir for coordinate in innermost_first(coordinates, written=True)]
    nvvm.cp_async_bulk_tensor_global_shared_cta(tensor_map.ir, source.ir, places, **_hint(cache))


def prefetch_map(tensor_map: Value) -> None:
    """Fetch the descriptor itself ahead of its first use."""
    nvvm.prefetch(tensor_map.ir, tensormap=True)


def prefetch_tile(tensor_map: Value, coordinates: Sequence[Value | int]) -> None:
    """Bring the box at `coordinates` into L2; nothing waits for it."""
    places = [coordinate.ir for coordinate in innermost_first(coordinates)]
    nvvm.cp_async_bulk_tensor_prefetch(tensor_map.ir, places, [])


def load_span(target: Value, source: Value, bytes: Value | int, barrier: Barrier, cache: Cache = Cache.DEFAULT) -> None:
    """Copy `bytes` (a multiple of 16) from global to shared memory, both aligned to 16; they arrive on `barrier`."""
    nvvm.cp_async_bulk_shared_cluster_global(
        _cluster_pointer(target).ir, source.ir, barrier.pointer.ir, i32(bytes).ir, **_hint(cache)
    )


def store_span(target: Value, source: Value, bytes: Value | int) -> None:
    """Copy `bytes` (a multiple of 16) from shared to global memory, both aligned to 16."""
    nvvm.cp_async_bulk_global_shared_cta(target.ir, source.ir, i32(bytes).ir)


def commit() -> None:
    """Close the group of this thread's bulk stores and reductions since the last commit."""
    nvvm.cp_async_bulk_commit_group()


def wait(pending: int, read: bool = False) -> None:
    """Wait until at most `pending` of this thread's groups are unfinished.

    With `read` only until their source in shared memory may be overwritten. Before other blocks are told of the data: without.
    """
    nvvm.cp_async_bulk_wait_group(pending, read=True if read else None)
