"""Element-wise nests that read across memory: what lies along one dimension is wanted along another.

A permutation of dimensions, or images that become rows of channels. Squares of as many vectors as a vector has lanes are loaded
as they lie, transposed in registers and stored as they shall lie: each line of memory is touched once, not once an element.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.elementwise import access_lanes, plan_elementwise
from kitsune_mlir.codegen.host.lanes import BodyEmitter
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Access, Nest
from kitsune_mlir.codegen.host.packing import filled_row, has_bytes, transpose

__all__ = ["Transposed", "plan_transposed"]

LEAST = 4
"""Iterations of either dimension of the squares; fewer are loaded element by element."""

Point = ops.Point


class Transposed:
    """The schedule: squares of `lane`, along which results are contiguous, and `across`, along which inputs are."""

    def __init__(self, nest: Nest, lane: int, across: int, emitter: BodyEmitter, lanes: int):
        self.nest, self.lane, self.across, self.emitter, self.lanes = nest, lane, across, emitter, lanes

    def emit(self, nest: Nest, point: Point) -> None:
        """Emit the loops; `nest` has views, `point` the counters outside."""
        squares = (self.across, self.lane)
        outer = [d for d in nest.parallel if d not in squares and nest.extents[d] > 1]
        ops.nested(outer, nest.extents, point, lambda inside: self._blocks(nest, inside, squares, []))

    def _blocks(self, nest: Nest, point: Point, dimensions: tuple[int, ...], counts: list[int]) -> None:
        """Emit a loop over blocks of each of `dimensions`, and what is left at its end; `counts` are those outside."""
        if not dimensions:
            self._square(nest, point, *counts)
            return
        first, *rest = dimensions
        extent = nest.extents[first]
        whole = extent // self.lanes * self.lanes

        def block(counter: ops.Index, carried: list[ir.Value]) -> list[ir.Value]:
            self._blocks(nest, {**point, first: counter}, tuple(rest), [*counts, self.lanes])
            return carried

        ops.loop(0, whole, self.lanes, [], block)
        if extent > whole:
            self._blocks(nest, {**point, first: whole}, tuple(rest), [*counts, extent - whole])

    def _square(self, nest: Nest, point: Point, count: int, lanes: int) -> None:
        """`count` vectors of `lanes` results."""
        inputs = [(a, x) for a, x in zip(nest.block.arguments, nest.accesses, strict=True) if any(True for _ in a.uses)]
        turned = {a: self._columns(x, point, count, lanes) for a, x in inputs if _lies_across(x, self.lane, self.across)}
        for c in range(count):
            here = {**point, self.across: ops.add(point[self.across], c)}
            environment = {}
            for argument, access in inputs:
                if argument in turned:
                    environment[argument] = turned[argument][c]
                elif access.coefficients[self.lane] == 0:
                    environment[argument] = access.at(here)
                else:
                    environment[argument] = access_lanes(access, here, self.lane, lanes)
            made = self.emitter.emit(environment, lambda d, at=here: at.get(d, 0), lanes)
            for output, value in zip(nest.outputs, self.emitter.yielded, strict=True):
                output.put(ops.broadcast(made.get(value, value), lanes), here, lanes)

    def _columns(self, access: Access, point: Point, count: int, lanes: int) -> list[ir.Value]:
        """The input's vectors along `lane`, one for each step of `across`."""
        rows = []
        for r in range(lanes):
            here = {**point, self.lane: ops.add(point[self.lane], r)}
            rows.append(filled_row(access, ops.linear(access.coefficients, access.constant, here), count, self.lanes))
        columns = transpose(rows + [rows[-1]] * (self.lanes - lanes))[:count]
        if lanes == self.lanes:
            return columns
        if lanes == 1:
            return [vector.extract(column, [], [0]) for column in columns]
        type_ = ops.vector_type(access.element, lanes)
        return [vector.extract_strided_slice(type_, column, [0], [lanes], [1]) for column in columns]


def _lies_across(access: Access, lane: int, across: int) -> bool:
    return access.memref is not None and access.coefficients[lane] > 1 and access.coefficients[across] == 1


def plan_transposed(nest: Nest, machine: Machine) -> Transposed | None:
    """The schedule of an all-parallel nest with an input that is contiguous along another dimension than the results; None of
    others."""
    plain = plan_elementwise(nest, machine)
    if plain is None or plain.lane is None or plain.lanes < LEAST or nest.extents[plain.lane] < LEAST:
        return None
    lane = plain.lane
    used = [x for a, x in zip(nest.block.arguments, nest.accesses, strict=True) if any(True for _ in a.uses)]
    for across in reversed(nest.parallel):
        turned = [x for x in used if _lies_across(x, lane, across)]
        if across != lane and nest.extents[across] >= LEAST and turned and all(has_bytes(x.element) for x in turned):
            return Transposed(nest, lane, across, plain.emitter, plain.lanes)
    return None
