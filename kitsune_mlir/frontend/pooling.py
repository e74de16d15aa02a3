"""Pooling by what costs less: equal windows side by side are dimensions, wide ones are pooled in one direction at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import adaptive_avg_pool2d

from kitsune_mlir.frontend.dtypes import NARROW, widened

__all__ = ["POOLING", "sizes"]

aten = torch.ops.aten

SHORT = 4
"""Boxes of up to so many elements along each edge have one maximum after the other taken."""
MANY = 64
"""Elements of a plane's window from which they are reduced as a row is."""
FEW = 1 << 15
"""Elements of an image, about as many as threads that a GPU has at work at a time."""


def sizes(rank: int, given: Sequence[int] | int, otherwise: Sequence[int] | None = None) -> list[int]:
    found = [given] if isinstance(given, int) else list(given) or list(otherwise or ())
    return found * rank if len(found) == 1 else found


def _apart(x: Tensor, size: Sequence[int], step: Sequence[int], pad: Sequence[int], gap: Sequence[int]) -> Tensor | None:
    """The windows' elements as dimensions behind each pooled one, where windows are equal and leave nothing out."""
    rank = len(size)
    extents = x.shape[x.ndim - rank :]
    if list(step) != list(size) or any(pad) or any(g != 1 for g in gap):
        return None
    if any(not extent or extent % n for extent, n in zip(extents, size, strict=True)):
        return None
    return x.reshape(*x.shape[: x.ndim - rank], *(part for e, n in zip(extents, size, strict=True) for part in (e // n, n)))


def _within(x: Tensor, rank: int) -> list[int]:
    """The dimensions of the windows' elements."""
    return [x.ndim - 2 * rank + 1 + 2 * d for d in range(rank)]


def _is_wide(x: Tensor, size: Sequence[int], step: Sequence[int]) -> bool:
    """Whether windows overlap so much that pooling in one direction, then in the other, reads less than half as often.

    Not of images for which threads that have an element each go over a window of `MANY` in less than a hand-off takes.
    """
    if x.numel() <= FEW and size[0] * size[1] <= MANY:
        return False
    return size[0] * size[1] > 2 * (size[0] * step[1] + size[1])


def _maximum(rank: int, pooled: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of maximum pooling: `pooled(x, size, step, pad, gap, ceil_mode)` with a number a dimension."""

    def decomposed(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        size = sizes(rank, kernel)
        return pooled(x, size, sizes(rank, stride, size), sizes(rank, padding), sizes(rank, dilation), ceil_mode)

    return decomposed


def _with_places(rank: int, op: Any) -> Callable[..., Any]:
    """Maximum pooling that says where the maxima are, with a number for each dimension, of a batch: torch-mlir wants all."""

    def decomposed(x: Tensor, kernel: Sequence[int], *given: Sequence[int], ceil_mode: bool = False) -> Any:
        lists, rest = given[:3], given[3:]
        single = rank == 3 and x.ndim == rank + 1
        if all(len(each) == rank for each in (kernel, *lists)) and not single:
            return NotImplemented
        size = sizes(rank, kernel)
        options = {} if rest else {"ceil_mode": ceil_mode}
        found = op(x.unsqueeze(0) if single else x, size, *(sizes(rank, each, size) for each in lists), *rest, **options)
        return tuple(each.squeeze(0) for each in found) if single else found

    return decomposed


def _max_plane(
    x: Tensor, size: Sequence[int], step: Sequence[int], pad: Sequence[int], gap: Sequence[int], ceil_mode: bool
) -> Tensor:
    """The maximum of a wide window is that of its columns' maxima."""
    if not _is_wide(x, size, step):
        return NotImplemented
    columns = aten.max_pool2d(x, [size[0], 1], [step[0], 1], [pad[0], 0], [gap[0], 1], ceil_mode)
    return aten.max_pool2d(columns, [1, size[1]], [1, step[1]], [0, pad[1]], [1, gap[1]], ceil_mode)


def _max_volume(
    x: Tensor, size: Sequence[int], step: Sequence[int], pad: Sequence[int], gap: Sequence[int], ceil_mode: bool
) -> Tensor:
    """The maximum of a box is that of its planes' maxima."""
    if not ceil_mode and max(size) <= SHORT and (windows := _apart(x, size, step, pad, gap)) is not None:
        return torch.amax(windows, _within(windows, 3))
    if not ceil_mode and (small := _small_maximum(x, size, step, pad, gap)) is not None:
        return small
    *lead, depth, height, width = x.shape
    planes = aten.max_pool2d(x.reshape(-1, depth, height, width), size[1:], step[1:], pad[1:], gap[1:], ceil_mode)
    height, width = planes.shape[-2:]
    columns = planes.reshape(-1, 1, depth, height * width)
    boxes = aten.max_pool2d(columns, [size[0], 1], [step[0], 1], [pad[0], 0], [gap[0], 1], ceil_mode)
    return boxes.reshape(*lead, -1, height, width)


def _mean(rank: int) -> Callable[..., Any]:
    op = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)[rank - 1].default

    def decomposed(
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if not x.dtype.is_floating_point:
            return NotImplemented
        size = sizes(rank, kernel)
        step, pad = sizes(rank, stride, size), sizes(rank, padding)
        plain = not ceil_mode and divisor_override is None
        if plain and (rank == 3 or math.prod(size) >= MANY):
            windows = _apart(x, size, step, pad, [1])
            if windows is not None:
                return widened(windows).mean(_within(windows, rank)).to(x.dtype)
        if plain and rank == 2 and _is_wide(x, size, step):
            columns = op(widened(x), [size[0], 1], [step[0], 1], [pad[0], 0], False, count_include_pad)
            return op(columns, [1, size[1]], [1, step[1]], [0, pad[1]], False, count_include_pad).to(x.dtype)
        if x.dtype not in NARROW:
            return NotImplemented
        rest = (size, step, pad, ceil_mode, count_include_pad, *((divisor_override,) if rank > 1 else ()))
        return op(widened(x), *rest).to(x.dtype)

    return decomposed


def _adaptive_mean(rank: int) -> Callable[..., Any]:
    """Equal windows are dimensions of their own."""
    op = (aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d)[rank - 2].default

    def decomposed(x: Tensor, output: Sequence[int]) -> Tensor:
        extents = x.shape[x.ndim - rank :]
        if not x.dtype.is_floating_point:
            return NotImplemented
        size = [extent // n if n else 0 for extent, n in zip(extents, output, strict=True)]
        if all(size) and all(n * out == e for n, out, e in zip(size, output, extents, strict=True)):
            windows = _apart(x, size, size, [0], [1]) if rank == 3 or math.prod(size) >= MANY else None
            if windows is not None:
                return widened(windows).mean(_within(windows, rank)).to(x.dtype)
        if all(output) and all(extents) and (mean := _unequal_mean(x, output)) is not None:
            return mean
        if x.dtype in NARROW:
            return op(widened(x), output).to(x.dtype)
        return adaptive_avg_pool2d(x, output) if rank == 2 and all(output) else NotImplemented

    return decomposed


def _places(x: Tensor, size: int, count: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Of `count` windows that divide `size` elements as evenly as it goes: where each begins, and one behind it; the places of
    its elements, of the last one more than once where it is a shorter one; how many the longest has."""
    number = torch.arange(count, device=x.device)
    first, end = number * size // count, ((number + 1) * size + count - 1) // count
    longest = max(-(-(n + 1) * size // count) - n * size // count for n in range(count))
    places = torch.minimum(first.unsqueeze(1) + torch.arange(longest, device=x.device), (end - 1).unsqueeze(1))
    return first, end, places, longest


def _taken(x: Tensor, places: Sequence[Tensor], inside: Sequence[Tensor], otherwise: float) -> Tensor:
    """The elements of windows as a dimension behind each pooled one, by their places along each.

    Args:
        inside: of the places, whether an element is there; `otherwise` stands for others.
    """
    rank = len(places)

    def along(value: Tensor, dim: int) -> Tensor:
        return value.reshape([value.shape[n - 2 * dim] if n - 2 * dim in (0, 1) else 1 for n in range(2 * rank)])

    taken = aten.index.Tensor(x, [*[None] * (x.ndim - rank), *(along(table, dim) for dim, table in enumerate(places))])
    for dim, mask in enumerate(inside):
        taken = torch.where(along(mask, dim), taken, otherwise)
    return taken


def _small_maximum(
    x: Tensor, size: Sequence[int], step: Sequence[int], pad: Sequence[int], gap: Sequence[int]
) -> Tensor | None:
    """Of few windows of few elements, all of them at once: no hand-off is between directions. None where there are more."""
    if x.numel() > FEW or math.prod(size) > MANY:
        return None
    rank, places, inside = len(size), [], []
    for extent, n, by, low, apart in zip(x.shape[x.ndim - rank :], size, step, pad, gap, strict=True):
        count = (extent + 2 * low - apart * (n - 1) - 1) // by + 1
        if count < 1:
            return None
        first = torch.arange(count, device=x.device) * by - low
        table = first.unsqueeze(1) + torch.arange(n, device=x.device) * apart
        places.append(table.clamp(0, extent - 1))
        inside.append((table >= 0) & (table < extent))
    taken = _taken(x, places, inside if any(pad) else (), -math.inf)
    return torch.amax(taken, _within(taken, rank))


def _unequal_mean(x: Tensor, output: Sequence[int]) -> Tensor | None:
    """The means of few short windows that divide the last dimensions as evenly as it goes; None where there are more."""
    rank, batch = len(output), x.ndim - len(output)
    windows = [_places(x, x.shape[batch + d], count) for d, count in enumerate(output)]
    if x.numel() > FEW or math.prod(longest for *_, longest in windows) > MANY:
        return None

    inside = [torch.arange(longest, device=x.device) < (end - first).unsqueeze(1) for first, end, _, longest in windows]
    taken = _taken(widened(x), [places for *_, places, _ in windows], inside, 0.0)
    total = taken.sum([batch + 2 * d + 1 for d in range(rank)])
    for dim, (first, end, *_) in enumerate(windows):
        total = total / (end - first).to(total.dtype).reshape([-1 if d == dim else 1 for d in range(rank)])
    return total.to(x.dtype)


def _windows(x: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """The maxima of `count` windows that divide a dimension as evenly as it goes, and the first places that hold them."""
    first, _, places, _ = _places(x, x.shape[dim], count)
    if x.numel() <= FEW:  # read where they lie, which takes longer than a hand-off where there are more (175 us and 108)
        taken = aten.index.Tensor(x, [*[None] * dim, places])
    else:
        taken = x.index_select(dim, places.reshape(-1)).unflatten(dim, places.shape)
    values, steps = torch.max(taken, dim + 1)
    return values, steps + first.reshape([count if d == dim else 1 for d in range(x.ndim)])


def _adaptive_maximum(rank: int) -> Callable[..., Any]:
    """Columns first, then rows, then planes, so that the first of equals counts. torch-mlir takes equal windows of planes only;
    in volumes it passes over what is no number, and its least number is no infinity."""

    def decomposed(x: Tensor, output: Sequence[int]) -> tuple[Tensor, Tensor]:
        extents = x.shape[x.ndim - rank :]
        equal = all(n and size % n == 0 for size, n in zip(extents, output, strict=True))
        if not x.dtype.is_floating_point or (equal and rank == 2 and x.ndim == 4):
            return NotImplemented
        values, place = _windows(x, x.ndim - 1, output[-1])
        for number in range(1, rank):
            dim, elements = -1 - number, math.prod(extents[rank - number :])
            values, steps = _windows(values, x.ndim + dim, output[dim])
            place = steps * elements + place.gather(dim, steps)
        return values, place

    return decomposed


POOLING: dict[Any, Callable[..., Any]] = {
    aten.max_pool2d.default: _maximum(2, _max_plane),
    aten.max_pool3d.default: _maximum(3, _max_volume),
    aten.max_pool2d_with_indices.default: _with_places(2, aten.max_pool2d_with_indices),
    aten.max_pool3d_with_indices.default: _with_places(3, aten.max_pool3d_with_indices),
    **{
        op: _mean(rank)
        for rank, op in enumerate((aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default), 1)
    },
    aten._adaptive_avg_pool2d.default: _adaptive_mean(2),
    aten.adaptive_max_pool2d.default: _adaptive_maximum(2),
    aten.adaptive_max_pool3d.default: _adaptive_maximum(3),
    aten._adaptive_avg_pool3d.default: _adaptive_mean(3),
}
"""Operator → decomposition."""
