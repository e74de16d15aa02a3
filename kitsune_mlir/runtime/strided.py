"""Inputs that are not contiguous, as a program takes them: a part of a dense tensor, read where it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Strided", "extent_of", "span_of"]


def extent_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements of memory a tensor of these sizes and strides reaches over, from the first to the last one."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0


def span_of(tensor: Any) -> tuple[int, int]:
    """The bytes of a tensor's elements, from the first to the last; none, for one without elements."""
    low = tensor.data_ptr()
    return low, low + extent_of(tensor.shape, tensor.stride()) * tensor.element_size()


@dataclass(frozen=True)
class Strided:
    """An input within a dense tensor, whose memory a program is given.

    Attributes:
        stride: elements from one to the next along each dimension of the input.
        whole: extents of the dense tensor.
        first: the number of the input's first element in it.
    """

    stride: tuple[int, ...]
    whole: tuple[int, ...]
    first: int = 0

    def fits(self, tensor: Any) -> bool:
        """Whether a tensor of the input's sizes has its strides."""
        steps = tensor.stride()
        return steps == self.stride or all(n == 1 or a == b for n, a, b in zip(tensor.shape, steps, self.stride, strict=True))

    def is_there(self, tensor: Any, reach: int) -> bool:
        """Whether what a program reads of the dense tensor is in the storage of a tensor that `fits`.

        Args:
            reach: bytes of the dense tensor up to the last one that the program reads.
        """
        size, before = tensor.element_size(), tensor.storage_offset() - self.first
        return before >= 0 and before * size + reach <= tensor.untyped_storage().nbytes()

    def address(self, tensor: Any) -> int:
        """Where the dense tensor begins."""
        return tensor.data_ptr() - self.first * tensor.element_size()

    def part_of(self, tensor: Any, shape: Sequence[int]) -> Any:
        """A view of the dense tensor's own memory; of a copy where it is not contiguous."""
        dense = tensor.contiguous()
        return dense.as_strided(shape, self.stride, dense.storage_offset() + self.first)

    def copied(self, tensor: Any) -> Any:
        """The tensor within a dense one of its own."""
        return tensor.new_empty(math.prod(self.whole)).as_strided(tensor.shape, self.stride, self.first).copy_(tensor)
