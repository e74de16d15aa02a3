"""What operators with indices do to rows: gathers, scatters and bags of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kitsune_mlir.frontend.rows.axes import Axis, Unclear, axis_of, names_in, same_size
from kitsune_mlir.frontend.rows.node import Axes, Node, broadcast

__all__ = ["INDICES"]

aten = torch.ops.aten

_PUTS = "it puts rows where an index says"


def _gathered(at: Node, axes: Sequence[Axis]) -> None:
    """Notes dimensions that an index is into."""
    for axis in axes:
        if axis.is_prefix:
            at.crosses(axis.symbols, "it takes rows by an index", "counts")
        else:
            at.crosses(axis.symbols, "an index is into rows that do not lie together", "never")


def _index(at: Node) -> Axes:
    axes, indices = at.operand(), at["indices"]
    return _indexed(at, axes, indices)[0]


def _indexed(at: Node, axes: Axes, indices: Sequence[Any]) -> tuple[Axes, Axes]:
    """The dimensions of what indices choose; and those of the indices themselves."""
    places = [n for n, index in enumerate(indices) if index is not None]
    if any(indices[n].meta["val"].dtype in (torch.bool, torch.uint8) for n in places):
        raise Unclear("how many elements a mask chooses depends on data")
    _gathered(at, [axes[n] for n in places])
    shared = broadcast(*(at.axes(indices[n]) for n in places))
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    kept = [axis for n, axis in enumerate(axes) if n not in places]
    return (*kept[:first], *shared, *kept[first:]), shared


def _index_select(at: Node) -> Axes:
    axes, dim = at.operand(), at.dim()
    _gathered(at, axes[dim : dim + 1])
    return (*axes[:dim], *(at.axes(at["index"]) or (Axis(),)), *axes[dim + 1 :]) if axes else ()


def _embedding(at: Node) -> Axes:
    table = at.operand()
    _gathered(at, table[:1])
    return (*at.axes(at["indices"]), *table[1:])


def _gather(at: Node) -> Axes:
    axes, index, dim = at.operand(), at.axes(at["index"]), at.dim()
    _gathered(at, axes[dim : dim + 1])
    if any(
        n != dim and one != other and (one.symbols or other.symbols)
        for n, (one, other) in enumerate(zip(axes, index, strict=True))
    ):
        raise Unclear("its index has other rows than what it is into")
    return index


def _scatter_rows(at: Node) -> Axes:
    into, index, source = at.operand(0), at.axes(at["index"]), at.axes(at["source"])
    dim = at.dim() if "dim" in at.given else 0
    index = index or (Axis(),)
    if source[dim : dim + 1] != index:
        raise Unclear("its index has other rows than what is put")
    around = broadcast(into[:dim] + into[dim + 1 :], source[:dim] + source[dim + 1 :])
    if around != into[:dim] + into[dim + 1 :]:
        raise Unclear("it puts rows of another shape")
    _gathered(at, into[dim : dim + 1])
    at.crosses(index[0].symbols, _PUTS, "counts")
    return into


def _index_put(at: Node) -> Axes:
    into = at.operand()
    found, shared = _indexed(at, into, at["indices"])
    values = at.axes(at["values"])
    if broadcast(found, values) != found:
        raise Unclear("its index has other rows than what is put")
    names = frozenset[str]().union(*(axis.symbols for axis in shared))
    if names and not (at["accumulate"] or (len(shared) == 1 and shared[0].is_prefix)):
        raise Unclear("what is put where one index stands twice depends on the order of rows")
    at.crosses(names, _PUTS, "counts")
    return into


def _scatter(at: Node) -> Axes:
    into, index, dim = at.operand(), at.axes(at["index"]), at.dim()
    source = at.axes(at["src"]) if isinstance(at["src"], fx.Node) else index
    if any(n != dim and one != other for n, (one, other) in enumerate(zip(into, index, strict=True))) or source != index:
        raise Unclear("its index has other rows than what it is into")
    if index:
        names = index[dim].symbols
        at.crosses(names, _PUTS, "never" if at["reduce"] == "mean" else "counts")
    _gathered(at, into[dim : dim + 1])
    return into


def _bags(at: Node) -> list[Axes]:
    table, index, offsets = at.operand(), at.axes(at["indices"]), at["offsets"]
    _gathered(at, table[:1])
    sizes = at.results
    if not names_in([*index[0].factors, *sizes[0], *(size for axis in at.axes(offsets) for size in axis.factors)]):
        return [tuple(map(axis_of, one)) for one in sizes]
    if not isinstance(offsets, fx.Node) or offsets.target is not aten.arange.start_step:
        raise Unclear("which rows a bag has is known only at a call")
    start, end, step = (at.number(offsets.args[n]) if len(offsets.args) > n else axis_of(1).size for n in range(3))
    bags = at.axes(offsets)
    if start != 0 or not same_size(end, index[0].size) or index[0].factors != (*bags[0].factors, *axis_of(step).factors):
        raise Unclear("its bags are not as large as each other")
    if at["per_sample_weights"] is not None and at.axes(at["per_sample_weights"]) != index:
        raise Unclear("its weights have other rows than its indices")
    at.crosses(names_in([step]), "how many indices a bag has depends on how many rows there are", "never")
    if any(user.args[1] != 0 and user.users for user in at.node.users):
        raise Unclear("what else it gives is used")
    return [(*bags, *table[1:]), *(tuple(map(axis_of, one)) for one in sizes[1:])]


INDICES = {
    aten.index.Tensor: _index, aten.index_select.default: _index_select, aten.embedding.default: _embedding,
    aten.gather.default: _gather, torch.ops.kitsune.scatter_rows.default: _scatter_rows, aten.index_add.default: _scatter_rows,
    aten.index_copy.default: _scatter_rows, aten.index_put.default: _index_put, aten.scatter.src: _scatter,
    aten.scatter.value: _scatter, aten.scatter_add.default: _scatter, aten.scatter_reduce.two: _scatter,
    aten._embedding_bag.default: _bags,
    aten._embedding_bag_forward_only.default: _bags,
}  # fmt: skip
"""Rules by operator."""
