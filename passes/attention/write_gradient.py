"""Writing attention's gradients in the form that stages are made of: one loop nest over queries, or over keys."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir
from torch_mlir.dialects import arith, math

from kitsune_mlir.dialects.attention import Operand
from kitsune_mlir.dialects.attention_gradient import Gradient
from kitsune_mlir.dialects.factors import Factor
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.passes.attention.write import Viewed, Writer, unview, view

__all__ = ["place_of", "streamed_factor", "write_gradient"]


def streamed_factor(gradient: Gradient) -> Factor:
    """The factor of the streamed rows that a stage's sums run along: that of a causal mask, else the longest."""
    causal = {factor for step in gradient.steps for factor in step.row if factor in gradient.along}
    return next(iter(causal), None) or max(gradient.along, key=lambda factor: factor.size)


def place_of(gradient: Gradient) -> ir.Operation | None:
    """The operation before which the gradients may be computed: the first that gives one; None where operands come later."""
    lasts = [maker for result in gradient.results if (maker := defining_op(result.value)) is not None]
    first = lasts[0]
    for maker in lasts[1:]:
        first = maker if maker.is_before_in_block(first) else first
    operands = (gradient.scored, gradient.sloped, gradient.streamed, gradient.weighed, gradient.logarithm, gradient.mean)
    makers = [maker for operand in operands if (maker := defining_op(operand.value)) is not None]
    there = all(maker.block == first.block and maker.is_before_in_block(first) for maker in makers)
    return first if there and len(lasts) == len(gradient.results) else None


def write_gradient(gradient: Gradient, number: int) -> None:
    """Replace gradients by a new computation of them, placed at `place_of`; the operations are marked with `number`.

    Heads of queries that share keys each have a result of their own, in the operands' type, which are added up afterwards.
    """
    place = place_of(gradient)
    assert place is not None
    with ir.InsertionPoint(place), gradient.sums[0].location:
        made = _GradientWriter(gradient, number).write()
    for result, value in zip(gradient.results, made, strict=True):
        result.value.replace_all_uses_with(value)


class _GradientWriter(Writer):
    def __init__(self, gradient: Gradient, number: int):
        super().__init__(gradient, number)
        self.gradient = gradient
        self.unmarked = Writer(gradient, None)

    def write(self) -> list[ir.Value]:
        """The results, in order."""
        gradient = self.gradient
        along = streamed_factor(gradient)
        apart = [factor for factor in gradient.along if factor is not along]
        outer = [*apart, *gradient.outer]
        square = [*outer, along]
        streamed, weighed = view(gradient.streamed), view(gradient.weighed)
        scores = (self.product(view(gradient.scored), streamed, square, gradient.width[0]), square)
        scores = (self.scaled(scores), square)
        logarithm, mean = view(gradient.logarithm), view(gradient.mean)
        weights = (self.map([scores, logarithm], square, self.f32, lambda x, log: math.exp(arith.subf(x, log))), square)
        slopes = (self.product(view(gradient.sloped), weighed, square, gradient.head[0]), square)
        changes = (self.dropped([weights, slopes, mean], square, self._change), square)
        found = [self._summed(changes, streamed, along, gradient.width[0], apart, gradient.results[0])]
        if len(gradient.results) > 1:
            rounded = (self.dropped([weights], square, lambda x, kept: arith.truncf(self.narrow, kept(x))), square)
            found.append(self._summed(rounded, weighed, along, gradient.head[0], apart, gradient.results[1]))
        return found

    def _change(self, weight: ir.Value, slope: ir.Value, mean: ir.Value, kept: Callable[[ir.Value], ir.Value]) -> ir.Value:
        change = arith.mulf(weight, arith.subf(kept(slope), mean))
        if self.gradient.factor != 1.0:
            change = arith.mulf(change, arith.constant(self.f32, self.gradient.factor))
        return arith.truncf(self.narrow, change)

    def _summed(
        self, weights: Viewed, operand: Viewed, along: Factor, element: Factor, apart: list[Factor], result: Operand
    ) -> ir.Value:
        wanted = [factor for dim in result.dims for factor in dim]
        loops = [*apart, *wanted]
        total = (self.product(weights, operand, loops, along), loops)
        value = self.map([total], loops, self.narrow, lambda x: arith.truncf(self.narrow, x))
        if apart:
            plain = self.unmarked
            wide = (plain.map([(value, loops)], loops, self.f32, lambda x: arith.extf(self.f32, x)), loops)
            added = (plain.sum(wide, wanted), wanted)
            value = plain.map([added], wanted, self.narrow, lambda x: arith.truncf(self.narrow, x))
        return unview(value, result)
