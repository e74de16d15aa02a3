"""Bulk copies that no engine uses: reductions, spans brought to L2, and copies between the blocks of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import SHARED, shared_address
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32
from kitsune_mlir.codegen.gpu.sm90.dsmem import remote
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot
from kitsune_mlir.codegen.gpu.sm90.tma import innermost_first

__all__ = ["drain", "prefetch_span", "push_span", "reduce_span", "reduce_tile"]

_REDUCTIONS = ("add", "min", "max")


def reduce_tile(tensor_map: Value, source: Value, coordinates: Sequence[Value | int], kind: str = "add") -> None:
    """Combine a box in shared memory with the tensor ("add", "min" or "max"), atomically by element; bf16, f16, f32, i32, ...

    Coordinates as in `store_tile`. Inline PTX: the intrinsic has another name in LLVM 22.

    Raises:
        ValueError: another `kind`.
    """
    if kind not in _REDUCTIONS:
        raise ValueError(f"a bulk reduction is one of {', '.join(_REDUCTIONS)}, not {kind}")
    places = innermost_first(coordinates, written=True)
    listed = ", ".join(f"${index + 2}" for index in range(len(places)))
    inline_ptx(
        f"cp.reduce.async.bulk.tensor.{len(places)}d.global.shared::cta.{kind}.tile.bulk_group [$0, {{{listed}}}], [$1];",
        [tensor_map, shared_address(source), *places],
        memory=True,
    )


def prefetch_span(source: Value, bytes: Value | int) -> None:
    """Bring `bytes` (a multiple of 16) of global memory into L2."""
    nvvm.cp_async_bulk_prefetch(source.ir, i32(bytes).ir)


def reduce_span(target: Value, source: Value, bytes: Value | int, dtype: str) -> None:
    """Add `bytes` (a multiple of 16) of shared memory to global memory, atomically by element of `dtype`.

    `dtype` is f32, f64, bf16, f16, i32 or i64. 16-bit floats do not flush denormals.

    Raises:
        ValueError: another type.
    """
    types = {"f32": "f32", "f64": "f64", "bf16": "noftz.bf16", "f16": "noftz.f16", "i32": "u32", "i64": "u64"}
    if dtype not in types:
        raise ValueError(f"no bulk reduction adds {dtype}")
    inline_ptx(
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{types[dtype]} [$0], [$1], $2;",
        [target, shared_address(source), i32(bytes)],
        memory=True,
    )


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


def drain(ring: Ring, slot: Slot) -> None:
    """The producer waits until every slot has been released.

    A block of a cluster does this before it exits: others may still arrive on its barriers.
    """
    for _ in range(ring.stages):
        ring.empty(slot.stage).wait(slot.parity)
        slot = ring.next(slot)
