"""Which tile comes when, and which blocks of keys it reads."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, cast, i32, i64, maximum, minimum, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.attention.match import Masked
from kitsune_mlir.codegen.gpu.engines.attention.plan import AttentionPlan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.dialects.attention import Step
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine import rates

__all__ = ["KvSchedule", "block_count", "causal_limit", "costs_of", "last_row", "part_of", "tile_costs", "tile_order"]

FAR = 1 << 24
"""Lengths that are read are taken to be no more, so that sums of some are small."""
MOST_TILES = 16384
"""A longer table of tiles would not fit constant memory; so many tiles are even enough without one."""

_OPERATIONS = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minui": min,
    "arith.minsi": min,
    "arith.maxui": max,
    "arith.maxsi": max,
}


class KvSchedule:
    """The order in which a task's tiles are done: as they are numbered, unless some cost more than others.

    Waits are for earlier tasks only, so the order inside a task is free. It is a table in constant memory.
    """

    def __init__(self, task: TaskContext, costs: Sequence[float] | None, workers: int):
        self.task = task
        self.symbol: str | None = None
        if costs is None or len(costs) > MOST_TILES or task.end is not None:  # tiles that are left out are the last ones
            return
        order = tile_order(costs, workers)
        listed = ", ".join(map(str, order))
        # Named by its contents: the layers of a model share one table.
        self.symbol = f"tile_order_{hashlib.sha256(listed.encode()).hexdigest()[:24]}"
        if self.symbol in task.kernel.names:
            return
        task.kernel.names.add(self.symbol)
        text = (
            f"llvm.mlir.global internal constant @{self.symbol}(dense<[{listed}]> : tensor<{len(order)}xi16>) "
            f"{{addr_space = 4 : i32}} : !llvm.array<{len(order)} x i16>"
        )
        ir.InsertionPoint.at_block_begin(task.kernel.module_block).insert(ir.Operation.parse(text))

    def tile(self, tile: TileContext) -> TileContext:
        """The tile to do in the place of `tile`, with its offsets computed."""
        if self.symbol is not None:
            table = wrap(llvm.mlir_addressof(as_type("!llvm.ptr<4>"), self.symbol))
            address = wrap(llvm.ptrtoint(as_type("i64"), table.ir)) + i64(tile.number) * 2
            place = llvm.inttoptr(table.type, address.ir)
            tile = TileContext(self.task, cast(wrap(llvm.load(as_type("i16"), place)), "i32", signed=False))
        tile.resolve()
        return tile


def tile_order(costs: Sequence[float], blocks: int) -> list[int]:
    """An order of tiles of unequal cost for `blocks` blocks that take every `blocks`-th of them.

    The most expensive come first; in each round those blocks that have had least so far get the most expensive ones.
    """
    load = [0.0] * blocks
    taken: list[list[int]] = [[] for _ in range(blocks)]
    falling = sorted(range(len(costs)), key=lambda tile: -costs[tile])
    for start in range(0, len(costs), blocks):
        idle = sorted(range(blocks), key=lambda block: load[block])
        for tile, block in zip(falling[start : start + blocks], idle, strict=False):
            load[block] += costs[tile]
            taken[block].append(tile)
    taken.sort(key=len, reverse=True)  # the last, incomplete round belongs to the first blocks
    return [mine[round_] for round_ in range(len(taken[0])) for mine in taken if round_ < len(mine)]


def tile_costs(plan: AttentionPlan, task: TaskView) -> list[float] | None:
    """Blocks of keys of each tile in the order of their numbers, with `rates.ATTENTION_OVERHEAD`; None if all have the same."""
    steps = [step for step in plan.pattern.attention.steps if step.kind == "causal" and not step.loads]
    if not steps or len(plan.pattern.parts) > 1:
        return None

    def blocks(offsets: Sequence[int]) -> int:
        limits = [last_row(step) + offset for step, offset in zip(steps, offsets, strict=True)]
        return min([plan.blocks, *(max(limit, 0) // plan.block + 1 for limit in limits)])

    return costs_of(task, steps, blocks)


def costs_of(task: TaskView, steps: Sequence[Step], blocks: Callable[[Sequence[int]], int]) -> list[float] | None:
    """`blocks` of each tile with `rates.ATTENTION_OVERHEAD`, given the offset of each of the causal `steps` there; None if all
    have the same."""
    if task.tiles > MOST_TILES:
        return None
    costs = []
    for coordinates in itertools.product(*(range(extent) for extent in task.grid)):
        known = dict(zip(task.coordinates, coordinates, strict=True))
        offsets = [s.constant + sum(_evaluate(value, known) * factor for value, factor in s.terms) for s in steps]
        costs.append(blocks(offsets) + rates.ATTENTION_OVERHEAD)
    return costs if len(set(costs)) > 1 else None


def _evaluate(value: ir.Value, known: Mapping[ir.Value, int]) -> int:
    """An index computed from a tile's coordinates."""
    found = dict(known)
    for each in postorder([value], lambda v: [] if v in known else v.owner.operands):
        if each in found:
            continue
        op = each.owner
        operands = [found[operand] for operand in op.operands]
        if op.name == "arith.constant":
            found[each] = ir.IntegerAttr(op.attributes["value"]).value
        else:
            found[each] = operands[0] if len(operands) == 1 else _OPERATIONS[op.name](*operands)
    return found[value]


def last_row(step: Step) -> int:
    """The last index along a causal step's row."""
    last = 0
    for factor in step.row:
        last = last * factor.size + factor.size - 1
    return last


def causal_limit(step: Step, row: Value | int, tile: TileContext, loads: Mapping[tuple, Masked] | None = None) -> Value:
    """The last key that row `row` (its index along the step's row) attends to; may be negative.

    Args:
        loads: the pattern's, of steps that read integers.
    """
    limit = i32(row) + step.constant if isinstance(row, Value) else i32(row + step.constant)
    for value, factor in step.terms:
        limit = limit + tile.index(value) * factor
    for node, factor in step.loads:
        assert loads is not None
        window = loads[node].window
        number = cast(load_elements(window.start(tile), window.dtype, 1, constant=window.constant)[0], "i64", signed=True)
        limit = limit + cast(minimum(maximum(number, -FAR), FAR), "i32") * factor
    return limit


def block_count(plan: AttentionPlan, tile: TileContext) -> Value:
    """Blocks of keys, from the first, that some row of the tile attends to; at least one."""
    blocks = i32(plan.blocks)
    if len(plan.pattern.parts) > 1:
        return blocks
    for step in plan.pattern.attention.steps:
        if step.kind == "causal":
            limit = causal_limit(step, last_row(step), tile, plan.pattern.loads)
            blocks = minimum(blocks, maximum(limit, 0) // plan.block + 1)
    return blocks


def part_of(plan: AttentionPlan, block: Value) -> list[tuple[int, Value]]:
    """For each part of the keys, in the plan's order: its number, and the block's number within it; a block belongs to the last
    one for which that is not negative."""
    found, first = [], 0
    for number in plan.order:
        found.append((number, block - first))
        first += plan.part_blocks[number]
    return found
