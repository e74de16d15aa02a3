"""The back end on the device: what is appended becomes an epoch, which one launch does (`codegen/gpu/kernel/epochs.py`).

Nothing runs until somebody waits, the window is flushed or full, or the caller's stream changes: then all that was appended
since the last time is one launch on the caller's stream. Blocks claim pieces of work in the order of the appends and wait on
the device for what an entry depends on, so the order is that of a window of as many pieces as there are blocks. An entry whose
program the kernel does not have, or whose arguments have to be converted first, is run by itself, after what came before.
So is one that changes its own condition in several pieces of work, and what changes another such entry's condition is in the
next launch.

Memory follows the rules of PyTorch's allocator: an epoch holds the tensors of its entries until it is launched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.runtime.cuda_epochs import CudaEpochs
from kitsune_mlir.runtime.epoch import Epoch, Instance
from kitsune_mlir.runtime.epoch_kernel import EpochKernel
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.windows.compiled_hazards import CompiledHazards
from kitsune_mlir.windows.hazards import READ, Hazards
from kitsune_mlir.windows.task import Call, Task

__all__ = ["Epochs"]

MOST_BYTES = 1 << 30
"""Of memory for intermediates from which on an epoch is launched."""


class Epochs:
    """See the module.

    Args:
        hazards: those of the window.
        ended: called with each task that need not be known any more.
        kernel: the programs that an epoch can have.
        loaded: the same on its device.
        current: the caller's stream.
        handle: of it, which is quicker to ask for.
        ready_first: as of `runtime.epoch.Epoch`.

    Attributes:
        launches, alone: epochs that were launched, and entries that were run by themselves.
    """

    def __init__(
        self,
        hazards: Hazards | CompiledHazards,
        ended: Callable[[Task], None],
        kernel: EpochKernel,
        loaded: CudaEpochs,
        current: Callable[[], Any],
        handle: Callable[[], int],
        ready_first: bool = False,
    ):
        self._hazards, self._ended, self._kernel, self._current = hazards, ended, kernel, current
        self._handle_of, self._handle = handle, -1
        self._loaded = loaded
        self._numbers: weakref.WeakKeyDictionary[Program, int] = weakref.WeakKeyDictionary()
        self._ready_first = ready_first
        self._epoch = Epoch(kernel.manifest, ready_first)
        self._tasks: list[Task] = []
        self._places: dict[int, int] = {}  # of the epoch's tasks, by number
        self._flags: list[tuple[int, int]] = []  # bytes of the conditions of its entries that have several pieces
        self._stream: Any = None
        self._last: Any = None
        self.launches = self.alone = 0

    def room(self) -> int:
        """Launch what there is, so that it need not be known any more."""
        self._launch()
        return self._hazards.size - len(self._hazards)

    def submit(self, task: Task, upstream: Sequence[Task]) -> None:
        """Put a task into the epoch, behind those that it waits for."""
        if (handle := self._handle_of()) != self._handle:
            self._launch()
            stream = self._current()
            if self._last is not None:
                stream.wait_event(self._last)
            self._stream, self._handle = stream, handle
        call = task.call
        assert call is not None
        number = self._number(call)
        if self._flags and _writes(call, self._flags):
            self._launch()
        manifest = self._kernel.manifest
        if number >= 0 and call.when is not None and not manifest.loops and manifest.programs[number].pieces > 1:
            # Each piece looks at the condition when it begins: all have to see the same.
            flag = call.when[0], sum(call.when)
            number = -1 if _writes(call, (flag,)) else number
            self._flags.append(flag)
        if number < 0 or any(one.error is not None for one in task.data):
            self._launch()
            self.alone += 1
            self._run(task)
            return
        _, pointers = call.entry or (None, ())
        address, size = call.when or (0, 0)
        places = [self._places[one.number] for one in upstream if one.number in self._places]
        self._places[task.number] = self._epoch.append(Instance(number, pointers, places, address, size))
        self._tasks.append(task)
        if self._epoch.arena_bytes + self._epoch.partial_bytes > MOST_BYTES:
            self._launch()

    def wait(self, tasks: Sequence[Task], unknown: bool = False) -> None:
        """Launch tasks that are to be waited for, and put the caller's stream behind them; with `unknown`, behind all."""
        if unknown or any(task.event is None for task in tasks):
            self._launch()
        current = self._current()
        for event in {id(task.event): task.event for task in tasks}.values():
            if event is not None:
                current.wait_event(event)
        if unknown and self._last is not None:
            current.wait_event(self._last)

    def flush(self) -> None:
        """Launch what there is, and put the caller's stream behind it."""
        self.wait((), unknown=True)

    def _number(self, call: Call) -> int:
        """Which of the kernel's programs a call is of; -1: none."""
        if call.entry is None:
            return -1
        program = call.entry[0]
        number = self._numbers.get(program)
        if number is None:
            found = self._kernel.number_of(program)
            number = self._numbers[program] = -1 if found is None else found
        return number

    def _launch(self) -> None:
        if not self._tasks:
            return
        epoch, tasks, stream = self._epoch, self._tasks, self._stream
        self._flags = []
        self._epoch, self._tasks, self._places = Epoch(self._kernel.manifest, self._ready_first), [], {}
        failed: BaseException | None = None
        try:
            prepared = self._loaded.prepare(epoch, stream.cuda_stream)
            prepared.run()
            self.launches += 1
            if self._kernel.manifest.debug:
                prepared.check()
        except Exception as error:
            failed = error
        self._last = stream.record_event()
        used = {id(tensor): tensor for task in tasks if task.call is not None for tensor in task.call.tensors}
        for tensor in used.values():
            if tensor.is_cuda:
                tensor.record_stream(stream)
        del used
        for task in tasks:
            call = task.call
            assert call is not None
            if failed is None:
                task.call, task.data = None, ()
            else:
                task.call = call._replace(run=_raising(failed))
                task.execute(stream.cuda_stream)
            task.event, task.done = self._last, True
            self._ended(task)

    def _run(self, task: Task) -> None:
        stream, tensors = self._stream, task.call.tensors if task.call is not None else ()
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)
        task.execute(stream.cuda_stream)
        self._last = task.event = stream.record_event()
        task.done = True
        self._ended(task)


def _writes(call: Call, memory: Sequence[tuple[int, int]]) -> bool:
    """Whether a call writes, or may write, any of some memory."""
    if call.ranges is None:
        return True
    return any(mode != READ and low < end and start < high for low, high, mode in call.ranges for start, end in memory)


def _raising(error: BaseException) -> Callable[[int], None]:
    def run(stream: int) -> None:
        raise error

    return run
