"""What a recorded run of a function consists of, and how it is run again without Python's code: items, nodes, references.

A node is straight-line work: segments of captured calls, and calls that PyTorch makes by itself. It ends where a value is read
(the next node depends on that value) or where the function returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from kitsune_mlir.runtime.results import ALIGNMENT, changed
from kitsune_mlir.windows.operators import Meta
from kitsune_mlir.windows.recording import Segment, rebuilt
from kitsune_mlir.windows.segments import LAUNCH_SECONDS, Compiled, Entry

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
        self._metas = [meta_of(result) for result in segment.results]
        self._on_gpu = any(tensor.is_cuda for tensor in (*segment.inputs, *segment.results))
        self._sizes = [tensor.element_size() for tensor in segment.inputs]
        self._quick: Callable[[Places, int], bool] | None = None

    @property
    def told(self) -> Hashable:
        """What another run has to have, to be the same."""
        return self.segment.key, self.inputs, tuple(self.segment.written)

    def __call__(self, places: Places, stream: int, compiled: Compiled, after: int | None) -> None:
        """Run it on the current stream, which has this handle."""
        if self._quick is not None and self._quick(places, stream):
            return
        inputs = [at(places, ref) for ref in self.inputs]
        entry, results = self.entry, self._made
        if entry.due(after):
            entry.compile(self.segment._replace(inputs=inputs, results=results()), compiled, LAUNCH_SECONDS)
        if entry.why:
            made = entry.in_pytorch(inputs)
            own = [one if one.stride() == meta.stride else None for one, meta in zip(made, self._metas, strict=True)]
            found = [one if same is None else same for one, same in zip(made, own, strict=True)]
            if None in own:
                found = [a if a is b else c.copy_(b) for a, b, c in zip(own, made, results(), strict=True)]
        else:
            found = results()
            entry.in_program(inputs, found, stream if self._on_gpu else 0)
            if self.segment.written:
                changed([inputs[n] for n in self.segment.written])
            elif entry.settled and self._quick is None:
                self._quick = self._unrolled(inputs)
        for number, result in zip(self.results, found, strict=True):
            places[number] = result

    def _made(self) -> list[torch.Tensor]:
        return [torch.empty_strided(m.shape, m.stride, dtype=m.dtype, device=m.device) for m in self._metas]

    def _unrolled(self, inputs: Sequence[torch.Tensor]) -> Callable[[Places, int], bool]:
        """A launch of the program, a line for each tensor: they are always like these. It gives False where it cannot be
        launched so."""
        ways = self.entry.placed
        if ways is None or (direct := ways[0].direct) is None or direct.strided or not direct.fits(inputs):
            return lambda places, stream: False
        program, into = ways
        names: dict[str, Any] = {"program": program, "at": at}
        lines = ["def run(places, stream):", "    direct = program.direct", "    if direct is None: return False"]
        addresses = []
        for n, (ref, size) in enumerate(zip(self.inputs, self._sizes, strict=True)):
            names[f"ref{n}"] = ref
            lines.append(f"    p{n} = places[{ref.number}].data_ptr() + {ref.offset * size}")
            lines.append(f"    if p{n} % {ALIGNMENT}: x{n} = at(places, ref{n}).clone(); p{n} = x{n}.data_ptr()")
            addresses.append(f"p{n}")
        for n, (number, meta) in enumerate(zip(self.results, self._metas, strict=True)):
            quick = getattr(torch._C._dynamo.guards, f"_empty_strided_{meta.device.type}", None)
            plain = functools.partial(torch.empty_strided, device=meta.device)
            names[f"e{n}"] = quick or (lambda shape, stride, dtype, plain=plain: plain(shape, stride, dtype=dtype))
            names[f"s{n}"], names[f"t{n}"], names[f"d{n}"] = meta[:3]
            lines.append(f"    places[{number}] = r{n} = e{n}(s{n}, t{n}, d{n})")
        made = [f"r{n}.data_ptr()" for n in into]
        pointers = "".join(f"{one}, " for one in (*addresses, *made))
        lines.append(f"    direct.run((*direct.weights, {pointers}), {'stream' if self._on_gpu else 0})")
        lines.append("    return True")
        exec("\n".join(lines), names)
        return names["run"]


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

    def __call__(self, places: Places, stream: int, compiled: Compiled, after: int | None) -> None:
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

    def __call__(self, places: Places, stream: int, compiled: Compiled, after: int | None) -> None:
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
        came: how often values were read for which there is no next node, or the run came here and went not on.
        output: leaves of what the function returns: each a `Ref`, or a value as it is; how they are nested; and what nests
            them, where that is quicker.
    """

    def __init__(self) -> None:
        self.items: list[Run | Call | Fresh] = []
        self.read: Read | None = None
        self.next: dict[Hashable, Node] = {}
        self.came: dict[Hashable, int] = {}
        self.output: tuple[list[Any], Any, Callable[[list[Any]], Any] | None] | None = None
