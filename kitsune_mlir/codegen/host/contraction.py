"""Reductions with a contiguous parallel dimension: products with the weights' columns side by side, convolutions along a row of
pixels, sums over columns, pooling.

The parallel dimension `lane` is vectorised and the results stay in registers while the reduction runs: a register tile of
`rows` counters of a second dimension times `columns` vectors. An operand that moves along only one of the two is loaded once
for all of the other; that is what makes a product fast. Where the vectorised operand is not contiguous along `lane` (weights
stored as [n, k]), each panel of columns is packed first (`packing.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch_mlir import ir

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.chains import Chain, chained, chains_of, rounded
from kitsune_mlir.codegen.host.combiner import Combiner, combine, combiner_of, identity
from kitsune_mlir.codegen.host.elementwise import access_lanes, lane_of
from kitsune_mlir.codegen.host.lanes import BodyEmitter, computing_bytes
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Access, Nest
from kitsune_mlir.codegen.host.packing import LOCAL, RELATIVE, Panel, plan_panel

__all__ = ["Contraction", "plan_contraction"]

Point = ops.Point
Chunks = list[tuple[int, int]]  # (first lane relative to the block's, lanes) of each vector


class Contraction:
    """The schedule: blocks of `columns` vectors along `lane`, tiles of `rows` along `row` (None: no such dimension)."""

    def __init__(
        self,
        nest: Nest,
        lane: int,
        emitter: BodyEmitter,
        lanes: int,
        row: int | None,
        tile: tuple[int, int],
        registers: int,
    ):
        self.nest, self.lane, self.emitter, self.lanes, self.row = nest, lane, emitter, lanes, row
        self.rows, self.columns = tile
        self.panel: Panel | None = plan_panel(nest, lane, row, lanes, self.columns)
        found = [combiner_of(nest, o) for o in range(len(nest.outputs))]
        self.combiners: list[Combiner] = [c for c in found if c is not None] if None not in found else []
        self.in_parts = self.panel is not None and self.panel.part < nest.extents[self.panel.reductions[0]]
        self.registers = registers

    @property
    def outer(self) -> list[int]:
        """The dimensions of the loops outside, outermost first."""
        return [d for d in self.nest.parallel if d not in (self.lane, self.row) and self.nest.extents[d] > 1]

    def emit(self, nest: Nest, point: Point, dimensions: list[int] | None = None) -> None:
        """Emit the loops over `dimensions` (all outer ones if None); `nest` has views, `point` the counters outside."""
        dimensions = self.outer if dimensions is None else dimensions
        inside = []  # a panel serves all of them
        if self.panel is not None:
            inside = [d for d in dimensions if nest.inputs[self.panel.operand].coefficients[d] == 0]
        outside = [d for d in dimensions if d not in inside]
        ops.nested(outside, nest.extents, point, lambda there: self._columns(nest, there, inside))

    def _columns(self, nest: Nest, point: Point, inside: list[int]) -> None:
        """Emit the loop over blocks of columns, and the block that is left at the end."""
        extent, block = nest.extents[self.lane], self.lanes * self.columns
        whole = extent // block * block

        def columns(counter, carried):
            chunks = [(i * self.lanes, self.lanes) for i in range(self.columns)]
            self._block(nest, {**point, self.lane: counter}, chunks, inside)
            return carried

        ops.loop(0, whole, block, [], columns)
        left = extent - whole
        if left:
            chunks = [(first, min(self.lanes, left - first)) for first in range(0, left, self.lanes)]
            self._block(nest, {**point, self.lane: whole}, chunks, inside)

    def _block(self, nest: Nest, point: Point, chunks: Chunks, inside: list[int]) -> None:
        """Emit all rows of a block of columns; where these are packed, part by part of the sum."""
        panel = self.panel
        if panel is None:
            self._rows(nest, point, chunks)
            return
        first, length = panel.reductions[0], panel.part

        def part(begin: ops.Index, extent: int) -> None:
            extents = tuple(extent if d == first else e for d, e in enumerate(nest.extents))
            here, shorter = {**point, first: begin}, replace(nest, extents=extents)
            packed = panel.pack(shorter, here, chunks)
            ops.nested(inside, nest.extents, here, lambda there: self._rows(packed, there, chunks))

        def step(counter, carried):
            part(counter, length)
            return carried

        extent = nest.extents[first]
        whole = extent // length * length
        ops.loop(0, whole, length, [], step)
        if extent > whole:
            part(whole, extent - whole)

    def _rows(self, nest: Nest, point: Point, chunks: Chunks) -> None:
        """Emit the loop over register tiles, and the tile that is left at the end."""
        if self.row is None:
            self._tile(nest, [point], chunks)
            return
        row = self.row
        extent = nest.extents[row]
        whole = extent // self.rows * self.rows

        def tile(counter, carried):
            self._tile(nest, [{**point, row: ops.add(counter, r)} for r in range(self.rows)], chunks)
            return carried

        ops.loop(0, whole, self.rows, [], tile)
        if extent > whole:
            self._tile(nest, [{**point, row: whole + r} for r in range(extent - whole)], chunks)

    def _tile(self, nest: Nest, places: list[Point], chunks: Chunks) -> None:
        """One register tile: load the results so far, run the reductions, store.

        Parts of a sum begin at nothing and are added then: what rounding loses grows with the length of a part.
        """
        slots = [
            (o, self._shift(p, offset), lanes) for o in range(len(nest.outputs)) for p in places for offset, lanes in chunks
        ]
        combiners = [self.combiners[o] for o, _, _ in slots] if self.combiners else []
        first = [identity(c.name, nest.outputs[o].element, lanes) for c, (o, _, lanes) in zip(combiners, slots, strict=False)]
        terms = math.prod(nest.extents[d] for d in nest.reductions)
        chain = chains_of(combiners, first, terms, self.registers) if self.panel is None else None
        stored = [nest.outputs[o].at(here, lanes) for o, here, lanes in slots]
        apart = self.in_parts and bool(combiners)
        sums = first if apart else stored
        if chain is not None:
            sums = [rounded(value, total.type) for value, total in zip(sums, chain.totals, strict=True)]
        sums = self._reduce(nest, places, chunks, sorted(nest.reductions), sums, chain)
        if chain is not None:
            sums = [rounded(value, one.type) for value, one in zip(sums, first, strict=True)]
        sums = [ops.broadcast(value, lanes) for value, (_, _, lanes) in zip(sums, slots, strict=True)]
        if apart:
            sums = [combine(*each) for each in zip(combiners, stored, sums, strict=True)]
        for (o, here, lanes), value in zip(slots, sums, strict=True):
            nest.outputs[o].put(value, here, lanes)

    def _reduce(
        self,
        nest: Nest,
        places: list[Point],
        chunks: Chunks,
        dimensions: list[int],
        sums: list[ir.Value],
        chain: Chain | None,
    ) -> list[ir.Value]:
        if not dimensions:
            return self._step(nest, places, chunks, sums)
        dimension, *rest = dimensions
        packed_first = self.panel is not None and dimension == self.panel.reductions[0]

        def body(counter, carried, chain):
            local = {LOCAL: counter} if packed_first else {}
            here = [{**p, dimension: ops.add(p.get(dimension, 0), counter), **local} for p in places]
            return self._reduce(nest, here, chunks, rest, carried, chain)

        return chained(nest.extents[dimension], 1, math.prod(nest.extents[d] for d in rest), chain, sums, body)

    def _step(self, nest: Nest, places: list[Point], chunks: Chunks, sums: list[ir.Value]) -> list[ir.Value]:
        """One iteration of all reductions for a register tile."""
        arguments = list(nest.block.arguments)
        results: list[ir.Value | None] = [None] * len(sums)
        inputs = list(zip(arguments, nest.inputs, strict=False))
        loaded: dict[tuple[int, int | None, int | None], ir.Value] = {}
        for p, place in enumerate(places):
            uniform = {}
            for i, (argument, access) in enumerate(inputs):
                if access.coefficients[self.lane] == 0:
                    key = (i, p if self._moves(access) else None, None)
                    if key not in loaded:
                        loaded[key] = access.at(place)
                    uniform[argument] = loaded[key]
            uniform = self.emitter.emit(uniform, lambda d, at=place: at.get(d, 0), 1, only_uniform=True)
            for c, (offset, lanes) in enumerate(chunks):
                here = self._shift(place, offset)
                environment = dict(uniform)
                for i, (argument, access) in enumerate(inputs):
                    if access.coefficients[self.lane] != 0:
                        key = (i, p if self._moves(access) else None, c)
                        if key not in loaded:
                            packed = self.panel is not None and i == self.panel.operand
                            loaded[key] = access.at(here, lanes) if packed else access_lanes(access, here, self.lane, lanes)
                        environment[argument] = loaded[key]
                slots = [(o * len(places) + p) * len(chunks) + c for o in range(len(nest.outputs))]
                for o, slot in enumerate(slots):
                    environment[arguments[len(nest.inputs) + o]] = sums[slot]
                made = self.emitter.emit(environment, lambda d, at=here: at.get(d, 0), lanes)
                for value, slot in zip(self.emitter.yielded, slots, strict=True):
                    results[slot] = ops.broadcast(made.get(value, value), lanes)
        return [r for r in results if r is not None]

    def _moves(self, access: Access) -> bool:
        return self.row is not None and access.coefficients[self.row] != 0

    def _shift(self, place: Point, offset: int) -> Point:
        return {**place, self.lane: ops.add(place[self.lane], offset), RELATIVE: offset}


def plan_contraction(nest: Nest, machine: Machine) -> Contraction | None:
    """The schedule of a nest with reductions whose results are contiguous along a parallel dimension; None if there is none."""
    lane = lane_of(nest)
    if not nest.reductions or lane is None:
        return None
    arguments = list(nest.block.arguments)
    varying = [a for a, x in zip(arguments, nest.accesses, strict=True) if x.coefficients[lane] != 0]
    emitter = BodyEmitter(nest.block, [*varying, *arguments[len(nest.inputs) :]], lane)
    if not emitter.possible:
        return None
    lanes = max(1, machine.lanes(computing_bytes(nest.block)))
    memory = [a for a in nest.inputs if a.memref is not None]
    shared = any(a.coefficients[lane] == 0 and any(a.coefficients) for a in memory)  # serves several columns
    row = _row_of(nest, lane, memory)
    wide = machine.registers >= 32
    columns = 2 if row is not None or shared else 4
    columns = max(1, min(columns, -(-nest.extents[lane] // lanes)))
    rows = 1 if row is None else min(nest.extents[row], 8 if wide else 5)
    if len(nest.outputs) > 1:
        columns, rows = 1, min(rows, 4)
    return Contraction(nest, lane, emitter, lanes, row, (rows, columns), machine.registers)


def _row_of(nest: Nest, lane: int, memory: list[Access]) -> int | None:
    """The dimension to tile besides `lane`: one along which a vectorised operand stays, so its vectors serve several rows."""
    vectors = [a for a in memory if a.coefficients[lane] != 0]
    fitting = [
        d
        for d in nest.parallel
        if d != lane and nest.extents[d] > 1 and any(a.coefficients[d] == 0 and any(a.coefficients) for a in vectors)
    ]
    return fitting[-1] if fitting else None
