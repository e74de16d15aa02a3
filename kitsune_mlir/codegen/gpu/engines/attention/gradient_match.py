"""Reading the body of a task as one tile of attention's gradients: which tensors are resident, which streamed, how they lie.

Sides are those of `attention.match`: "row0" are rows of the resident operands, "key" those of the streamed ones.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.attention.match import Masked, load_for, masks_of, record_window, window_of
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.attention_gradient import Gradient, between, read_attention_gradient
from kitsune_mlir.dialects.factors import Factor
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["GradientPattern", "match_gradient"]


@dataclasses.dataclass(frozen=True, eq=False)
class GradientPattern:
    """A tile that was understood.

    Attributes:
        gradient: what is computed.
        rows: the number of resident rows, or () if it is 1.
        scored, sloped, streamed, weighed: where the operands are.
        logarithm, mean: where the numbers of the queries' rows are.
        results: where the results go.
        sides, loads: as in `attention.match`.
    """

    gradient: Gradient
    rows: tuple[int, ...]
    scored: Window
    sloped: Window
    streamed: Window
    weighed: Window
    logarithm: Window
    mean: Window
    results: tuple[Window, ...]
    sides: dict[Factor, str]
    loads: dict[tuple, Masked]

    @property
    def row_count(self) -> int:
        """Resident rows."""
        return self.rows[0] if self.rows else 1

    @property
    def length(self) -> int:
        """Streamed rows."""
        return self.gradient.along[0].size

    @property
    def width(self) -> int:
        """Elements of a head of q and k."""
        return self.gradient.width[0].size

    @property
    def head(self) -> int:
        """Elements of a head of v and of what comes back."""
        return self.gradient.head[0].size


def match_gradient(task: TaskView) -> GradientPattern:
    """Read a task.

    Raises:
        MatchFailure: its body is none, or holds more than that.
    """
    products = [op for op in task.work() if is_contraction(op)]
    sums = []
    for op in products:
        try:
            sums.append((between(op).slope is None, op))
        except MatchFailure:
            continue
    sums.sort(key=lambda pair: pair[0])
    if not sums or len(products) != len(sums) + 2:
        raise MatchFailure(f"{len(products)} products, {len(sums)} of them sums of weights; there are two others")

    def same(one: ir.Value, other: ir.Value) -> bool:
        loads = load_for(task, one), load_for(task, other)
        places = [load and (load.buffer, load.offsets, load.sizes) for load in loads]
        return one == other or (None not in places and places[0] == places[1])

    gradient = read_attention_gradient([op for _, op in sums], same)
    stores = {store.tensor: store for store in task.stores}
    if len(task.stores) != len(sums) or set(stores) != {result.value for result in gradient.results}:
        raise MatchFailure("the task stores something else than the gradients")
    for name, factors in (("streamed rows", gradient.along), ("width", gradient.width), ("head", gradient.head)):
        if len(factors) != 1:
            raise MatchFailure(f"{len(factors)} dimensions of the {name}; one is done")
    if len(gradient.outer) > 1 or set(gradient.rows) != set(gradient.along):
        raise MatchFailure("a tile has rows of several heads or batches")
    sides: dict[Factor, str] = {gradient.along[0]: "key", gradient.width[0]: "width", gradient.head[0]: "head"}
    for factor in gradient.outer:
        sides[factor] = "row0"
    return GradientPattern(
        gradient,
        tuple(factor.size for factor in gradient.outer),
        window_of(task, gradient.scored, sides),
        window_of(task, gradient.sloped, sides),
        window_of(task, gradient.streamed, sides),
        window_of(task, gradient.weighed, sides),
        window_of(task, gradient.logarithm, sides),
        window_of(task, gradient.mean, sides),
        tuple(record_window(stores[result.value], result, sides) for result in gradient.results),
        sides,
        masks_of(task, [step.tree for step in gradient.steps], gradient.dropout, sides),
    )
