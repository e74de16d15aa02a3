"""Appended work, and what becomes of memory that failed work was to write."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.strided import span_of
from kitsune_mlir.windows.hazards import READ, WRITE, Range

__all__ = ["Call", "Lost", "Task", "extent", "failures"]


class Call(NamedTuple):
    """One call that is to be run later.

    Attributes:
        run: runs it on a CUDA stream, by its handle (0 on the host).
        ranges: what it touches, as `Hazards.append` wants it; None where that is not known.
        output: what it returns, in memory that is there already.
        tensors: arguments and results, which have to stay alive until it has ended.
        written: those of them that it writes.
        entry: of a plain call of a program, the program and the pointers of its inputs and results.
        when: where there is a condition (`Window.append`), the address of its value and how many bytes that has.
    """

    run: Callable[[int], None]
    ranges: Sequence[Range] | None
    output: Any
    tensors: Sequence[Any]
    written: Sequence[Any]
    entry: tuple[Program, tuple[int, ...]] | None = None
    when: tuple[int, int] | None = None


class Lost(NamedTuple):
    """Bytes that a task was to write and has not, for as long as their storage lives."""

    low: int
    high: int
    storage: Any
    task: Task


class Task:
    """An entry of a window.

    Attributes:
        call: what is to be run; None when it has been.
        number: of its entry among the hazards.
        data: tasks whose values it reads.
        upstream: all tasks that have to end before it begins and have not.
        followers: those that wait for it; None while there are none.
        done: whether it has ended (on a stream: whether it was launched).
        error: why it has no results; its own, or that of a task whose values it reads.
        lost: what it has not written, where there is an error.
        event: on a GPU, what is recorded at its end (of the paper's form: before it).
        stream: the number of the one that it was launched on.
    """

    upstream: Sequence[Task] = ()
    followers: list[Task] | None = None
    waiting = 0
    done = False
    error: BaseException | None = None
    lost: Sequence[Lost] = ()
    event: Any = None
    stream = -1

    def __init__(self, call: Call, number: int, data: Sequence[Task]):
        self.call: Call | None = call
        self.number = number
        self.data: Sequence[Task] = data

    def execute(self, stream: int) -> None:
        """Run it, unless what it reads has failed; an error stays in the task."""
        call = self.call
        if call is None:
            return
        try:
            for task in self.data:
                if task.error is not None:
                    self.error = task.error
                    break
            else:
                call.run(stream)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):  # an interrupt is not the results' alone
                raise
            error.add_note("Raised in a window's run:\n" + "".join(traceback.format_tb(error.__traceback__)))
            error.__traceback__ = None  # its frames hold the tensors
        finally:
            self.call, self.data = None, ()
            if self.error is not None:
                self.lost = _lost(call, self)


def extent(tensor: Any, mode: int) -> Range:
    """All bytes from a tensor's first to its last."""
    return (*span_of(tensor), mode)


def _lost(call: Call, task: Task) -> list[Lost]:
    from torch.multiprocessing.reductions import StorageWeakRef

    found = []
    for tensor in call.written:
        first, end, _ = extent(tensor, WRITE)
        for low, high, mode in call.ranges if call.ranges is not None else ((first, end, WRITE),):
            if mode != READ and max(low, first) < min(high, end):
                found.append(Lost(max(low, first), min(high, end), StorageWeakRef(tensor.untyped_storage()), task))
    return found


def failures(lost: Sequence[Lost], ranges: Sequence[Range] | None) -> tuple[list[Lost], list[Task]]:
    """What is lost still when these accesses are made, and the tasks whose missing values they read.

    Memory that was freed is no longer lost: whoever gets it writes it first. Neither is what is overwritten.
    """
    left, tasks = [], []
    for one in lost:
        if one.storage.expired():
            continue
        parts = [(one.low, one.high)]
        for low, high, mode in ranges if ranges is not None else ((one.low, one.high, READ),):
            if mode != WRITE:
                if low < one.high and one.low < high:
                    tasks.append(one.task)
                continue
            parts = [cut for part in parts for cut in _without(*part, low, high)]
        left += [Lost(low, high, one.storage, one.task) for low, high in parts]
    return left, tasks


def _without(low: int, high: int, first: int, end: int) -> list[tuple[int, int]]:
    """What is left of a range when another is taken out."""
    return [(a, b) for a, b in ((low, min(high, first)), (max(low, end), high)) if a < b]
