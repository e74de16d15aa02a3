"""Scatters of every form as `scatter_rows`, which many tasks do side by side.

A tensor is seen as rows of those last dimensions that are put there whole; where a row goes is calculated from all indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import NARROW, widened, worst_of
from kitsune_mlir.frontend.scatter_rows import scatter_rows

__all__ = ["SCATTERS"]

aten = torch.ops.aten
_REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "prod": "prod", "multiply": "prod", "amax": "amax", "amin": "amin"}
_COMBINED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)
"""Types that are combined as they are; narrower integers are in 32 bits."""
FEW_FILLED = 4
"""Rows for each that an index names from which on those are written, whichever are named twice."""
_MANY = 1024
"""Elements beside a dimension from which on a tensor is cut along the others."""


def _put_rows(x: Tensor, place: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """`scatter_rows` of any type, where x and source [E, ...] have rows of the same elements; also means.

    Args:
        include_self: False is as if there were nothing in a row before, where something comes.
    """
    if x.dtype.is_complex and reduce != "set":
        raise NotImplementedError(f"a scatter that combines {x.dtype}; real numbers and assignments are supported")
    if reduce == "mean":
        old = widened(x)
        hits = _per_row(x, place, torch.float32, "sum")
        start = old if include_self else torch.where(hits > 0, torch.zeros_like(old), old)
        total = _put_rows(start, place, source.to(old.dtype), "sum")
        count = torch.clamp(hits + float(include_self), min=1.0)
        if old.dtype.is_floating_point:
            return (total / count.to(old.dtype)).to(x.dtype)
        return torch.div(total, count.to(old.dtype), rounding_mode="floor")
    if not include_self:
        hit = _per_row(x, place, torch.bool, "set")
        x = torch.where(hit, torch.full_like(x, _identity(reduce, x.dtype)), x)
    if reduce == "set":
        return scatter_rows(x, place, source, reduce)
    wide = _combined_in(x, reduce, source)
    return scatter_rows(x.to(wide), place, source.to(wide), reduce).to(x.dtype)


def _combined_in(x: Tensor, reduce: str, source: Tensor) -> torch.dtype:
    """The type in which rows are combined: with these memory does it, or pairs of 16-bit floats that are added.

    Single ones are added as they are, too, where not more come than there are: few are added to one, so the wider copies of
    all of them, twice, would be for nothing.
    """
    if x.dtype in NARROW:
        columns = math.prod(x.shape[1:])
        few = columns == 1 and len(source) <= len(x)
        if reduce != "sum" or (columns % 2 and not few):
            return torch.float32
    return x.dtype if x.dtype in _COMBINED else torch.int32


def _per_row(x: Tensor, place: Tensor, dtype: torch.dtype, reduce: str) -> Tensor:
    """What ones give that are put into the rows of x: [N, 1, ...]."""
    none, ones = torch.zeros(x.shape[:1], dtype=dtype, device=x.device), torch.ones_like(place, dtype=dtype)
    return scatter_rows(none, place, ones, reduce).reshape(-1, *[1] * (x.ndim - 1))


def _identity(reduce: str, dtype: torch.dtype) -> Any:
    """What changes nothing."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    return worst_of(dtype, reduce == "amax")


def _put(
    x: Tensor, indices: Sequence[tuple[int, Tensor]], put: int, source: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """Elements or rows put into x.

    Args:
        indices: dimension of x, and the index along it, of at least 0; all of the shape of source but its last dimensions.
        put: last dimensions of x that are put there whole; source has them last.
    """
    rows = x.ndim - put
    if source.numel() == 0:
        return x.clone()
    width = math.prod(x.shape[rows:])
    place: Tensor | None = None
    for dim, index in indices:
        step = math.prod(x.shape[dim + 1 : rows])
        part = index if step == 1 else index * step
        place = part if place is None else place + part
    assert place is not None
    if x.numel() // width < 2**31 and len(indices) > 1:
        place = place.to(torch.int32)  # it is calculated and kept: half of the bytes
    place = place.expand(source.shape[: source.ndim - put]).reshape(-1)
    window = list(x.shape[rows:]) if rows == 1 else [width] * (put > 0)
    out = _put_rows(x.reshape([-1, *window]), place, source.reshape([-1, *window]), reduce, include_self)
    return out.reshape(x.shape)


def _numbers(x: Tensor, dim: int, shape_ndim: int, at: int) -> Tensor:
    """The numbers of x's elements along a dimension, as dimension `at` of so many."""
    count = torch.arange(x.shape[dim], device=x.device)
    return count.reshape([-1 if d == at else 1 for d in range(shape_ndim)])


def _along(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """torch's scatters: an index of x's rank says for each element of source where along `dim` it goes."""
    if x.ndim == 0:
        return _along(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self).reshape(())
    if index.ndim == 0:
        index, source = index.reshape(1), source.reshape(1)
    dim %= x.ndim
    source = source[tuple(slice(0, size) for size in index.shape)]
    put = 0
    while (d := x.ndim - 1 - put) > dim and index.shape[d] == x.shape[d] and (index.stride(d) == 0 or x.shape[d] == 1):
        put += 1
    for _ in range(put):
        index = index.select(-1, 0)
    rows = x.ndim - put
    each = [(d, index if d == dim else _numbers(x, d, rows, d)[_part(index, d)]) for d in range(rows)]
    return _put(x, [(d, i) for d, i in each if x.shape[d] != 1 or d == dim], put, source, reduce, include_self)


def _part(index: Tensor, dim: int) -> tuple[slice, ...]:
    """Of the numbers along a dimension those that an index has."""
    return tuple(slice(0, index.shape[dim]) if d == dim else slice(None) for d in range(index.ndim))


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _along(x, dim, index, source, "sum")


def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str = "set") -> Tensor:
    return _along(x, dim, index, source, _REDUCTIONS.get(reduce, reduce))


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: Any, reduce: str = "set") -> Tensor:
    return _scatter(x, dim, index, torch.full_like(index, value, dtype=x.dtype), reduce)


def _scatter_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    return _along(x, dim, index, source, _REDUCTIONS[reduce], include_self)


def _of_rows(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """One index along a dimension says for each slice of source where it goes."""
    if x.ndim == 0:
        return _of_rows(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self).reshape(())
    dim %= x.ndim
    index = index.reshape(-1)
    leading = dim + 1
    each = [(d, _numbers(x, d, leading, d)) for d in range(dim) if x.shape[d] != 1]
    return _put(x, [*each, (dim, index.reshape([1] * dim + [-1]))], x.ndim - leading, source, reduce, include_self)


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    if alpha != 1:
        source = source * (alpha if x.dtype.is_floating_point or x.dtype.is_complex else int(alpha))
    return _of_rows(x, dim, index, source, "sum")


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _of_rows(x, dim, index, source, "set")


def _index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    return _of_rows(x, dim, index, source, _REDUCTIONS[reduce], include_self)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Through a mask of the dimension, where no row is written twice; a few rows of many are written."""
    if x.ndim == 0:
        return torch.full_like(x, value) if index.numel() else x.clone()
    value = value.to(x.dtype) if isinstance(value, Tensor) else torch.full([], value, dtype=x.dtype, device=x.device)
    return _filled(x, dim % x.ndim, _wrapped(index.reshape(-1), x.shape[dim]), value.reshape([]))


def _filled(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """x with `value`, of its type, where an index along a dimension says."""
    if dim == 0 and 0 < FEW_FILLED * index.numel() <= x.shape[0]:
        return scatter_rows(x, index, value.expand([index.numel(), *x.shape[1:]]), "set")
    return torch.where(_chosen(x, dim, index), value, x)


def _chosen(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Which numbers along a dimension an index has; of x's rank."""
    none = torch.zeros([x.shape[dim]], dtype=torch.bool, device=x.device)
    if index.numel():
        none = scatter_rows(none, index, torch.ones_like(index, dtype=torch.bool), "set")
    return none.reshape([-1 if d == dim else 1 for d in range(x.ndim)])


def _wrapped(index: Tensor, size: int) -> Tensor:
    """Negative indices count from the end."""
    return torch.where(index < 0, index + size, index)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for _, i in given):
        return _masked_put(x, indices, values, accumulate)
    if not given or x.ndim == 0:
        return x.clone()
    wrapped = [(dim, _wrapped(i, x.shape[dim])) for dim, i in given]
    shape = torch.broadcast_shapes(*(i.shape for _, i in wrapped))
    first, last = wrapped[0][0], wrapped[-1][0]
    if len(wrapped) == 1 and not accumulate and values.numel() == 1:
        return _filled(x, first, wrapped[0][1].reshape(-1), values.to(x.dtype).reshape([]))
    between = [d for d in range(first, last) if d not in dict(wrapped)]
    # The indices' dimensions stand where the first index does, or, where others are between them, before all.
    at = 0 if between else first
    others = [d for d in range(last + 1) if d not in dict(wrapped)]
    rank = len(shape) + len(others)
    each = []
    for dim in range(last + 1):
        if dim in dict(wrapped):
            index = dict(wrapped)[dim]
            index = index.reshape([1] * (len(shape) - index.ndim) + list(index.shape))
            each.append((dim, index.reshape([1] * at + list(index.shape) + [1] * (rank - at - len(shape)))))
        else:
            place = others.index(dim)
            each.append((dim, _numbers(x, dim, rank, place if place < at else place + len(shape))))
    whole = [x.shape[d] for d in others]
    leading = [*whole[:at], *shape, *whole[at:]]
    values = values.to(x.dtype).expand([*leading, *x.shape[last + 1 :]])
    return _put(x, each, x.ndim - last - 1, values, "sum" if accumulate else "set")


def _masked_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    before = next(i for i, index in enumerate(indices) if index is not None)
    mask = indices[before]
    assert mask is not None
    after = x.ndim - before - mask.ndim
    if len(indices) > before + 1 or values.ndim > after:
        raise NotImplementedError("assignment of several values through a mask: how many depends on the mask's contents")
    put = values.to(x.dtype)
    mask = (mask != 0).reshape(*mask.shape, *[1] * after)
    return torch.where(mask, x + put if accumulate else put, x)


def _put_flat(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`Tensor.put`: places in memory."""
    return _index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


def _slice_scatter(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """What stays and what comes side by side, where other dimensions are enough for many tasks. Else, and with steps, each
    number along the dimension takes one of both."""
    dim, size = dim % x.ndim, x.shape[dim % x.ndim]
    first, last, _ = slice(start, end).indices(size)
    source = source.expand([len(range(first, last, step)) if d == dim else n for d, n in enumerate(x.shape)])
    if last <= first:
        return x.clone()
    if step == 1 and x.numel() // size >= _MANY:
        parts = [x.narrow(dim, 0, first), source, x.narrow(dim, last, size - last)]
        parts = [part for part in parts if part.shape[dim]]
        return torch.cat(parts, dim) if len(parts) > 1 else source.clone()
    numbers = torch.arange(size, device=x.device)
    within = (numbers >= first) & (numbers < last) & ((numbers - first) % step == 0)
    place = torch.clamp((numbers - first) // step, 0, source.shape[dim] - 1)
    within = within.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    return torch.where(within, source.index_select(dim, place), x)


SCATTERS: dict[Any, Any] = {
    aten.scatter_add.default: _scatter_add,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter_value,
    aten.scatter.reduce: _scatter,
    aten.scatter.value_reduce: _scatter_value,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_reduce.default: _index_reduce,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.put.default: _put_flat,
    aten.slice_scatter.default: _slice_scatter,
}
"""By operator, for the table of decompositions."""
