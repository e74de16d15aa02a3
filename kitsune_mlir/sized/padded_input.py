"""Inputs of a call as a program for larger sizes takes them: copied into buffers that are kept."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.runtime.copy_kernel import ALIGNED, MOST_BYTES, MOST_COPIES, Copies, Copy
from kitsune_mlir.sized.taker import taker

__all__ = ["KEPT", "CopiedOnce", "CopiedTogether", "PaddedInput", "copier", "copies_into"]

Pieces = tuple[int, int, int, int]
"""Address, bytes of a piece, how many there are, bytes from one to the next: all of `Copy` but where they come from."""
Place = tuple[Tensor, Tensor | None, Pieces | None]

KEPT: set[int] = set()
"""Where buffers lie: a thread's calls on a stream find them in the same place."""
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
        pieces that those of a contiguous input are copied to; None where there is no such."""
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
            KEPT.add(whole.data_ptr())
        part = whole
        for dim, n in enumerate(arg.shape):
            if n != self.size[dim]:
                part = part.narrow(dim, 0, n)
        found = buffers[place, arg.shape] = whole, part, _pieces(part)
        return found


class CopiedTogether:
    """What a program is called with for several inputs on a GPU, where each copy is a launch: one copies what it can.

    Args:
        inputs: by number of the argument.
    """

    def __init__(self, inputs: Sequence[tuple[int, PaddedInput]]):
        self._inputs = tuple(inputs)
        self._known = threading.local()  # of each thread, whose buffers are its own

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedTogether, (self._inputs,)

    def __call__(self, values: Any, args: list[Any]) -> None:
        """Put larger inputs in the place of a call's arguments.

        Args:
            values: which say all sizes of those inputs.
        """
        first = args[self._inputs[0][0]]
        place = _place(first.device) if first.is_cuda else (0, 0, 0)
        plans: dict[Any, Any] = self._known.__dict__
        known = plans.get((values, place))
        if known is None:
            return self._copy(values, args, place)
        wholes, copies = known
        sources, bits = [], 0
        for (n, how), whole in zip(self._inputs, wholes, strict=True):
            arg = args[n]
            if whole is None and arg.stride() == how.stride:
                continue
            if whole is None or not _lies_plainly(arg):
                return self._copy(values, args, place)
            sources.append(arg.data_ptr())
            bits |= sources[-1]
        if bits % ALIGNED:
            return self._copy(values, args, place)
        copies(sources)
        for (n, _), whole in zip(self._inputs, wholes, strict=True):
            if whole is not None:
                args[n] = whole
        return None

    def _copy(self, values: Any, args: list[Any], place: tuple[int, int, int]) -> None:
        """The same for any inputs; what one launch copies here it copies at the next call, too."""
        wholes, together, apart = list[Tensor | None](), list[Copy](), False
        for n, how in self._inputs:
            arg = args[n]
            args[n], part, pieces = how.place(arg)
            wholes.append(None if part is None else args[n])
            if part is None:
                continue
            if pieces is None or not _lies_plainly(arg):
                part.copy_(arg)
                apart = True
            else:
                together.append((arg.data_ptr(), *pieces))
        for start in range(0, len(together), MOST_COPIES):
            some = together[start : start + MOST_COPIES]
            copies = Copies(some, *place[:2])
            copies([source for source, *_ in some])
            if len(some) == len(together) and not apart and all(source % ALIGNED == 0 for source, *_ in some):
                known: dict[Any, Any] = self._known.__dict__
                if len(known) > MOST_PARTS:
                    known.clear()
                known[values, place] = wholes, copies


def copies_into(
    inputs: Sequence[tuple[int, PaddedInput]], args: Sequence[Any], larger: Sequence[Any]
) -> Callable[[Sequence[Any]], bool] | None:
    """What copies a call's arguments into the buffers that an earlier call's were copied into, on the same stream: on a GPU in
    one launch. It says whether it could: not while a CUDA graph is captured, or inputs lie in another way. None where one of
    the earlier call's inputs was taken as it is, and where it takes more than one launch.

    Args:
        inputs: by number of the argument.
        args: of the earlier call. larger: what was in their place.
    """
    numbers = [n for n, _ in inputs]
    parts, each = list[tuple[int, Tensor]](), list[Copy]()
    for n, how in inputs:
        whole, part, pieces = how.place(args[n])
        if part is None or whole is not larger[n]:
            return None
        parts.append((n, part))
        if pieces is not None:
            each.append((args[n].data_ptr(), *pieces))
    if not any(_on_gpu(part) for _, part in parts):

        def one_by_one(args: Sequence[Any]) -> bool:
            for n, part in parts:
                part.copy_(args[n])
            return True

        return one_by_one
    index, stream, capture = _place(larger[numbers[0]].device)
    if capture or _addresses([args[n] for n in numbers]) is None or not 0 < len(each) == len(numbers) <= MOST_COPIES:
        return None
    return CopiedOnce(Copies(each, index, stream), taker(numbers))


class CopiedOnce:
    """Copies a call's arguments in one launch; says whether it could (`copies_into`).

    Attributes:
        copies: makes the launch.
        take: takes what is copied out of the arguments.
    """

    def __init__(self, copies: Copies, take: Callable[[Sequence[Any]], Sequence[Any]]):
        self.copies, self.take = copies, take

    def __call__(self, args: Sequence[Any]) -> bool:
        sources = _addresses(self.take(args))
        if sources is None or torch._C._cuda_isCurrentStreamCapturing():
            return False
        self.copies(sources)
        return True


def copier(places: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], None]:
    """What copies tensors of these sizes, strides and types to these places: on a GPU in one launch, where it can be."""

    def one_by_one(values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(places, values)  # type: ignore[attr-defined]

    sizes = [place.nbytes for place in places]
    if not (0 < len(places) <= MOST_COPIES and all(_on_gpu(one) and one.is_contiguous() for one in places)):
        return one_by_one
    if not all(0 < size < MOST_BYTES for size in sizes):
        return one_by_one
    device, known = places[0].device, dict[int, Copies]()

    def together(values: Sequence[Tensor]) -> None:
        sources = _addresses(values)
        if sources is None:
            return one_by_one(values)
        index, stream, _ = _place(device)
        copies = known.get(stream)
        if copies is None:
            each = [(source, place.data_ptr(), n, 1, 0) for source, place, n in zip(sources, places, sizes, strict=True)]
            copies = known[stream] = Copies(each, index, stream)
        return copies(sources)

    return together


def _addresses(values: Sequence[Tensor]) -> list[int] | None:
    """Where tensors lie, for one launch that copies all; None where one lies in another way, or at no multiple of `ALIGNED`."""
    found, bits = [], 0
    for value in values:
        if not value.is_contiguous() or value.is_neg() or value.is_conj():
            return None
        pointer = value.data_ptr()
        found.append(pointer)
        bits |= pointer
    return None if bits % ALIGNED else found


def _lies_plainly(arg: Tensor) -> bool:
    """Whether a tensor's elements are in memory as they follow each other."""
    return arg.is_contiguous() and not (arg.is_conj() or arg.is_neg())


def _pieces(part: Tensor) -> Pieces | None:
    """Where elements of a contiguous tensor lie as this one holds them; None if not in pieces that are equally far apart."""
    dims = [(n, stride) for n, stride in zip(part.shape, part.stride(), strict=True) if n != 1]
    size = part.element_size()
    piece, count, pitch = size, 1, 0
    while dims and dims[-1][1] * size == piece:
        piece *= dims.pop()[0]
    if dims:
        count, pitch = dims[-1][0], dims[-1][1] * size
        for n, stride in reversed(dims[:-1]):
            if stride * size != pitch * count:
                return None
            count *= n
    if not 0 < piece * count < MOST_BYTES or (count > 1 and pitch < piece):
        return None
    return part.data_ptr(), piece, count, pitch


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


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
