"""What peers have that know the path beforehand: the values that Python reads in a run, to run the same without reading;
and streams for the branches of a program, so that its graph has the edges of its data alone.

    answers = Answers()
    with answers.noted():
        model(x)                               # any eager program, with branches on values
    with answers.given(), Branches(16):
        model(x)                               # reads nothing: may be captured into a CUDA graph
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kitsune_mlir.windows.operators import Kind, kind_of

__all__ = ["Answers", "Branches", "Lanes"]

_READS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__"}


class _Reads(TorchFunctionMode):
    def __init__(self, answers: Answers):
        super().__init__()
        self._answers = answers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _READS:
            return func(*args, **(kwargs or {}))
        return self._answers.read(functools.partial(func, *args, **(kwargs or {})))


class Answers:
    """The values that a program reads, in order. Attribute `values`: those of the run that was noted."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._next: int | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is read in the block."""
        self.values.clear()
        self._next = None
        with _Reads(self):
            yield

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Give what was noted to whoever reads in the block, in the same order.

        Raises:
            RuntimeError: more is read than was noted, or less: the program is another one.
        """
        self._next = 0
        with _Reads(self):
            yield
        if self._next != len(self.values):
            raise RuntimeError(f"{len(self.values)} values were noted, and {self._next} read")

    def read(self, look: Any) -> Any:
        """The next value; `look` gives it where it is not known."""
        if self._next is None:
            self.values.append(look())
            return self.values[-1]
        if self._next == len(self.values):
            raise RuntimeError(f"{len(self.values)} values were noted, and one more is read")
        self._next += 1
        return self.values[self._next - 1]


class Lanes:
    """Deals tasks out to lanes (streams): behind what a task reads where nothing followed there yet, else in turns."""

    def __init__(self, count: int):
        self._tails = [-1] * count
        self._lane_of: list[int] = []

    def place(self, sources: Sequence[int]) -> tuple[int, list[int]]:
        """The next task's lane, and which of the earlier tasks it depends on are on other lanes."""
        task = len(self._lane_of)
        behind = (self._lane_of[one] for one in reversed(sources) if self._tails[self._lane_of[one]] == one)
        lane = next(behind, task % len(self._tails))
        self._lane_of.append(lane)
        self._tails[lane] = task
        return lane, [one for one in sources if self._lane_of[one] != lane]


class Branches(TorchDispatchMode):
    """Calls of a block on several CUDA streams, each behind those only that touch the same memory.

    Made for capture into a graph: whatever calls give stays alive with this object, so no memory is used twice.
    """

    def __init__(self, count: int):
        super().__init__()
        self._now = torch.cuda.current_stream()
        self._streams = [torch.cuda.Stream() for _ in range(count)]
        self._lanes = Lanes(count)
        self._events: list[Any] = []
        self._touched = Touched()
        self._kept: list[Any] = []

    def __enter__(self) -> Branches:
        for stream in self._streams:
            stream.wait_stream(self._now)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for stream in self._streams:
            self._now.wait_stream(stream)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kind_of(func)[0] is Kind.VIEW:
            return func(*args, **kwargs)
        sources = self._touched.sources(func, args, kwargs)
        lane, others = self._lanes.place(sources)
        stream = self._streams[lane]
        for one in others:
            stream.wait_event(self._events[one])
        with torch.cuda.stream(stream):
            out = func(*args, **kwargs)
        self._events.append(stream.record_event())
        self._touched.note(func, args, kwargs, out)
        self._kept += [args, kwargs, out]
        return out


class Touched:
    """Which calls touched which storages last."""

    def __init__(self) -> None:
        self._wrote: dict[int, int] = {}
        self._read: dict[int, list[int]] = {}
        self._count = 0

    def sources(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
        """The earlier calls that the next one has to come behind, in order."""
        written = self._written(func, args, kwargs)
        found: set[int] = set()
        for place in {*self._places((args, kwargs)), *written}:
            found |= {self._wrote[place]} if place in self._wrote else set()
            found |= {*self._read.get(place, ())} if place in written else set()
        return sorted(found)

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """A call was made, and gave `out`."""
        given, written = self._places((args, kwargs)), self._written(func, args, kwargs)
        for place in given:
            self._read.setdefault(place, []).append(self._count)
        for place in {*written, *(self._places(out) - given)}:
            self._wrote[place], self._read[place] = self._count, []
        self._count += 1

    def _written(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> set[int]:
        if not func._schema.is_mutable:
            return set()
        names = [one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
        order = {one.name: n for n, one in enumerate(func._schema.arguments)}
        return self._places([kwargs[n] if n in kwargs else args[order[n]] for n in names])

    def _places(self, given: Any) -> set[int]:
        return {one.untyped_storage().data_ptr() for one in tree_leaves(given) if isinstance(one, Tensor)}
