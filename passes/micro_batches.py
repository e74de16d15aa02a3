"""`kitsune-micro-batches`: rows that meet in sums alone are done some at a time, so that memory holds fewer of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import access_of, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import MICRO_BATCH
from kitsune_mlir.dialects.edges import Grid, Slice
from kitsune_mlir.dialects.iteration import Dim, Space
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import Target, find_target

from .base import Pass
from .batches.region import Body, NeedsAllRows, Region, region_of
from .normalize import run_upstream
from .reductions.associative import generic
from .remarks import remark
from .tile_program.tiling import Tiling, extract_slice

LEAST_BYTES = 256 << 20
"""Of rows between ops from which on they are done some at a time: what is less is no part of a GPU's memory."""

TILE_ROWS = 128
LEAST_TILES = 7
"""Tiles of rows that each multiprocessor has in a micro-batch, at least: some of them wait at the end of it, and others write
and read the sums of each. A step of a radiance field of 262,144 rows on H200s: 3.07 ms whole (beside it Inductor 4.60), 2.97
in 2 and 3.23 in 4 (4.83)."""

MOST = 8


@dataclass(frozen=True)
class MicroBatches(Pass):
    """Do rows that meet in sums alone some at a time: a network's gradients are sums over the rows of its batch.

    Whatever a row goes through by itself (layers forward and backward) lies in memory until the sums over rows (gradients of
    weights and biases, the loss) have read it. Where that is 256 MiB and more, ops and sums are repeated for each of a few
    micro-batches of neighbouring rows, and the sums' results are combined in their order, in the sums' own precision: f32 or
    wider. Buffers of one micro-batch then take the place of those of the one before. Each still gives every multiprocessor a
    few tiles. Rows that are needed before and after a sum over all of them, that others gather, or that are results stay as
    they are; `--remarks` says what needs all of them. Only for targets that are GPUs. Options: `target`; `batches`: as many,
    where that divides the rows, however few bytes there are and whatever the target (1: none).
    """

    name: ClassVar[str] = "kitsune-micro-batches"
    target: str = "host"
    batches: int = 0

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if self.batches == 1 or not (target.is_gpu or self.batches):
            return
        with module.context, ir.Location.unknown():
            functions = [op for op in walk(module) if op.name == "func.func" and len(op.regions[0].blocks) == 1]
            changed = [self._done_some_at_a_time(function, target) for function in functions]
        if any(changed):
            run_upstream(module, "canonicalize,cse")

    def _done_some_at_a_time(self, function: ir.Operation, target: Target) -> bool:
        """Split one region after the other; whether there was any."""
        turns = 0
        seen: set[ir.Value] = set()  # results of sums that were looked at
        while (found := self._next(function, seen, target)) is not None:
            body, region, batches = found
            _split(body, region, batches, turns)
            turns += batches
        return turns > 0

    def _next(self, function: ir.Operation, seen: set[ir.Value], target: Target) -> tuple[Body, Region, int] | None:
        """The next region to split, and in how many micro-batches."""
        least = 2 if self.batches else int(2 * LEAST_TILES * TILE_ROWS * target.workers)
        body: Body | None = None
        for n, op in enumerate([op.operation for op in function.regions[0].blocks[0].operations]):
            loops = _long_sums(op, least) if MICRO_BATCH not in op.attributes else []
            if not loops or op.results[0] in seen:
                continue
            seen.update(op.results)
            body = body or Body(function)
            for loop, rows in loops:
                try:
                    region = region_of(body, n, loop)
                except NeedsAllRows as problem:
                    remark(problem.op, f"{problem.why}: {rows} rows stay together")
                    continue
                seen.update(result for n in region.sums for result in body.ops[n].results)
                stored = region.stored(body)
                batches = self._choose(rows, stored, target)
                if batches > 1:
                    remark(op, f"{stored} bytes of {rows} rows: in {batches} micro-batches")
                    return body, region, batches
        return None

    def _choose(self, rows: int, stored: int, target: Target) -> int:
        """How many micro-batches; 1 where memory is no matter or there are too few rows."""
        if self.batches:
            return self.batches if stored and rows % self.batches == 0 else 1
        if stored < LEAST_BYTES:
            return 1
        most = min(MOST, int(rows / TILE_ROWS / target.workers / LEAST_TILES))
        return max((n for n in range(1, most + 1) if rows % (n * TILE_ROWS) == 0), default=1)


def _long_sums(op: ir.Operation, least: int) -> list[tuple[int, int]]:
    """The loops by which a generic reduces at least so many terms, and how many."""
    access = access_of(op) if is_generic(op) and "reduction" in iterator_kinds(op) else None
    if access is None:
        return []
    return [(loop, size) for loop, size in enumerate(access.sizes) if size >= least and not access.parallel[loop]]


class _Batch(Tiling):
    """Clones the ops of a region for the rows of a micro-batch."""

    def __init__(self, grid: Grid, start: int):
        super().__init__(grid, [arith.constant(ir.IndexType.get(), start)], self._rows)

    def _rows(self, value: ir.Value, slices: list[Slice]) -> ir.Value:
        if all(part == Slice(None) for part in slices):
            return value
        dropped = [dim for dim, part in enumerate(slices) if part.dropped]
        return extract_slice(value, *self.place(slices, shape_of(value)), dropped)


def _split(body: Body, region: Region, batches: int, turns: int) -> None:
    """Write the ops of a region once for each micro-batch, combine what the sums give, and put what reads that behind.

    Args:
        turns: micro-batches of other regions, which come before.
    """
    numbers = sorted(region.loops)
    ops = [body.ops[n] for n in numbers]
    rows = region.rows // batches
    space = Space(ops, [access_of(op) for op in ops], [Dim(region.rows, {i: region.loops[n] for i, n in enumerate(numbers)})])
    end, i64 = body.ops[numbers[-1] + 1], ir.IntegerType.get_signless(64)
    parts: dict[ir.Value, list[ir.Value]] = {result: [] for n in region.sums for result in body.ops[n].results}
    with ir.InsertionPoint(end):
        for number in range(batches):
            batch = _Batch(Grid(space, [rows]), number * rows)
            batch.run()
            for op in ops:
                batch.mapping[op.results[0]].owner.attributes[MICRO_BATCH] = ir.IntegerAttr.get(i64, turns + number)
            for result, found in parts.items():
                found.append(batch.mapping[result])
        for n, sum_ in region.sums.items():
            for result, combiner in zip(body.ops[n].results, sum_.combiners, strict=True):
                with body.ops[n].location:
                    result.replace_all_uses_with(_combined(parts[result], combiner))
    for n in body.depending(set(region.sums)):
        if n <= numbers[-1]:
            body.ops[n].move_before(end)
    for op in reversed(ops):
        if not any(list(result.uses) for result in op.results):
            op.erase()


def _combined(parts: list[ir.Value], combiner: str) -> ir.Value:
    """What the results of all micro-batches are together, in their order."""
    shape, element = shape_of(parts[0]), ir.ShapedType(parts[0].type).element_type
    maps = [ir.AffineMap.get_identity(len(shape))] * (len(parts) + 1)
    op, block = generic(parts, [tensor.empty(shape, element)], maps, ["parallel"] * len(shape))
    with ir.InsertionPoint(block):
        total, *others = list(block.arguments)[:-1]
        for other in others:
            total = ir.Operation.create(combiner, [element], [total, other]).results[0]
        ir.Operation.create("linalg.yield", [], [total])
    return op.results[0]
