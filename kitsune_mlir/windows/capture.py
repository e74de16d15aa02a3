"""`window()`: calls of any eager PyTorch program become segments, which are compiled once and appended to a window."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.taken import taking
from kitsune_mlir.windows.balance import Balance, Place, place_of
from kitsune_mlir.windows.hazards import BOTH, READ
from kitsune_mlir.windows.reads import LENDERS, Reads
from kitsune_mlir.windows.recorder import Recorder
from kitsune_mlir.windows.recording import Segment
from kitsune_mlir.windows.segments import Segments
from kitsune_mlir.windows.task import extent
from kitsune_mlir.windows.window import Window

__all__ = ["SHORTEST", "Capture", "forget", "known_segments", "window"]

SHORTEST = 8
"""Calls after which a module's end is the end of a segment, so that layers which are alike are one segment."""

_segments = Segments()


def window(
    size: int = 128,
    back_end: str = "auto",
    threads: int | None = 0,
    after: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Capture:
    """Run what PyTorch is asked for in a `with` block in segments, through a window.

        with kitsune_mlir.window() as captured:
            y = model(x)          # any eager program: loops, branches on values, views, changes in place
        print(captured.explain())

    Tensors are ordinary ones, whose values are there when they are looked at within the block, and after it. Only the thread
    that opened the block is captured.

    Capturing costs Python more for a call than PyTorch does. Where that is more than compiled segments can save at best, as
    measured, the block is left to PyTorch in its midst, and after some such blocks those that begin at the same line are not
    captured at all, but for one now and then; the logger "kitsune_mlir.windows" says so once, `explain` for each.

    Args:
        size, back_end, threads: as of `Window`.
        after: how often a segment has to come before it is compiled, and the block is captured to its end, whatever that
            costs; None: when PyTorch has spent as long on it as compiling takes.
        options: of `kitsune_mlir.compile`.
    """
    return Capture(Window(size, back_end, threads), after, options, place_of(1))


def forget() -> None:
    """Forget the segments of all windows, with their programs."""
    _segments.clear()


def known_segments() -> Segments:
    """The segments of all windows."""
    return _segments


class Capture(Recorder):
    """See `window`.

    Attributes:
        window: what segments are appended to.
        eager: how many PyTorch ran at once, by reason.
        segments: how many segments were appended, by who runs them and why.
        aside: why PyTorch runs what is left of the block, or all of it; empty where it does not.

    Args:
        place: where the block begins.
    """

    def __init__(self, window: Window, after: int | None, options: Mapping[str, Any] | None, place: Place):
        super().__init__(after, options)
        self.window = window
        self.aside, self._place, self._balance, self._modes = "", place, Balance(), False
        self.eager: Counter[str] = Counter()
        self.segments: Counter[str] = Counter()
        self.reads = Reads(self.read)
        self._hook: Any = None
        self._programs: Any = None

    def __enter__(self) -> Capture:
        if self._after is None and self._place.skip():
            self.aside = "capturing the blocks before was slower than PyTorch"
            return self
        self._modes = True
        self._programs = taking(self._program)
        self._programs.__enter__()
        self._hook = torch.nn.modules.module.register_module_forward_hook(self._module_ends)
        self._calls.__enter__()
        self.reads.__enter__()
        self._depth = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._programs is None:
            return
        self._leave(*error)
        self._hook.remove()
        self._programs.__exit__(*error)
        self.cut()
        self.window.flush()
        if self._after is None:
            self._place.ended(self.aside or self._balance.loses(True))
        if error[0] is None:
            self.window.raise_lost()

    def explain(self) -> str:
        """What was captured and what was not, in words."""
        lines = [f"{self.taken} calls were captured in {sum(self.segments.values())} segments"]
        lines += [f"  {count} segments: {who}" for who, count in self.segments.most_common()]
        lines += [f"  {count} calls were run by PyTorch at once: {why}" for why, count in self.eager.most_common()]
        lines += [f"  PyTorch ran the rest: {self.aside}"] if self.aside else []
        return "\n".join(lines)

    def take(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.aside:
            return func(*args, **kwargs)
        start = self._balance.now()
        try:
            return super().take(func, args, kwargs)
        finally:
            self._balance.captured(start)

    def ended(self, segment: Segment) -> None:
        entry, balance, start = _segments.of(segment), self._balance, time.perf_counter()
        new = entry.program is None
        call = entry.call(segment, self.compiled, self._after)
        if new and entry.program is not None:
            balance.ran(start)

        def run(stream: int) -> None:
            start = time.perf_counter()
            call.run(stream)
            balance.ran(start)

        self.segments[f"PyTorch, {entry.why}" if entry.why else "a program"] += 1
        self.window.append_call(call._replace(run=run))
        balance.segment(entry)

    def _step_aside(self) -> None:
        """Leave the block to PyTorch, if capturing it loses."""
        if self._after is None and not self.aside and (why := self._balance.loses()):
            self.cut()
            with self.off():
                self.window.flush()
            self.aside = why

    def _leave(self, *error: Any) -> None:
        """Take calls no more."""
        if self._modes:
            self._modes = False
            self.reads.__exit__(*error)
            self._calls.__exit__(*error)

    def settle(self, tensors: Sequence[torch.Tensor], mode: int) -> None:
        """Make tensors readable, or with mode BOTH writable, by others."""
        if self._recording.ops and self._recording.touches(tensors, mode != READ):
            self.cut()
        apart, start = self._balance.apart, time.perf_counter()
        with self.off():
            self.window.wait_for([extent(tensor, mode) for tensor in tensors if tensor.layout == torch.strided])
        self._balance.apart = apart  # what ran meanwhile is a part of the waiting
        self._balance.ran(start)
        self._step_aside()

    def read(self, name: str, args: Sequence[Any]) -> None:
        """Python looks at a tensor's memory past all operators."""
        tensors = [t for t in args if isinstance(t, torch.Tensor) and t.layout == torch.strided and not t.is_meta]
        if tensors and not self._off and not self.aside:
            self.eager[f"Tensor.{name}"] += 1
            self.settle(tensors, BOTH if name in LENDERS else READ)
            if name in LENDERS:
                self._lent |= {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}

    def _eager(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Any], why: str) -> Any:
        self.eager[f"{func}: {why}"] += 1
        writes = func._schema.is_mutable or "running statistics" in why
        self.settle(tensors, BOTH if writes else READ)
        start = time.perf_counter()
        made = func(*args, **kwargs)
        self._balance.ran(start)
        return made

    def _elsewhere(self, tensor: torch.Tensor) -> str:
        """As there; host calls of a GPU's window are run when they are appended."""
        self._gpu = self._gpu or (self.window.device if tensor.is_cuda else "")
        return super()._elsewhere(tensor)

    def _program(self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], into: Any) -> Any:
        """A call of a program: it is appended too."""
        if self._off or self.aside:
            return NotImplemented
        self.cut()
        with self.off():
            output = self.window.append(program, args, kwargs, into).output
        self.segments["a program that was called"] += 1
        return output

    def _module_ends(self, module: Any, args: Any, output: Any) -> None:
        depth = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        if self.aside:
            if self._modes and depth == self._depth:  # no mode of others is above
                self._leave(None, None, None)
        elif len(self._recording.ops) >= SHORTEST:
            start = self._balance.now()
            self.cut()
            self._balance.captured(start)
            self._step_aside()
