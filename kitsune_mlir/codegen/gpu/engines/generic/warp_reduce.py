"""Reductions shared by the lanes of a warp: each lane takes every n-th step, and shuffles combine the parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, scf

from kitsune_mlir.codegen.gpu.emit.control_flow import shuffle_xor
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import cast, wrap
from kitsune_mlir.codegen.gpu.engines.generic.effects import Memory, accesses
from kitsune_mlir.codegen.gpu.engines.generic.loop_rewrites import trip_counts
from kitsune_mlir.dialects.verify import walk

__all__ = ["choose_lanes", "split_reductions"]

_COMBINERS = frozenset(
    "arith." + name
    for name in (
        *("addf", "mulf", "maximumf", "minimumf", "maxnumf", "minnumf"),
        *("addi", "muli", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui"),
    )
)
_MOST = 32
_SHORTEST = 8
"""Fewer steps than this are not worth a shuffle."""


def _combiner(loop: ir.Operation, number: int) -> ir.Operation | None:
    """The operation that folds a step into carried value `number` of an scf.for; None if that is no plain reduction."""
    block = loop.regions[0].blocks[0]
    carried = block.arguments[number + 1]
    value = list(block.operations)[-1].operands[number]
    uses = list(carried.uses)
    if len(uses) != 1 or isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return None
    op = value.owner.operation
    if uses[0].owner.operation != op or len(list(value.uses)) != 1:
        return None
    if op.name in _COMBINERS:
        return op
    if op.name == "scf.for":
        inner = ir.OpResult(value).result_number
        if list(op.operands)[3 + inner] == carried:
            return _combiner(op, inner)
    return None


def _reductions(block: ir.Block) -> list[ir.Operation]:
    """The loops of a block, without writes, all of whose carried values are reductions."""
    found = []
    for op in [op.operation for op in block.operations]:
        if op.name != "scf.for" or not op.results or any(access.writes for access in accesses(op)):
            continue
        if all(_combiner(op, number) is not None for number in range(len(op.results))):
            found.append(op)
    return found


def choose_lanes(op: ir.Operation, total: int, threads: int, memory: Memory) -> int:
    """How many lanes share one of the `total` iterations of an scf.parallel: 1, or a power of two up to 32."""
    block = op.regions[0].blocks[0]
    loops = [loop for loop in _reductions(block) if (trip_counts(loop)[0] or 0) >= _SHORTEST]
    if not loops or not total:
        return 1
    found = accesses(op)
    if any(access.kind in ("unknown", "atomic") for access in found):
        return 1
    # What one lane writes, another would read without a barrier between.
    if any(a.writes and b.reads and memory.conflict(a, b) for a in found for b in found):
        return 1
    wanted = max(1, 2 * threads // total)
    if _strides_apart(loops, block):
        wanted = max(wanted, _SHORTEST)
    steps = max(trip_counts(loop)[0] or 1 for loop in loops)
    lanes = 1 << int(math.log2(max(1, min(wanted, steps, _MOST, threads))))
    return lanes


def _strides_apart(loops: Sequence[ir.Operation], block: ir.Block) -> bool:
    """Whether neighbouring steps of the reductions read neighbouring elements, and neighbouring iterations do not."""
    innermost = block.arguments[len(block.arguments) - 1]
    steps = [loop.regions[0].blocks[0].arguments[0] for loop in loops]
    last = [access.indices[-1] for loop in loops for access in accesses(loop) if access.indices]
    return any(index in steps for index in last) and innermost not in last


def split_reductions(block: ir.Block, lane: ir.Value, lanes: int, writer: ir.Value) -> None:
    """Deal the steps of a block's reductions out to `lanes` lanes, and let one of them make the block's writes.

    Args:
        lane: index of the thread in its aligned group of `lanes` threads, which run the block together (index).
        writer: i1, whether this thread makes the writes.
    """
    inner = [op.operation for op in block.operations]
    for store in [op for top in inner for op in (top, *walk(top)) if op.name == "memref.store"]:
        with ir.InsertionPoint(store), store.location:
            guard = scf.IfOp(writer)
            with ir.InsertionPoint(guard.then_block):
                end = scf.YieldOp([])
        store.move_before(end.operation)
    for loop in _reductions(block):
        if (trip_counts(loop)[0] or 0) >= _SHORTEST:
            _split(loop, lane, lanes)


def _split(loop: ir.Operation, lane: ir.Value, lanes: int) -> None:
    """Let lane n of a group take the steps n, n + lanes, ... of a reduction, and combine the lanes' parts."""
    lower, _, step, *starts = list(loop.operands)
    combiners = [combiner for number in range(len(starts)) if (combiner := _combiner(loop, number)) is not None]
    with ir.InsertionPoint(loop), loop.location:
        loop.operands[0] = arith.addi(lower, arith.muli(lane, step))
        loop.operands[2] = arith.muli(step, arith.constant(ir.IndexType.get(), lanes))
        for number, combiner in enumerate(combiners):
            loop.operands[3 + number] = arith.constant(starts[number].type, _neutral(combiner.name, starts[number].type))
    following = ir.InsertionPoint(_next(loop))
    for result, start, combiner in zip(loop.results, starts, combiners, strict=True):
        uses = [(use.owner, use.operand_number) for use in result.uses]
        with following, loop.location:
            part: ir.Value = result
            for mask in (1 << bit for bit in range(lanes.bit_length() - 1)):
                part = _combine(combiner, part, _shuffled(part, mask))
            total = _combine(combiner, start, part)
        for owner, number in uses:
            owner.operands[number] = total


def _next(op: ir.Operation) -> ir.Operation:
    operations = [other.operation for other in op.block.operations]
    return operations[operations.index(op) + 1]


def _combine(combiner: ir.Operation, a: ir.Value, b: ir.Value) -> ir.Value:
    return clone(combiner, [wrap(a), wrap(b)], [a.type])[0].ir


def _shuffled(value: ir.Value, mask: int) -> ir.Value:
    """`value` of the lane whose number differs in the bits of `mask`."""
    if isinstance(value.type, ir.IndexType):
        wide = cast(shuffle_xor(wrap(arith.index_cast(ir.IntegerType.get_signless(64), value)), mask), "i64")
        return arith.index_cast(value.type, wide.ir)
    return shuffle_xor(wrap(value), mask).ir


def _neutral(name: str, type: ir.Type) -> ir.Attribute:
    """The value that a combiner leaves others unchanged by."""
    if isinstance(type, ir.FloatType):
        extremes = {"arith.maximumf": -math.inf, "arith.maxnumf": -math.inf, "arith.minimumf": math.inf}
        others = {"arith.minnumf": math.inf, "arith.mulf": 1.0}
        # Minus zero, because 0 + -0 would turn a sum of minus zeros positive.
        return ir.FloatAttr.get(type, (extremes | others).get(name, -0.0))
    bits = 64 if isinstance(type, ir.IndexType) else type.width
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    values = {"arith.maxsi": lowest, "arith.minsi": highest, "arith.minui": -1, "arith.andi": -1, "arith.muli": 1}
    value = values.get(name, 0)
    if bits == 1:  # -1 and the extremes of one bit
        value = {"arith.andi": True, "arith.minui": True, "arith.muli": True, "arith.maxsi": True}.get(name, False)
    return ir.IntegerAttr.get(type, value)
