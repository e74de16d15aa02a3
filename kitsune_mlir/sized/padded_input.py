"""Inputs of a call as a program for larger sizes takes them: copied into buffers that are kept."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["PaddedInput"]

MOST_PARTS = 4096
"""Shapes of which a view of a buffer is kept, by thread."""


@dataclasses.dataclass(frozen=True)
class PaddedInput:
    """An input with dimensions that are padded.

    Attributes:
        size, stride: as the program takes it.
        kept: of each thread, by stream and shape: a buffer, and a view of it as large as what is given.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    kept: Any = dataclasses.field(default_factory=threading.local, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return PaddedInput, (self.size, self.stride)

    def buffers(self) -> Sequence[Tensor]:
        """The buffers that this thread has."""
        return [held for held in self.kept.__dict__.values() if isinstance(held, Tensor)]

    def example(self, arg: Tensor) -> Tensor:
        """What the program is compiled with."""
        return torch.empty_strided(self.size, self.stride, dtype=arg.dtype, device=arg.device)

    def __call__(self, arg: Tensor) -> Tensor:
        """What the program is called with. Elements behind valid ones are zero, or have been valid before."""
        shape = arg.shape
        if shape == self.size and arg.stride() == self.stride:
            return arg
        place = _place(arg.device) if arg.is_cuda else None
        buffers = self.kept.__dict__
        found = buffers.get((place, shape))
        if found is None:
            found = self._part(arg, place, buffers)
        whole, part = found
        part.copy_(arg)
        return whole

    def _part(self, arg: Tensor, place: Any, buffers: dict[Any, Any]) -> tuple[Tensor, Tensor]:
        """A buffer, and where elements of an input of this shape lie in it."""
        if len(buffers) > MOST_PARTS:
            buffers.clear()
        whole = buffers.get(place)
        if whole is None:
            whole = buffers[place] = _zeros(self.size, arg).as_strided(self.size, self.stride)
        part = whole
        for dim, n in enumerate(arg.shape):
            if n != self.size[dim]:
                part = part.narrow(dim, 0, n)
        buffers[place, arg.shape] = whole, part
        return whole, part


def _place(device: torch.device) -> tuple[int, int, int]:
    """Whose buffer a call on a GPU takes: the device's, the current stream's, and the capture's, if there is one."""
    index = device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    if not torch._C._cuda_isCurrentStreamCapturing():
        return index, stream, 0
    from kitsune_mlir.runtime.driver import capture_id

    return index, stream, capture_id(stream) or 0


class _Apart:
    """Memory of the driver's, as PyTorch takes it."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _zeros(size: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of a type, on a device.

    A graph that is being captured would fill memory of its own anew in every replay. It gets memory that was filled once;
    who has the graph is not known, so nobody gives it back.
    """
    if not (like.is_cuda and torch._C._cuda_isCurrentStreamCapturing()):
        return torch.zeros(size, dtype=like.dtype, device=like.device)
    from kitsune_mlir.runtime.driver import cleared_apart

    count = like.element_size() * torch.Size(size).numel()
    apart = torch.as_tensor(_Apart(cleared_apart(count), count), device=like.device)
    return apart.view(like.dtype).view(size)
