"""Element-wise steps after products, evaluated in registers by pulling: from what is stored through the steps that make it to
loads and the products' sums.

What is pulled at once is a *place*: a few elements of a tile that a thread works on together, one for each of its accumulators.
Which these are, an engine says; so there is one evaluator for a thread's single element, its pairs of columns, and its pixels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.elementwise import Body, Step, is_constant
from kitsune_mlir.codegen.gpu.contraction.scalar_body import NO_APPROXIMATIONS, constant_of, emit_body, is_zero
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["Evaluator", "Sides"]

Place = TypeVar("Place")
Sides = tuple[Any, ...]
"""Of each wide dimension of a tensor, the side of the tile that it lies along (`contraction.elementwise.Body`)."""


class Evaluator(Generic[Place]):
    """Evaluates the tensors of one tile. Subclasses say what a place is, where its sums are and how it is read.

    Args:
        body: the steps.
        tile: the tile.
        products: the operations whose sums the steps start from.
        approximations: functions that are exact enough for what is stored (`emit.approx_math.approximations_for`).

    Attributes:
        known: elements by what they are of: those of a step's result by its value, of what is loaded by its tensor and sides;
            and by what of the place tells them from others.
    """

    def __init__(
        self,
        body: Body,
        tile: TileContext,
        products: Iterable[ir.Operation],
        approximations: Mapping[str, Callable[..., Value]] = NO_APPROXIMATIONS,
    ):
        self.body, self.tile, self.approximations = body, tile, approximations
        self.products = {product.results[0]: product for product in products}
        self.known: dict[Hashable, list[Value]] = {}

    def where(self, sides: Sides, place: Place) -> Hashable:
        """What of a place tells its elements of a tensor along `sides` from those of other places."""
        raise NotImplementedError

    def distinct(self, sides: Sides) -> Sequence[int]:
        """For each element of a place, the number of the first that is the same in a tensor along `sides`."""
        raise NotImplementedError

    def sums(self, product: ir.Operation, place: Place) -> list[Value]:
        """A product's sums."""
        raise NotImplementedError

    def read(self, load: Load, sides: Sides, place: Place) -> list[Value]:
        """The place's elements of a tensor in memory."""
        raise NotImplementedError

    def index(self, side: Any, place: Place, element: int) -> Value:
        """Where an element of a place is along a side of the tile, i32; 0 along no side."""
        raise NotImplementedError

    def extract(self, step: Step, place: Place, element: int, op: ir.Operation, indices: Sequence[ir.Value]) -> Value:
        """What an element's body reads by index (`tensor.extract`)."""
        raise NotImplementedError

    def evaluate(self, value: ir.Value, place: Place) -> list[Value]:
        """The place's elements of a computed tensor."""
        sides = self.body.value_sides(value)
        where = self.where(sides, place)
        if (value, where) not in self.known:
            if value in self.products:
                self.known[value, where] = self._product(self.products[value], place)
            else:
                step = self.body.steps[value]
                results = self._step(step, self.distinct(sides), place)
                self.known.update(((result, where), found) for result, found in zip(step.op.results, results, strict=True))
        return self.known[value, where]

    def read_ahead(self, place: Place, wanted: Callable[[Load, Sides], bool]) -> None:
        """Read now what the steps will read of those tensors in memory that are `wanted`: no sum is needed for that."""
        ops = [(product, (2,)) for product in self.products.values()]
        ops += [(step.op, step.operands) for step in self.body.steps.values() if step.kind in ("map", "alias")]
        for op, numbers in ops:
            for number in numbers:
                load = self.body.task.load_of(op.operands[number])
                if load is not None and wanted(load, self.body.operand_sides(op, number)):
                    self._operand(op, number, place)

    def _product(self, op: ir.Operation, place: Place) -> list[Value]:
        start, sums = self._operand(op, 2, place), self.sums(op, place)
        if all(is_zero(value.ir) for value in start):
            return sums
        return [total + begin for total, begin in zip(sums, start, strict=True)]

    def _step(self, step: Step, distinct: Sequence[int], place: Place) -> list[list[Value]]:
        """The place's elements of each result of a step."""
        operands = {number: self._operand(step.op, number, place) for number in step.operands}
        if step.kind in ("alias", "fill"):
            return [operands[0]]
        yielded: list[list[Value]] = []
        for element, first in enumerate(distinct):
            if first < element:
                yielded.append(yielded[first])
                continue
            elements = [operands[n][element] if n in operands else None for n in range(len(step.op.operands))]
            extract = functools.partial(self.extract, step, place, element)

            def index(loop: int, element: int = element) -> Value:
                return self.index(self.body.loop_side(step.op, loop), place, element)

            yielded.append(emit_body(step.op, elements, self.tile, index, extract, self.approximations))
        return [list(found) for found in zip(*yielded, strict=True)]

    def _operand(self, op: ir.Operation, number: int, place: Place) -> list[Value]:
        """The place's elements of an operand of a step or product."""
        value = op.operands[number]
        if is_constant(value):
            return [constant_of(value)] * len(self.distinct(()))
        load = self.body.task.load_of(value)
        if load is None:
            return self.evaluate(value, place)
        sides = self.body.operand_sides(op, number)
        key = (load.tensor, sides, self.where(sides, place))
        if key not in self.known:
            self.known[key] = self.read(load, sides, place)
        return self.known[key]
