"""Element-wise nests: every dimension is parallel, one is vectorised."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.lanes import BodyEmitter, computing_bytes
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.nest import Access, Nest

__all__ = ["Elementwise", "plan_elementwise"]

Point = ops.Point


class Elementwise:
    """The schedule: vectors along `lane`, one after the other; what is the same in all lanes is computed before that loop.

    Without a `lane` there is nothing to vectorise: a shared loop outside has the only dimension.
    """

    def __init__(self, nest: Nest, lane: int | None, emitter: BodyEmitter, lanes: int):
        self.nest, self.lane, self.emitter, self.lanes = nest, lane, emitter, lanes

    @property
    def outer(self) -> list[int]:
        """The dimensions of the loops outside the vectors, outermost first."""
        return [d for d in range(len(self.nest.extents)) if d != self.lane and self.nest.extents[d] > 1]

    def emit(self, nest: Nest, point: Point, dimensions: list[int] | None = None) -> None:
        """Emit the loops over `dimensions` (all outer ones if None); `nest` has views, `point` the counters outside."""
        dimensions = self.outer if dimensions is None else dimensions
        ops.nested(dimensions, nest.extents, point, lambda inside: self._row(nest, inside))

    def _row(self, nest: Nest, point: Point) -> None:
        arguments = list(nest.block.arguments)
        accesses = nest.accesses
        used = [any(True for _ in a.uses) for a in arguments]
        before = {}
        for argument, access, needed in zip(arguments, accesses, used, strict=True):
            if needed and (self.lane is None or access.coefficients[self.lane] == 0):
                before[argument] = access.at(point)

        def index(dimension: int) -> ops.Index:
            return point.get(dimension, 0)

        uniform = self.emitter.emit(before, index, 1, only_uniform=True)

        if self.lane is None:
            for output, value in zip(nest.outputs, self.emitter.yielded, strict=True):
                output.put(uniform.get(value, value), point, 1)
            return
        lane = self.lane

        def vectors(start: ops.Index, lanes: int) -> None:
            here = {**point, lane: start}
            environment = dict(uniform)
            for argument, access, needed in zip(arguments, accesses, used, strict=True):
                if needed and argument not in environment:
                    environment[argument] = access_lanes(access, here, lane, lanes)
            made = self.emitter.emit(environment, lambda d: here.get(d, 0), lanes)
            for output, value in zip(nest.outputs, self.emitter.yielded, strict=True):
                output.put(ops.broadcast(made.get(value, value), lanes), here, lanes)

        extent = nest.extents[lane]
        whole = extent // self.lanes * self.lanes

        def step(counter, carried):
            vectors(counter, self.lanes)
            return carried

        ops.loop(0, whole, self.lanes, [], step)
        if extent > whole:
            vectors(whole, extent - whole)


def access_lanes(access: Access, point: Point, lane: int, lanes: int) -> ir.Value:
    """Load an operand along the vectorised dimension: consecutive elements, or one load a lane where it is strided."""
    stride = access.coefficients[lane]
    if stride == 1 or lanes == 1:
        return access.at(point, lanes)
    found = [access.at({**point, lane: ops.add(point[lane], i)}) for i in range(lanes)]
    return vector.from_elements(ops.vector_type(access.element, lanes), found)


def plan_elementwise(nest: Nest, machine: Machine, outside: int | None = None) -> Elementwise | None:
    """The schedule of an all-parallel nest; None if it is not one, or cannot be vectorised.

    Args:
        outside: a dimension that a loop outside runs over: it is not vectorised, and may be the only one there is.
    """
    if nest.reductions or not nest.extents:
        return None
    lane = lane_of(nest, outside)
    alone = outside is not None and all(e == 1 for d, e in enumerate(nest.extents) if d != outside)
    if lane is None and not alone:
        return None
    varying = []
    if lane is not None:
        varying = [a for a, x in zip(nest.block.arguments, nest.accesses, strict=True) if x.coefficients[lane] != 0]
    emitter = BodyEmitter(nest.block, varying, lane)
    if not emitter.possible:
        return None
    return Elementwise(nest, lane, emitter, max(1, machine.lanes(computing_bytes(nest.block))))


def lane_of(nest: Nest, outside: int | None = None) -> int | None:
    """The parallel dimension along which every output is contiguous; None if there is none but `outside`."""
    candidates = [d for d in nest.parallel if d != outside and nest.extents[d] > 1]
    fitting = [d for d in candidates if all(o.coefficients[d] == 1 for o in nest.outputs)]
    return fitting[-1] if fitting else None
