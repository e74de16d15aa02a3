"""The first elements of a result along each dimension, as a caller wants them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kitsune_mlir.sized.restride import reinterpreted, same_strides, with_strides, without_views

__all__ = ["FirstElements"]


class FirstElements:
    """Takes the first elements along each dimension, with given strides.

    Args:
        size, stride: what the caller wants.
    """

    def __init__(self, size: Sequence[int], stride: Sequence[int]):
        self.size, self.stride = tuple(size), tuple(stride)
        self._as_it_lies: tuple[int, ...] | None = None  # strides of a result that needs no copy

    def need_no_copy(self, lies: Sequence[int]) -> bool:
        """Whether a result with these strides has them where the caller wants them."""
        return same_strides(self.size, lies, self.stride)

    def __call__(self, value: Tensor) -> Tensor:
        lies = value.stride()
        if lies != self._as_it_lies and self.need_no_copy(lies):
            self._as_it_lies = lies
        if lies == self._as_it_lies:  # strides of dimensions of one element, too: who guards a size guards them
            return reinterpreted(value, self.size, self.stride)
        with without_views():
            for dim, n in enumerate(self.size):
                if value.shape[dim] != n:
                    value = value.narrow(dim, 0, n)
            return with_strides(value, self.size, self.stride)
