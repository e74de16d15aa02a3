"""What a recorded run of a function consists of, and how it is run again without Python's code: items, nodes, references.

A node is straight-line work: segments of captured calls, and calls that PyTorch makes by itself. It ends where a value is read
(the next node depends on that value) or where the function returns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from kitsune_mlir.runtime.results import changed
from kitsune_mlir.windows.operators import Meta
from kitsune_mlir.windows.recording import Segment, rebuilt
from kitsune_mlir.windows.segments import Compiled, Entry

__all__ = ["READERS", "Call", "Fresh", "Node", "Places", "Read", "Ref", "Run", "at", "hashed", "meta_of"]

Places = list[Any]
"""The tensors of a run by number: arguments, tensors from outside, results."""

READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    name: getattr(torch.Tensor, name) for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
}
"""What gives a value to Python."""


class Ref(NamedTuple):
    """A tensor of a run: the one of this number, or a view of it.

    Attributes:
        shape, stride, offset: of the view, in elements from where the tensor begins; shape None: the tensor itself.
    """

    number: int
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0


def at(places: Places, ref: Ref) -> torch.Tensor:
    """The tensor that is referred to."""
    tensor = places[ref.number]
    if ref.shape is None:
        return tensor
    return tensor.as_strided(ref.shape, ref.stride, tensor.storage_offset() + ref.offset)


def hashed(value: Any) -> Hashable:
    """A value that was read, to compare: 1, 1.0 and True differ, nan is nan."""
    if isinstance(value, list):
        return tuple(map(hashed, value))
    return (float, value.hex()) if type(value) is float else (type(value), value)


def meta_of(tensor: torch.Tensor) -> Meta:
    """A tensor without its values."""
    return Meta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


class Run:
    """A segment.

    Attributes:
        segment: without its tensors.
        inputs: where they are.
        results: their numbers.
    """

    def __init__(self, entry: Entry, segment: Segment, inputs: Sequence[Ref], results: Sequence[int]):
        self.entry, self.inputs, self.results = entry, tuple(inputs), tuple(results)
        self.segment = segment._replace(inputs=(), results=())
        self._metas = [(tuple(r.shape), r.stride(), r.dtype, r.device) for r in segment.results]
        self._plain = [ref.number for ref in inputs] if all(ref.shape is None for ref in inputs) else None

    @property
    def told(self) -> Hashable:
        """What another run has to have, to be the same."""
        return self.segment.key, self.inputs, tuple(self.segment.written)

    def __call__(self, places: Places, compiled: Compiled, after: int | None) -> None:
        """Run it on the current stream."""
        own = self._plain
        inputs = [places[n] for n in own] if own is not None else [at(places, ref) for ref in self.inputs]
        entry = self.entry
        if entry.due(after):
            entry.compile(self.segment._replace(inputs=inputs, results=self._made()), compiled)
        if entry.why:
            results = [
                one if one.stride() == meta[1] else torch.empty_strided(*meta[:2], dtype=meta[2], device=meta[3]).copy_(one)
                for one, meta in zip(entry.in_pytorch(inputs), self._metas, strict=True)
            ]
        else:
            results = self._made()
            entry.in_program(inputs, results)
            if self.segment.written:
                changed([inputs[n] for n in self.segment.written])
        for number, result in zip(self.results, results, strict=True):
            places[number] = result

    def _made(self) -> list[torch.Tensor]:
        return [torch.empty_strided(*meta[:2], dtype=meta[2], device=meta[3]) for meta in self._metas]


class Call(NamedTuple):
    """A call that is not captured: PyTorch makes it. `refs`: its tensors; `results`: numbers of what it gives."""

    func: Any
    args: Any
    kwargs: tuple[tuple[str, Any], ...]
    refs: tuple[Ref, ...]
    results: tuple[int, ...]

    @property
    def told(self) -> Hashable:
        """What another call has to have, to be the same."""
        return self[:4]

    def __call__(self, places: Places, compiled: Compiled, after: int | None) -> None:
        """Make it."""
        tensors = iter([at(places, ref) for ref in self.refs])
        args = rebuilt(self.args, tensors)
        made = self.func(*args, **{name: rebuilt(value, tensors) for name, value in self.kwargs})
        results = (made,) if isinstance(made, torch.Tensor) else made
        for number, result in zip(self.results, results, strict=True):
            places[number] = result


class Fresh(NamedTuple):
    """A tensor that Python made of its own numbers, which the run may change."""

    number: int
    value: torch.Tensor

    @property
    def told(self) -> Hashable:
        """What another one has to have, to be the same."""
        return meta_of(self.value)

    def __call__(self, places: Places, compiled: Compiled, after: int | None) -> None:
        """Make it."""
        places[self.number] = self.value.clone()


class Read(NamedTuple):
    """What decides how a run goes on: the value of a tensor, or (without a reader) shape, strides and type of one."""

    ref: Ref
    reader: str = ""

    def __call__(self, places: Places) -> Hashable:
        """The value."""
        tensor = at(places, self.ref)
        return hashed(READERS[self.reader](tensor)) if self.reader else meta_of(tensor)


class Node:
    """See the module.

    Attributes:
        items: what is run, in order.
        read: what decides how it goes on; None where the function returns, or the run was not recorded to its end.
        next: nodes by the value that is read.
        output: leaves of what the function returns: each a `Ref`, or a value as it is; and how they are nested.
    """

    def __init__(self) -> None:
        self.items: list[Run | Call | Fresh] = []
        self.read: Read | None = None
        self.next: dict[Hashable, Node] = {}
        self.output: tuple[list[Any], Any] | None = None
