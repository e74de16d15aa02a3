"""Tensors with given strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["NoViews", "reinterpret", "reinterpreted", "same_strides", "with_strides", "without_views"]

without_views = torch._C._AutoDispatchBelowADInplaceOrView
"""While it is entered, what looks at another tensor's memory is a tensor of its own to autograd."""


reinterpret: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)
"""PyTorch's own function of a tensor, size, strides and offset that makes no view; None in a version that has none."""


def reinterpreted(tensor: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor's memory with another size and other strides, from where it begins: no view of it to autograd."""
    if reinterpret is not None:  # what torch.compile's own code does it with, in half the time
        return reinterpret(tensor, size, stride, 0)
    with without_views():
        return tensor.as_strided(size, stride)


def same_strides(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two tensors of this size have the same strides; in dimensions of one element, and without elements, any do."""
    if 0 in size:
        return True
    return all(n == 1 or a == b for n, a, b in zip(size, one, other, strict=True))


def with_strides(tensor: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A tensor with these strides, itself if it has them."""
    if same_strides(size, tensor.stride(), stride):
        return tensor
    # Where one element stands for many (`expand`), one of them is copied.
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)
    small = [1 if step == 0 else n for n, step in zip(size, stride, strict=True)]
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    memory = torch.empty(extent, dtype=tensor.dtype, device=tensor.device)
    memory.as_strided(small, stride).copy_(tensor[once])
    return memory.as_strided(size, stride)


class NoViews:
    """Calls a function and gives outputs that are views of what it made as tensors of their own: a view that was made without
    gradients, as compiled code is run, may not be changed in place with them.

    Args:
        run: the function.
        numbers: of the outputs that may be views.
    """

    def __init__(self, run: Callable[..., Any], numbers: Sequence[int]):
        self._run, self._numbers = run, tuple(numbers)

    def __call__(self, *args: Any) -> list[Any]:
        """The outputs."""
        outputs = list(self._run(*args))
        for n in self._numbers:
            value = outputs[n]
            if type(value) is Tensor and value.layout == torch.strided and value._is_view():
                outputs[n] = reinterpreted(value, value.shape, value.stride())
        return outputs
