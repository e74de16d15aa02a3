"""Tensors with given strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["same_strides", "with_strides", "without_views"]

without_views = torch._C._AutoDispatchBelowADInplaceOrView
"""While it is entered, what looks at another tensor's memory is a tensor of its own to autograd."""


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
