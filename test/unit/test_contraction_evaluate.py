"""What follows a product, evaluated at places of a tile: what is read and computed once, and what for each place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.evaluate import Evaluator, Sides
from kitsune_mlir.codegen.gpu.contraction.match import Pattern, match
from kitsune_mlir.codegen.gpu.emit.value import Value, constant
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import Load
from test.gpu.mma_text import Layer, program
from test.programs.kept import kept

MODULES: list[ir.Module] = []
"""What values refer to lives as long as its module."""
Place = tuple[int, int]
"""A row and the first of two columns."""


class Pairs(Evaluator[Place]):
    """Notes what is read; every element in memory is 2, every sum 1."""

    def __init__(self, pattern: Pattern):
        super().__init__(pattern, None, [product.op for product in pattern.products])  # type: ignore[arg-type]
        self.reads: list[tuple[Sides, Place]] = []

    def where(self, sides: Sides, place: Place) -> tuple[int | None, int | None]:
        return place[0] if ROW in sides else None, place[1] if COL in sides else None

    def distinct(self, sides: Sides) -> list[int]:
        return [0, int(COL in sides)]

    def sums(self, product: ir.Operation, place: Place) -> list[Value]:
        return [constant(1.0, "f32") for _ in range(2)]

    def read(self, load: Load, sides: Sides, place: Place) -> list[Value]:
        self.reads.append((sides, place))
        return [constant(2.0, str(load.buffer.element)) for _ in range(2)]

    def index(self, side: Any, place: Place, element: int) -> Value:
        raise AssertionError("no body here asks where it is")


class Rows(Pairs):
    """The same for a thread whose two elements are one: of columns that are alike."""

    def distinct(self, sides: Sides) -> list[int]:
        return [0, 0]


def evaluated(kind: type[Pairs], layer: Layer, places: list[Place]) -> tuple[Pairs, list[list[Value]], Counter[str]]:
    """The evaluator, the result's elements at each place, and how often each operation was emitted."""
    (task,) = ProgramView(kept(program([layer])[0])).tasks
    evaluator, code = kind(match(task)), ir.Module.create()
    with ir.InsertionPoint(code.body):
        found = [evaluator.evaluate(task.stores[0].tensor, place) for place in places]
    MODULES.append(code)
    return evaluator, found, Counter(op.operation.name for op in code.body.operations)


PLACES = [(row, col) for col in (0, 8) for row in (0, 1, 2)]


def test_what_lies_along_one_side_is_read_once_for_the_other(context) -> None:
    layer = Layer(64, 64, 64, (64, 64), epilogue=("bias", "residual"))
    reads = evaluated(Pairs, layer, PLACES)[0].reads
    assert [place for sides, place in reads if sides == (COL,)] == [(0, 0), (0, 8)]
    assert [place for sides, place in reads if sides == (ROW, COL)] == PLACES


def test_a_place_is_evaluated_once(context) -> None:
    layer = Layer(64, 64, 64, (64, 64), epilogue=("bias", "residual"))
    evaluator, (first, again), _ = evaluated(Pairs, layer, [(0, 0), (0, 0)])
    assert first is again and len(evaluator.reads) == 2


@pytest.mark.parametrize(("kind", "count"), [(Pairs, 2), (Rows, 1)])
def test_elements_that_are_the_same_are_computed_once(context, kind: type[Pairs], count: int) -> None:
    layer = Layer(64, 64, 64, (64, 64), out="f32", epilogue=("exp",))
    _, [(left, right)], emitted = evaluated(kind, layer, [(0, 0)])
    assert emitted["math.exp"] == count and (left is right) == (count == 1)


@pytest.mark.parametrize(("epilogue", "additions"), [((), 0), (("init",), 2)])
def test_a_start_of_zeros_is_not_added(context, epilogue: tuple[str, ...], additions: int) -> None:
    layer = Layer(64, 64, 64, (64, 64), out="f32", epilogue=epilogue)
    assert evaluated(Pairs, layer, [(0, 0)])[2]["arith.addf"] == additions
