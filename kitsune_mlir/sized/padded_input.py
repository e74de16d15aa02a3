"""Inputs of a call as a program for larger sizes takes them: copied into buffers that are kept."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["PaddedInput", "copied"]

Place = tuple[Tensor, Tensor | None, Sequence[Tensor] | None]

MOST_PIECES = 8
"""Of an input, up to which it is copied with others."""
MOST_BYTES = 1 << 15
"""Of a piece, up to which it is: one block copies up to 65,536 elements then, which for 1,151 rows of 64 and 4,000 edges took
4 us longer than two launches on an H100, and 1.5 us less for 8 and 30."""
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
        known = None if arg.is_cuda or shape == self.size else self.kept.__dict__.get((None, shape))
        whole, part, _ = known or self.place(arg)
        if part is not None:
            part.copy_(arg)
        return whole

    def place(self, arg: Tensor) -> Place:
        """As a call, with nothing copied: what the program is called with, where an input is to be copied to, and that place as
        words in pieces that lie together, which those of a contiguous input are copied to; None where there is no such."""
        shape = arg.shape
        if shape == self.size and arg.stride() == self.stride:
            return arg, None, None
        place = _place(arg.device) if arg.is_cuda else None
        buffers = self.kept.__dict__
        found = buffers.get((place, shape))
        return self._part(arg, place, buffers) if found is None else found

    def _part(self, arg: Tensor, place: Any, buffers: dict[Any, Any]) -> Place:
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
        found = buffers[place, arg.shape] = whole, part, _words(part, _pieces(part))
        return found


def copied(inputs: Sequence[tuple[PaddedInput, Tensor]]) -> list[Tensor]:
    """What a program is called with for several inputs on a GPU, where each copy is a launch: one copies what it can."""
    found, to, of = [], list[Tensor](), list[Tensor]()
    for how, arg in inputs:
        whole, part, pieces = how.place(arg)
        found.append(whole)
        if part is None:
            continue
        words = _words(arg, len(pieces)) if pieces is not None and arg.is_contiguous() else None
        if pieces is None or words is None:
            part.copy_(arg)
        else:
            to += pieces
            of += words
    if to:
        torch._foreach_copy_(to, of)  # type: ignore[attr-defined]
    return found


def _pieces(part: Tensor) -> int:
    """How many pieces that lie together, as its elements follow each other, a tensor has; 0 if its order is another."""
    size, step = 1, 1
    for n, stride in zip(reversed(part.shape), reversed(part.stride()), strict=True):
        if n == 1:
            continue
        if stride < step:
            return 0
        if stride != size:  # a piece ends here
            break
        size, step = size * n, stride
    return part.numel() // size if size else 0


def _words(tensor: Tensor, pieces: int) -> Sequence[Tensor] | None:
    """A tensor's memory as so many pieces of words of four bytes; None where it is not such, or in many."""
    size = tensor.numel() * tensor.element_size()
    if not 0 < pieces <= MOST_PIECES or size % (4 * pieces) or size > pieces * MOST_BYTES or tensor.data_ptr() % 4:
        return None
    if tensor.dim() == 0 or tensor.stride(-1) != 1 or tensor.storage_offset() * tensor.element_size() % 4:
        return None
    if tensor.shape[-1] * tensor.element_size() % 4 or tensor.is_complex():
        return None
    try:
        return tensor.view(torch.int32).view(pieces, -1).unbind(0)
    except RuntimeError:  # pieces have other distances along other dimensions
        return None


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
