"""`Window`: programs appended one after the other, run in any order that gives the same results."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.epoch_kernel import EpochKernel
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.windows.compiled_hazards import make_hazards
from kitsune_mlir.windows.device import Epochs
from kitsune_mlir.windows.hazards import Range
from kitsune_mlir.windows.pool import Pool, synchronized_lane
from kitsune_mlir.windows.streams import Streams
from kitsune_mlir.windows.task import Call, Lost, Task, failures
from kitsune_mlir.windows.template import Template, conditional

__all__ = ["BACK_ENDS", "Appended", "Window"]

BACK_ENDS = ("auto", "threads", "streams", "synchronized", "device")
STREAMS = 8
SYNCHRONIZED = 4
"""Threads of the paper's form, each with a stream."""


class Appended:
    """A program's run that has been appended.

    Attributes:
        output: what the program returns, in memory that may not be written yet. It may be an argument of what is appended
            later; to look at values, take `result()`.
    """

    __slots__ = ("_task", "_window", "output")

    def __init__(self, window: Window, task: Task, output: Any):
        self._window, self._task, self.output = window, task, output

    def result(self) -> Any:
        """The output, with its values: what it depends on is run, or on a GPU the current stream put behind it, and no more.

        Raises:
            KitsuneError: the run failed, or one whose results it read; it is that one's error, of whatever type that is.
        """
        self._window.wait(self._task)
        return self.output

    @property
    def done(self) -> bool:
        """Whether the run has ended (on a GPU's streams: whether it was launched)."""
        return self._task.done


class Window:
    """A window over appended programs (ACS, arXiv 2401.12377, section 4).

    Each run waits for those before it that write what it reads, or touch what it writes, and for no other. Any thread may
    append. A `with` block flushes at its end.

    Args:
        size: entries that are looked at; when there are so many, an append waits for the oldest one (on a GPU's streams, what
            comes later does).
        back_end: "threads" (host), "streams" (GPU: streams and events, the host waits for nothing), "synchronized" (GPU: a
            few threads, each of which launches and waits for its stream, as in the paper), "device" (GPU: entries wait to be
            launched together, and order themselves on the device), or "auto": the first or the second.
        threads: how many beside the caller's; 0 runs everything in the thread that reads. None is one less than there are
            processors, or 4 of the paper's form.
        kernel: of the back end "device": what `kitsune_mlir.epoch_kernel` made of programs. Of that back end `size` is how many
            entries one launch has at most.
        in_order: of the back end "device": blocks claim entries in the order of the appends, not in that in which entries could
            begin.

    Raises:
        ArgumentError: there is no such back end, or the size or number of threads is none, or "device" has no kernel, or
            another back end has what is of it alone.
    """

    def __init__(
        self,
        size: int = 128,
        back_end: str = "auto",
        threads: int | None = None,
        kernel: EpochKernel | None = None,
        in_order: bool = False,
    ):
        if back_end not in BACK_ENDS:
            raise ArgumentError(f"no back end '{back_end}'; there are {', '.join(BACK_ENDS)}")
        if threads is not None and threads < 0:
            raise ArgumentError(f"a window has no fewer than 0 threads of its own, not {threads}")
        if (kernel is None) == (back_end == "device"):
            raise ArgumentError(f"back end '{back_end}' and kernel {kernel}: 'device' needs one, others take none")
        if in_order and kernel is None:
            raise ArgumentError(f"in_order is of the back end 'device', not of '{back_end}'")
        self._hazards, self._kernel, self._ready_first = make_hazards(size), kernel, not in_order
        self._mutex = threading.Lock()
        self._lock = threading.Condition(self._mutex)
        self._kind, self._threads = back_end, threads
        self._device = ""
        self._back_end: Pool | Streams | Epochs | None = None
        self._tasks: dict[int, Task] = {}
        self._templates: dict[Program, Template] = {}
        self._lost: list[Lost] = []

    @property
    def size(self) -> int:
        """How many entries it has at most."""
        return self._hazards.size

    @property
    def device(self) -> str:
        """What its runs are on; empty before the first one."""
        return self._device

    def __len__(self) -> int:
        return len(self._hazards)

    def append(
        self,
        program: Program,
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        into: Any = None,
        when: Any = None,
    ) -> Appended:
        """Append a run of a program; returns at once.

        Args:
            arguments, keywords: as the program is called; in the place of an argument may be what `append` gave: its output.
                They must not be written before it has run, but by what is appended.
            into: as of `Program.run`.
            when: a tensor of one number on the program's device (or what `append` gave, whose output is one): where it is zero
                when the run would begin, nothing is run and nothing written. "device" looks at integers and bools on the
                device; elsewhere somebody waits for it.

        Raises:
            ArgumentError: the program is for another device than those before it, or the arguments are nested in another way
                than the program's. (Shapes and types that do not fit are found in the run, whose result raises.)
            TargetError: the program's target cannot be used on this machine.
        """
        template = self._templates.get(program)
        if template is None:
            template = self._template(program)
        for argument in arguments:
            if type(argument) is Appended:
                arguments = [a.output if type(a) is Appended else a for a in arguments]
                break
        call = template.call(arguments, keywords, into)
        if when is not None:
            call = conditional(call, when.output if type(when) is Appended else when)
        return Appended(self, self.append_call(call), call.output)

    def append_call(self, call: Call) -> Task:
        """Append a call that was prepared."""
        with self._mutex:
            back_end, hazards, tasks = self._back_end, self._hazards, self._tasks
            if back_end is None:
                back_end = self._start(next((str(tensor.device) for tensor in call.tensors if tensor.is_cuda), "cpu"))
            while len(tasks) >= hazards.size:
                back_end.room()
            number, (data, order) = hazards.append(call.ranges)
            reads = [tasks[n] for n in data] if data else ()
            task = tasks[number] = Task(call, number, reads)
            if self._lost:
                self._lost, failed = failures(self._lost, call.ranges)
                task.data = [*reads, *failed]
            back_end.submit(task, [*reads, *(tasks[n] for n in order - data)] if order else reads)
            if task.lost:
                self._lose(task)
        return task

    def wait(self, task: Task) -> None:
        """Make a task's results readable.

        Raises:
            KitsuneError: as of `Appended.result`.
        """
        if self._back_end is not None and not (task.done and task.event is None):
            with self._lock:
                self._back_end.wait([task])
        if task.error is not None:
            raise task.error

    def wait_for(self, ranges: Sequence[Range]) -> None:
        """Let everything end that someone has to wait for who makes these accesses, beside the window, after this.

        Raises:
            KitsuneError: what was to be written there failed.
        """
        with self._lock:
            if self._back_end is None:
                return
            tasks = [self._tasks[number] for number in self._hazards.touching(ranges)]
            if isinstance(self._back_end, Pool):
                self._back_end.wait(tasks)
            else:
                self._back_end.wait(tasks, unknown=True)
            self._lost, failed = failures(self._lost, ranges)
        for task in failed:
            if task.error is not None:
                raise task.error

    def raise_lost(self) -> None:
        """Raise the error of a run that failed, if somebody still has memory that it was to write."""
        with self._lock:
            self._lost, _ = failures(self._lost, ())
            errors = [one.task.error for one in self._lost]
        if errors and errors[0] is not None:
            raise errors[0]

    def flush(self) -> None:
        """Run everything (on a GPU: put the current stream behind everything). Errors stay with the results."""
        with self._lock:
            if self._back_end is not None:
                self._back_end.flush()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def _template(self, program: Program) -> Template:
        device = program.device
        with self._lock:
            if self._back_end is None:
                self._start(device)
            elif device != self._device:
                raise ArgumentError(f"the program runs on {device}, and the window's programs on {self._device}")
            return self._templates.setdefault(program, Template(program))

    def _start(self, device: str) -> Pool | Streams | Epochs:
        """Make the back end for a device; the lock is held."""
        cuda = device.startswith("cuda")
        kind = self._kind if self._kind != "auto" else "streams" if cuda else "threads"
        if cuda == (kind == "threads"):
            raise ArgumentError(f"the programs run on {device}, for which there is no back end '{kind}'")
        self._device = device
        if kind == "threads":
            threads = _processors() - 1 if self._threads is None else self._threads
            made = Pool(self._lock, self._hazards, self._ended, threads)
        else:
            made = self._on_gpu(kind, device)
        self._back_end = made
        return made

    def _on_gpu(self, kind: str, device: str) -> Pool | Streams | Epochs:
        import torch

        def current() -> Any:
            return torch.cuda.current_stream(device)

        if self._kernel is not None:
            index = torch.device(device).index or 0
            handle = functools.partial(torch._C._cuda_getCurrentRawStream, index)
            loaded = self._kernel.on(index)
            return Epochs(self._hazards, self._ended, self._kernel, loaded, current, handle, self._ready_first)
        if kind == "streams":
            return Streams(self._hazards, self._ended, lambda: torch.cuda.Stream(device), current, STREAMS)
        threads = SYNCHRONIZED if self._threads is None else self._threads
        entry = lambda: current().record_event()  # noqa: E731
        return Pool(self._lock, self._hazards, self._ended, threads, lambda: synchronized_lane(device), entry)

    def _ended(self, task: Task) -> None:
        del self._tasks[task.number]
        if task.lost:
            self._lose(task)
        self._hazards.retire(task.number)

    def _lose(self, task: Task) -> None:
        """Note what a task has not written, and nobody else is to write."""
        own = self._hazards.last_written(task.number)
        for one in task.lost:
            parts = ((max(low, one.low), min(high, one.high)) for low, high in own)
            self._lost += [one._replace(low=low, high=high) for low, high in parts if low < high]
        task.lost = ()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
