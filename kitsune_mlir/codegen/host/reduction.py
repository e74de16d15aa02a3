"""Reductions along contiguous data: sums of rows, softmax denominators, and products of a few rows (dot products).

The vectorised dimension is reduced over: each lane accumulates its share, and the lanes are combined at the end. That changes
the order of a sum (it gets more accurate, not less), so the combining operation must be one whose order is free.
"""

from __future__ import annotations

import math
from itertools import product

from torch_mlir import ir
from torch_mlir.dialects import vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.chains import Chain, chained, chains_of, rounded
from kitsune_mlir.codegen.host.combiner import Combiner, combine, combiner_of, identity
from kitsune_mlir.codegen.host.elementwise import access_lanes
from kitsune_mlir.codegen.host.lanes import BodyEmitter, computing_bytes
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Nest

__all__ = ["RowReduction", "plan_reduction"]

Point = ops.Point


class RowReduction:
    """The schedule: `tile` results at a time (dimension, how many), `unroll` vectors along `lane` for each."""

    def __init__(
        self,
        nest: Nest,
        lane: int,
        emitter: BodyEmitter,
        lanes: int,
        tile: list[tuple[int, int]],
        unroll: int,
        registers: int,
    ):
        self.nest, self.lane, self.emitter, self.lanes, self.tile, self.unroll = nest, lane, emitter, lanes, tile, unroll
        self.combiners = [c for c in (combiner_of(nest, i) for i in range(len(nest.outputs))) if c is not None]
        self.registers = registers

    @property
    def outer(self) -> list[int]:
        """The dimensions of the loops outside, outermost first."""
        tiled = {d for d, _ in self.tile}
        return [d for d in self.nest.parallel if d not in tiled and self.nest.extents[d] > 1]

    def emit(self, nest: Nest, point: Point, dimensions: list[int] | None = None) -> None:
        """Emit the loops over `dimensions` (all outer ones if None); `nest` has views, `point` the counters outside."""
        dimensions = self.outer if dimensions is None else dimensions
        ops.nested(dimensions, nest.extents, point, lambda inside: self._tiles(nest, inside, self.tile, []))

    def _tiles(self, nest: Nest, point: Point, tile: list[tuple[int, int]], done: list[tuple[int, list[int]]]) -> None:
        """Emit the loops over tiles, then the tiles themselves: whole ones, and what is left at the end of a dimension."""
        if not tile:
            self._tile(nest, point, done)
            return
        (dimension, count), *rest = tile
        extent = nest.extents[dimension]
        whole = extent // count * count

        def body(counter, carried):
            self._tiles(nest, {**point, dimension: counter}, rest, [*done, (dimension, list(range(count)))])
            return carried

        ops.loop(0, whole, count, [], body)
        if extent > whole:
            self._tiles(nest, {**point, dimension: whole}, rest, [*done, (dimension, list(range(extent - whole)))])

    def _tile(self, nest: Nest, point: Point, tile: list[tuple[int, list[int]]]) -> None:
        places = []
        for offsets in product(*(steps for _, steps in tile)):
            shifted = {d: ops.add(point[d], o) for (d, _), o in zip(tile, offsets, strict=True)}
            places.append({**point, **shifted})
        extent = nest.extents[self.lane]
        unroll = max(1, min(self.unroll, extent // self.lanes))
        others = [d for d in sorted(nest.reductions) if d != self.lane]
        combiners = [c for c in self.combiners for _ in range(len(places) * unroll)]
        neutral = {c: identity(c.name, c.results[0].type, self.lanes) for c in self.combiners}
        first = [neutral[c] for c in combiners]
        terms = -(-extent // (self.lanes * unroll)) * math.prod(nest.extents[d] for d in others)
        chain = chains_of(combiners, first, terms, self.registers)
        sums = self._reduce(nest, places, others, chain.totals if chain else first, unroll, chain)
        for o, (output, combiner) in enumerate(zip(nest.outputs, self.combiners, strict=True)):
            for p, place in enumerate(places):
                begin = (o * len(places) + p) * unroll
                total = horizontal(combiner, sums[begin : begin + unroll])
                before = output.at(place)
                output.put(rounded(combine(combiner, rounded(before, total.type), total), before.type), place, 1)

    def _reduce(
        self,
        nest: Nest,
        places: list[Point],
        others: list[int],
        sums: list[ir.Value],
        unroll: int,
        chain: Chain | None,
    ) -> list[ir.Value]:
        extent = nest.extents[self.lane]
        block = self.lanes * unroll
        if others:
            dimension, *rest = others
            terms = -(-extent // block) * math.prod(nest.extents[d] for d in rest)

            def body(counter, carried, chain):
                return self._reduce(nest, [{**p, dimension: counter} for p in places], rest, carried, unroll, chain)

            return chained(nest.extents[dimension], 1, terms, chain, sums, body)
        whole = extent // block * block

        def step(counter, carried, _):
            return self._accumulate(nest, places, counter, [self.lanes] * unroll, carried, unroll)

        sums = chained(whole, block, 1, chain, sums, step)
        rest, counts = extent - whole, []
        while rest > 0:
            counts.append(min(rest, self.lanes))
            rest -= self.lanes
        if not counts:
            return sums
        if chain is None:
            return self._accumulate(nest, places, whole, counts, sums, unroll)
        return chain.added(sums, self._accumulate(nest, places, whole, counts, chain.first, unroll))

    def _accumulate(
        self, nest: Nest, places: list[Point], start: ops.Index, counts: list[int], sums: list[ir.Value], unroll: int
    ) -> list[ir.Value]:
        """Add the vectors that begin at `start` (of `counts[u]` lanes each) to the sums."""
        sums = list(sums)
        inputs = list(zip(list(nest.block.arguments)[: len(nest.inputs)], nest.inputs, strict=True))
        for u, lanes in enumerate(counts):
            position = ops.add(start, u * self.lanes)
            loaded: dict[tuple[ops.Index, ...], ir.Value] = {}
            for p, place in enumerate(places):
                here = {**place, self.lane: position}
                environment = {}
                for i, (argument, access) in enumerate(inputs):
                    key = (i, *(here[d] for d in self._moves(access)))
                    if key not in loaded:
                        varying = access.coefficients[self.lane] != 0
                        loaded[key] = access_lanes(access, here, self.lane, lanes) if varying else access.at(here)
                    environment[argument] = loaded[key]
                made = self.emitter.emit(environment, lambda d, at=here: at.get(d, 0), lanes)
                for o, combiner in enumerate(self.combiners):
                    slot = (o * len(places) + p) * unroll + u
                    term = made.get(combiner.term, combiner.term)
                    sums[slot] = combine(combiner, sums[slot], _padded(combiner, ops.broadcast(term, lanes), self.lanes))
        return sums

    def _moves(self, access) -> list[int]:
        return [d for d, _ in self.tile if access.coefficients[d] != 0]


def plan_reduction(nest: Nest, machine: Machine) -> RowReduction | None:
    """The schedule of a nest that reduces along a dimension in which its inputs are contiguous; None if there is none."""
    combiners = [combiner_of(nest, i) for i in range(len(nest.outputs))]
    if not combiners or any(c is None for c in combiners):
        return None
    fitting = [d for d in nest.reductions if nest.extents[d] > 1 and all(a.coefficients[d] in (0, 1) for a in nest.inputs)]
    fitting = [d for d in fitting if any(a.coefficients[d] == 1 for a in nest.inputs)]
    if not fitting:
        return None
    lane = max(fitting)
    arguments = list(nest.block.arguments)
    varying = [a for a, x in zip(arguments, nest.accesses, strict=True) if x.coefficients[lane] != 0]
    emitter = BodyEmitter(nest.block, [*varying, *arguments[len(nest.inputs) :]], lane)
    used = {c.op for c in combiners if c is not None}
    if not emitter.possible:
        return None
    emitter.operations = [op for op in emitter.operations if op not in used]
    lanes = max(2, machine.lanes(computing_bytes(nest.block)))
    tile = _tile_of(nest, machine)
    results = 1
    for _, count in tile:
        results *= count
    unroll = max(1, 4 // results) if len(nest.outputs) == 1 else 1
    return RowReduction(nest, lane, emitter, lanes, tile, unroll, machine.registers)


def _tile_of(nest: Nest, machine: Machine) -> list[tuple[int, int]]:
    """Results computed at a time, so that an operand loaded once serves several: a dimension for each side of a product."""
    sides = [a for a in nest.inputs if a.memref is not None and any(a.coefficients)]
    if len(sides) != 2:
        return []
    wide = machine.registers >= 32
    tile = []
    for here, there in ((0, 1), (1, 0)):
        mine, other = sides[here].coefficients, sides[there].coefficients
        own = [d for d in nest.parallel if nest.extents[d] > 1 and mine[d] and not other[d]]
        if own:
            tile.append((own[-1], min(nest.extents[own[-1]], 4 if wide or here else 2)))
    return tile


def _padded(combiner: Combiner, value: ir.Value, lanes: int) -> ir.Value:
    """A short vector (or a scalar) at the beginning of one with `lanes` neutral elements."""
    neutral = identity(combiner.name, combiner.results[0].type, lanes)
    if not ops.is_vector(value):
        return vector.insert(value, neutral, [], [0])
    if ir.VectorType(value.type).shape[0] == lanes:
        return value
    return vector.insert_strided_slice(value, neutral, [0], [1])


def horizontal(combiner: Combiner, vectors: list[ir.Value]) -> ir.Value:
    """Combine vectors, and then the lanes of the one vector, to a scalar."""
    while len(vectors) > 1:
        pairs = [combine(combiner, a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + (vectors[-1:] if len(vectors) % 2 else [])
    value = vectors[0]
    lanes = ir.VectorType(value.type).shape[0]
    while lanes > 1:
        lanes //= 2
        low = vector.shuffle(value, value, list(range(lanes)))
        high = vector.shuffle(value, value, list(range(lanes, 2 * lanes)))
        value = combine(combiner, low, high)
    return vector.extract(value, [], [0])
