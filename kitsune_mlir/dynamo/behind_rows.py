"""What elements behind the valid ones hold, where that is one number: so that it need not be put there again.

The scores of attention are masked once, at the largest of a row. What is computed of them for the second product is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.frontend.dtypes import CASTS
from kitsune_mlir.frontend.rows import Axis

__all__ = ["BehindRows"]

aten = torch.ops.aten
_OTHERS = (aten.select.int, aten.as_strided.default, aten.diagonal.default, aten.transpose.int, aten.t.default)


class BehindRows:
    """Numbers by node and dimension.

    Args:
        axes: the dimensions of a node's value.
        size: of a dimension, in this run.
    """

    def __init__(self, axes: Callable[[Any], Sequence[Axis]], size: Callable[[Any], int]):
        self._axes, self._size = axes, size
        self._known: dict[tuple[fx.Node, int], float] = {}

    def note(self, node: fx.Node, dim: int, number: float) -> None:
        """Elements of a node that are not valid along a dimension are this number."""
        self._known[node, dim] = number

    def of(self, node: Any, dim: int) -> float | None:
        """What they are; None where that is not known."""
        return self._known.get((node, dim)) if isinstance(node, fx.Node) else None

    def follow(self, node: fx.Node) -> None:
        """Note what is known of a node because it is known of its operands."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not isinstance(node.meta.get("val"), Tensor):
            return
        for dim in range(len(self._axes(source))):
            number = self.of(source, dim)
            if number is None:
                continue
            if node.target in (*CASTS, aten.clone.default) or is_view(node):
                place = self._moved(source, node, dim)
                if place is not None:
                    self.note(node, place, number)
            elif (found := _computed(node, number)) is not None and self._along(node, dim):
                self.note(node, dim, found)

    def _along(self, node: fx.Node, dim: int) -> bool:
        """Whether what a step of a softmax takes off, or divides by, is one number along a dimension.

        A softmax of the same scores along another one has numbers of its own where this one is not valid.
        """
        if len(node.args) < 2:
            return True
        other, own = self._axes(node.args[1]), self._axes(node)
        return len(other) == len(own) and not other[dim].factors

    def _moved(self, source: fx.Node, node: fx.Node, dim: int) -> int | None:
        """Where a dimension is in a view; None if it is none there."""
        if node.target is aten.permute.default:
            return [at % len(self._axes(source)) for at in node.args[1]].index(dim)  # type: ignore[union-attr, operator]
        before, after = self._axes(source), self._axes(node)
        if node.target is aten.slice.Tensor and before == after:
            return dim
        if node.target in (aten.slice.Tensor, *_OTHERS):
            return None
        inner = math.prod(self._size(axis.size) for axis in before[dim + 1 :])
        for at in reversed(range(len(after))):
            behind = math.prod(self._size(axis.size) for axis in after[at + 1 :])
            if behind == inner and after[at] == before[dim]:
                return at
            if behind > inner and node.target is not aten.expand.default:
                break
        return dim + len(after) - len(before) if node.target is aten.expand.default else None


def _computed(node: fx.Node, number: float) -> float | None:
    """What a step of a softmax makes of a number; rows of its own that are NaN are so everywhere."""
    source, other = node.args[0], node.args[1] if len(node.args) > 1 else None
    if node.target is aten.exp.default and number == -math.inf:
        return 0.0
    if (
        node.target is aten.sub.Tensor
        and number == -math.inf
        and not node.kwargs
        and _reduces(other, source, aten.amax.default)
    ):
        return number
    if node.target is aten.div.Tensor and number == 0 and not node.kwargs and _reduces(other, source, aten.sum.dim_IntList):
        return number
    return None


def _reduces(node: Any, source: Any, target: Any) -> bool:
    """Whether a node is such a reduction of another one, but for rows of which it is chosen otherwise."""
    if isinstance(node, fx.Node) and node.target is aten.where.self:
        return any(_reduces(branch, source, target) for branch in node.args[1:])
    return isinstance(node, fx.Node) and node.target is target and node.args[0] is source
