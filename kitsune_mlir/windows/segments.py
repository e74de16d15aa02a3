"""Segments that have been seen: run in PyTorch at first, compiled when they come again, and kept by what they are made of."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.results import strides
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE
from kitsune_mlir.windows.operators import Kind
from kitsune_mlir.windows.recording import Segment, function_of
from kitsune_mlir.windows.task import Call, extent
from kitsune_mlir.windows.template import in_order
from kitsune_mlir.windows.watch import Watch

__all__ = ["CALL_SECONDS", "LAUNCH_SECONDS", "Compiled", "Entry", "Segments"]

CALL_SECONDS = 30e-6
"""What appending and calling a program costs the host. A segment that PyTorch runs in less is not compiled."""
LAUNCH_SECONDS = 10e-6
"""The same where a program is launched by addresses alone (`windows/trace.py`)."""
COMPILE_SECONDS = 0.5
"""What compiling takes. A segment on which PyTorch has spent as long is compiled: so all is never more than twice what the
better of both would have been, however often it comes."""
RUNS = 3
"""Runs of a program that are timed before it is compared with PyTorch, and of PyTorch on a GPU."""

NEW, SLOWER = "it has not come often enough", "PyTorch is faster, measured"

Compiled = Callable[[Callable[..., Any], Sequence[Any]], Program]
"""Compiles a function of tensors, with examples."""


class Entry:
    """A segment's code.

    Attributes:
        seen: how often it has come.
        why: why PyTorch runs it; empty where a program does.
        program: its program, if it was compiled.
        captured: seconds of Python that capturing it took, all times together.
    """

    captured = 0.0

    def __init__(self, segment: Segment):
        self.seen = 0
        self.why = NEW
        self.program: Program | None = None
        self._inputs, self._ops, self._outs = len(segment.inputs), segment.ops, segment.outs
        self._cuda = any(t.is_cuda for t in segment.inputs)
        self._replay_seconds = self._program_seconds = float("inf")
        self._runs, self._spent = 0, 0.0
        self._watched, self._watched_program = Watch(RUNS * self._cuda), Watch(RUNS * self._cuda)
        self._into: list[int] | None = None  # for each result of the program, which of the segment's it is

    @functools.cached_property
    def replay(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The calls, one after the other: from the inputs to the values that somebody has."""
        return function_of(self._inputs, self._ops, self._outs)

    def due(self, after: int | None) -> bool:
        """Count a run; whether it is time to compile.

        Args:
            after: how often it has to have come; None: PyTorch has spent as long on it as compiling takes.
        """
        self.seen += 1
        return self.why == NEW and (self._spent >= COMPILE_SECONDS if after is None else self.seen >= after)

    def call(self, segment: Segment, compiled: Compiled, after: int | None) -> Call:
        """A call of it: of its program, if it has one that is faster, or else in PyTorch."""
        if self.due(after):
            self.compile(segment, compiled)
        inputs, results = segment.inputs, segment.results
        modes = [BOTH if n in segment.written else READ for n in range(len(inputs))]
        ranges = [*map(extent, inputs, modes), *(extent(result, WRITE) for result in results)]
        run = self._run_of_program(inputs, results) if not self.why else self._run_of_replay(inputs, results)
        written = [*(inputs[n] for n in segment.written), *results]
        return Call(run, in_order(ranges), None, [*inputs, *results], written)

    def in_pytorch(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run its calls now; the results."""
        begun, start = self._watched.begin(), time.perf_counter()
        results = self.replay(*inputs)
        self._took(time.perf_counter() - start)
        self._watched.end(begun)
        return results

    def in_program(self, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], stream: int) -> None:
        """Run its program now, into results, on the current stream, which has this handle."""
        self._run_of_program(inputs, results)(stream)

    @property
    def settled(self) -> bool:
        """Whether its program runs it from now on."""
        return not self.why and self._runs > RUNS and (not self._cuda or self._watched_program.over)

    @property
    def eager_seconds(self) -> float:
        """What PyTorch takes for it, on the host or on the device, whichever is longer; infinite where it never ran there."""
        return max(self._replay_seconds, self._watched.seconds) if self._cuda else self._replay_seconds

    @property
    def least_seconds(self) -> float:
        """What it will take at least: 0 where it may yet be compiled."""
        if not self.why:
            return 0.0 if self._cuda or self._runs < RUNS else self._program_seconds
        return 0.0 if self.why == NEW else self.eager_seconds

    @property
    def placed(self) -> tuple[Program, Sequence[int]] | None:
        """Its program, and for each of the program's results which of the segment's it is; None where that is not enough to
        launch it: arguments are changed in place, or results copied."""
        if self.program is None or self.program.direct is None or self._into is None or min(self._into, default=0) < 0:
            return None
        return self.program, self._into

    def compile(self, segment: Segment, compiled: Compiled, least: float | None = None) -> None:
        """Make a program of it, or note why there is none.

        Args:
            least: seconds of the host that PyTorch needs at least where a program pays; `CALL_SECONDS` if None.
        """
        if segment.aliased:
            self.why = "it changes a tensor that shares memory with another one"
        elif self._replay_seconds < (CALL_SECONDS if least is None else least):
            self.why = "it is too small"
        elif sum(op.kind is not Kind.VIEW for op in segment.ops) < 2 and self._cuda:
            self.why = "it is one call"
        else:
            try:
                self.program = compiled(self.replay, [tensor.detach() for tensor in segment.inputs]).uncounted()
                self.why = ""
            except Exception as error:  # whatever the compiler does not take, PyTorch runs
                self.why = f"it cannot be compiled: {type(error).__name__}: {error}".partition("\n")[0]
        if self.program is not None:
            self._into = _placing(self.program, segment)

    def _run_of_replay(self, inputs: Sequence[Any], results: Sequence[Any]) -> Callable[[int], None]:
        def run(stream: int) -> None:
            with below_autograd(stream, inputs):
                begun, start = self._watched.begin(), time.perf_counter()
                for result, made in zip(results, self.replay(*inputs), strict=True):
                    result.copy_(made)
                self._took(time.perf_counter() - start)
                self._watched.end(begun)

        return run

    def _run_of_program(self, inputs: Sequence[Any], results: Sequence[Any]) -> Callable[[int], None]:
        program = self.program
        assert program is not None
        direct, bound = program.direct, None
        if direct is not None and self._into is not None:
            bound = direct.bind(inputs, [results[n] if n >= 0 else None for n in self._into])
        if bound is not None and direct is not None:
            pointers, launch = bound[0], direct.run

            def quick(stream: int) -> None:
                start = time.perf_counter()
                launch(pointers, stream)
                self._judge(time.perf_counter() - start)

            if not self._watched_program.left:
                return quick

        def work(stream: int) -> None:
            if bound is not None and direct is not None:
                direct.run(bound[0], stream)
                return
            for result, made in zip(results, program(*inputs), strict=True):
                result.copy_(made)

        def run(stream: int) -> None:
            with below_autograd(stream, inputs):
                begun, start = self._watched_program.begin(), time.perf_counter()
                work(stream)
                seconds = time.perf_counter() - start
                self._watched_program.end(begun)
            self._judge(seconds)

        return run

    def _took(self, seconds: float) -> None:
        """PyTorch has run it, in this time."""
        self._spent += seconds
        self._replay_seconds = min(self._replay_seconds, seconds)

    def _judge(self, seconds: float) -> None:
        """Compare the first runs with PyTorch's; on a GPU when they are over there, too."""
        if self._runs > RUNS:
            return
        if self._runs < RUNS:
            self._runs += 1
            self._program_seconds = min(self._program_seconds, seconds)
            if self._runs < RUNS or self._cuda:
                return
        if not self._cuda or self._watched_program.over:
            self._runs = RUNS + 1
            taken = max(self._program_seconds, self._watched_program.seconds if self._cuda else 0.0)
            if taken > self.eager_seconds:
                self.why = SLOWER


class Segments:
    """Entries by the keys of their segments, the latest `most` of them."""

    def __init__(self, most: int = 4096):
        self._most = most
        self._known: OrderedDict[tuple[Any, ...], Entry] = OrderedDict()

    def of(self, segment: Segment) -> Entry:
        """The entry of a segment."""
        entry = self._known.get(segment.key)
        if entry is None:
            entry = self._known[segment.key] = Entry(segment)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(segment.key)
        return entry

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


@contextlib.contextmanager
def below_autograd(stream: int, inputs: Sequence[Any]) -> Iterator[None]:
    """Calls are neither recorded for gradients nor counted as changes: that was done when they were captured."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    on = torch.cuda.ExternalStream(stream, inputs[0].device) if stream else None
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(keys):
        with torch.cuda.stream(on) if on is not None else contextlib.nullcontext():
            yield


def _placing(program: Program, segment: Segment) -> list[int] | None:
    """For each result of the program the number of the segment's that it can be written to, -1 where an argument is changed.
    None where a result has to be copied."""
    signature = program.signature
    places = [-2] * len(signature.results)
    new = [output for output in signature.outputs if output.mutates is None]
    for output in signature.outputs:
        if output.mutates is not None:
            if not output.in_place:
                return None
            places[output.index or 0] = -1
    for number, (output, result) in enumerate(zip(new, segment.results, strict=True)):
        index = output.index or 0
        if output.kind != "tensor" or output.copied or places[index] != -2:
            return None
        wanted = strides(output.shape or tuple(result.shape), signature.result_orders.get(index, ()))
        if any(n > 1 and a != b for n, a, b in zip(result.shape, result.stride(), wanted, strict=True)):
            return None
        places[index] = number
    return None if -2 in places else places
