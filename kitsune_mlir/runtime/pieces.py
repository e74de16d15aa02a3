"""Results of several calls in one piece of memory: to allocate one is as much work as to allocate a piece for all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["Piece", "pieces_of", "results_in"]

TOGETHER, SPACING = 1 << 14, 256
"""Bytes of a result of a call, up to which those of several calls lie in one piece of memory; and what the bytes from one to
the next are a multiple of, as allocators have it."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """How a result of several calls lies in one piece of memory.

    Attributes:
        shape, stride, dtype: of the result.
        step, each: bytes and elements from one call's to the next one's.
    """

    shape: Sequence[int]
    stride: Sequence[int]
    dtype: Any
    step: int
    each: int

    def first(self, whole: Any) -> tuple[int, int]:
        """Where the first call's result begins in a piece of memory, and bytes from one call's to the next one's."""
        return whole.data_ptr(), self.step


def pieces_of(results: Sequence[tuple[Any, Any, Any]]) -> list[Piece] | None:
    """How results of these shapes, strides and dtypes lie, where those of several calls lie in one piece of memory; None where
    they do not."""
    sizes = [max(1, math.prod(shape)) * dtype.itemsize for shape, _, dtype in results]
    if not sizes or max(sizes) > TOGETHER:
        return None
    steps = [-(-size // SPACING) * SPACING for size in sizes]
    return [Piece(*one, step, step // one[2].itemsize) for one, step in zip(results, steps, strict=True)]


def results_in(pieces: Sequence[Piece], wholes: Sequence[Any], count: int) -> list[list[Any]]:
    """The results of so many calls, whose memory was made by `DirectCall.pieces`."""
    columns = [_apart(whole, count, one.shape, one.stride, one.each) for one, whole in zip(pieces, wholes, strict=True)]
    if len(columns) == 1:
        return [[result] for result in columns[0]]
    return [[*results] for results in zip(*columns, strict=True)]


def _apart(whole: Any, count: int, shape: Sequence[int], stride: Sequence[int], each: int) -> Sequence[Any]:
    """So many tensors of these sizes and strides in one piece of memory, `each` elements from one to the next. Below autograd,
    which would know them as views: they are nobody's."""
    import torch

    core = torch._C
    keys = core.DispatchKeySet(core.DispatchKey.ADInplaceOrView)
    with core._AutoDispatchBelowAutograd(), core._ExcludeDispatchKeyGuard(keys), core._DisableTorchDispatch():
        return torch.as_strided(whole, (count, *shape), (each, *stride)).unbind(0)
