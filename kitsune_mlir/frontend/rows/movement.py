"""What operators that move elements do to rows: views, slices, concatenations, repetitions."""

from __future__ import annotations

import torch
from torch import fx

from kitsune_mlir.frontend.rows.axes import Axis, Unclear, axis_of, merged, names_in, regrouped, same_size
from kitsune_mlir.frontend.rows.node import Axes, Node, broadcast

__all__ = ["MOVEMENT"]

aten, prims = torch.ops.aten, torch.ops.prims


def _view(at: Node) -> Axes:
    return regrouped(at.operand(), at.results)


def _permute(at: Node) -> Axes:
    axes = at.operand()
    return tuple(axes[dim] for dim in at["dims"])


def _transpose(at: Node) -> Axes:
    axes = list(at.operand())
    if axes:
        one, other = at.dim("dim0"), at.dim("dim1")
        axes[one], axes[other] = axes[other], axes[one]
    return tuple(axes)


def _unsqueeze(at: Node) -> Axes:
    axes = at.operand()
    dim = at.dim(rank=len(axes) + 1)
    return (*axes[:dim], Axis(), *axes[dim:])


def _squeeze(at: Node) -> Axes:
    axes = at.operand()
    given = at["dimensions"] if "dimensions" in at.given else at["dim"] if "dim" in at.given else range(len(axes))
    dims = {dim % max(len(axes), 1) for dim in (given if not isinstance(given, int) else [given])}
    return tuple(axis for n, axis in enumerate(axes) if n not in dims or axis != Axis())


def _expand(at: Node) -> Axes:
    axes, sizes = at.operand(), at.results
    axes = (Axis(),) * (len(sizes) - len(axes)) + axes
    return tuple(axis if axis != Axis() else axis_of(size) for axis, size in zip(axes, sizes, strict=True))


def _broadcast_in_dim(at: Node) -> Axes:
    found = list(map(axis_of, at.results))
    for dim, axis in zip(at["broadcast_dimensions"], at.operand(), strict=True):
        found[dim] = axis if axis != Axis() else found[dim]
    return tuple(found)


def _repeat(at: Node) -> Axes:
    axes, times = at.operand(), [at.number(n) for n in at["repeats"]]
    axes = (Axis(),) * (len(times) - len(axes)) + axes
    return tuple(merged((*axis_of(n).factors, *axis.factors)) for axis, n in zip(axes, times, strict=True))


def _select(at: Node) -> Axes:
    axes, dim, index = at.operand(), at.dim(), at.number(at["index"])
    axis = axes[dim]
    if not axis.is_prefix:
        raise Unclear("it takes a row by its number among rows that do not lie together")
    if axis.symbols or index.free_symbols:
        known = index.is_Integer and index >= 0
        what = "it takes one row" if known else "which row it takes depends on how many there are"
        at.crosses(axis.symbols | names_in([index]), what, "reads" if known else "counts")
    return axes[:dim] + axes[dim + 1 :]


def _slice(at: Node) -> Axes:
    axes, dim = at.operand(), at.dim()
    return (*axes[:dim], _sliced(at, axes[dim], at.results[dim]), *axes[dim + 1 :])


def _sliced(at: Node, axis: Axis, size: object) -> Axis:
    """A dimension of which a part is taken, as `slice` does."""
    start = at.number(0 if at["start"] is None else at["start"])
    at.says_sizes("end")
    if same_size(size, axis.size) and at["step"] in (None, 1):
        return axis
    out = axis_of(size)
    if not (axis.symbols or out.symbols or start.free_symbols):
        return out
    if not axis.is_prefix or not size.is_polynomial():
        raise Unclear("it takes rows by their number where they do not lie together, or an unknown number of them")
    first = start.is_Integer and start >= 0 and axis.symbols and at["step"] in (None, 1)
    what = "it takes some of the rows" if axis.symbols else "which elements it takes depends on how many rows there are"
    at.crosses(axis.symbols | out.symbols | names_in([start]), what, "reads" if first else "counts")
    return out


def _split(at: Node) -> list[Axes]:
    axes, dim = at.operand(), at.dim()
    at.says_sizes("split_size", "split_sizes")
    if axes[dim].symbols or names_in(sizes[dim] for sizes in at.results):
        raise Unclear("it takes rows apart")
    return [(*axes[:dim], axis_of(sizes[dim]), *axes[dim + 1 :]) for sizes in at.results]


def _unbind(at: Node) -> list[Axes]:
    axes, dim = at.operand(), at.dim()
    return [axes[:dim] + axes[dim + 1 :] for _ in at.results]


def _cat(at: Node) -> Axes:
    parts = [axes for value in at["tensors"] if len(axes := at.axes(value)) == len(at.results)]  # an empty list is left out
    dim = at.dim(rank=len(at.results))
    around = broadcast(*(axes[:dim] + (Axis(),) + axes[dim + 1 :] for axes in parts))
    along = [axes[dim] for axes in parts]
    names = frozenset[str]().union(*(axis.symbols for axis in along))
    if names and len(parts) > 1:
        if not all(axis.is_prefix for axis in along):
            raise Unclear("it puts other elements between rows")
        at.crosses(names, "it puts others behind rows", "counts")
    found = axis_of(at.results[dim]) if len(parts) > 1 else along[0]
    return (*around[:dim], found, *around[dim + 1 :])


def _stack(at: Node) -> Axes:
    parts = [at.axes(value) for value in at["tensors"]]
    around, dim = broadcast(*parts), at.dim(rank=len(at.results))
    return (*around[:dim], axis_of(at.results[dim]), *around[dim:])


def _triangle(at: Node) -> Axes:
    axes = at.operand()
    if not all(axis.is_prefix for axis in axes[-2:]) or isinstance(at["diagonal"], fx.Node):
        raise Unclear("which elements it keeps depends on how many rows there are")
    return axes


def _slice_scatter(at: Node) -> Axes:
    axes, source, dim = at.operand(0), at.operand(1), at.dim()
    if at.node.target is aten.select_scatter.default:
        source = (*source[:dim], Axis(), *source[dim:])
        at.crosses(names_in([at.number(at["index"])]), "which row it changes is a number", "counts")
    whole = axes[dim] == source[dim]
    if (axes[dim].symbols or source[dim].symbols) and not whole:
        raise Unclear("it changes some of the rows")
    around = broadcast(axes[:dim] + (Axis(),) + axes[dim + 1 :], source[:dim] + (Axis(),) + source[dim + 1 :])
    return (*around[:dim], axes[dim], *around[dim + 1 :])


def _padded(at: Node) -> Axes:
    axes, pad = at.operand(), at["pad"]
    found = list(axes)
    for n in range(len(pad) // 2):
        dim, around = len(axes) - 1 - n, [at.number(p) for p in pad[2 * n : 2 * n + 2]]
        if any(p != 0 for p in around):
            if axes[dim].symbols or names_in(around):
                raise Unclear("it puts elements before rows or behind them")
            found[dim] = axis_of(at.results[dim])
    return tuple(found)


MOVEMENT = {
    aten.view.default: _view, aten._unsafe_view.default: _view, aten.reshape.default: _view, aten.permute.default: _permute,
    aten._reshape_copy.default: _view, aten.transpose.int: _transpose, aten.t.default: lambda at: at.operand()[::-1],
    prims.transpose.default: lambda at: tuple(at.operand()[n] for n in at["permutation"]), aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze, aten.squeeze.dim: _squeeze, aten.squeeze.dims: _squeeze, prims.squeeze.default: _squeeze,
    aten.expand.default: _expand, prims.broadcast_in_dim.default: _broadcast_in_dim, aten.repeat.default: _repeat,
    aten.select.int: _select, aten.slice.Tensor: _slice, aten.split_with_sizes.default: _split, aten.split.Tensor: _split,
    aten.unbind.int: _unbind, aten.cat.default: _cat, aten.stack.default: _stack, aten.tril.default: _triangle,
    aten.triu.default: _triangle, aten.slice_scatter.default: _slice_scatter, aten.select_scatter.default: _slice_scatter,
    aten.constant_pad_nd.default: _padded,
}  # fmt: skip
"""Rules by operator."""
