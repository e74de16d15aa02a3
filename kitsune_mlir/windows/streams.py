"""The back end of streams: every task is launched when it is appended, and waits on the device, by events.

The host waits for nothing. An entry leaves the window when its event has passed; when the window is full and the oldest one's
has not, all streams are made to wait for that one, and then it need not be known any more. Memory follows the rules of
PyTorch's allocator: each tensor is noted for the stream that uses it (`record_stream`), so that what is freed early is not
handed out again before the stream is past it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.windows.compiled_hazards import CompiledHazards
from kitsune_mlir.windows.hazards import Hazards
from kitsune_mlir.windows.task import Task

__all__ = ["Streams"]


class Streams:
    """See the module.

    Args:
        hazards: those of the window.
        ended: called with each task that need not be known any more.
        make: makes a stream.
        current: the caller's stream.
        count: how many streams.
    """

    def __init__(
        self,
        hazards: Hazards | CompiledHazards,
        ended: Callable[[Task], None],
        make: Callable[[], Any],
        current: Callable[[], Any],
        count: int,
    ):
        self._hazards, self._ended, self._current = hazards, ended, current
        self._streams = [make() for _ in range(count)]
        self._tails: list[Task | None] = [None] * count
        self._tasks: dict[int, Task] = {}
        self._passed: dict[int, Any] = {}  # by stream: the last event of what left the window before it had ended
        self._turn = 0

    def room(self) -> int:
        """Forget what has ended, and if that is nothing, order everything later after the oldest entry."""
        hazards = self._hazards
        while len(hazards):
            task = self._tasks[hazards.oldest]
            if not task.event.query():
                break
            self._leave(task)
        if len(hazards) >= hazards.size:
            task = self._tasks[hazards.oldest]
            for stream in self._streams:
                if stream is not self._streams[task.stream]:
                    stream.wait_event(task.event)
            self._passed[task.stream] = task.event
            self._leave(task)
        return hazards.size - len(hazards)

    def submit(self, task: Task, upstream: Sequence[Task]) -> None:
        """Launch a task behind those that it waits for, and behind the caller's stream."""
        number = self._choose(upstream)
        stream = self._streams[number]
        stream.wait_event(self._current().record_event())
        for other in upstream:
            if other.stream != number:
                stream.wait_event(other.event)
        for tensor in task.call.tensors if task.call is not None else ():
            if tensor.is_cuda:  # on the host a task is over when it was launched
                tensor.record_stream(stream)
        task.execute(stream.cuda_stream)
        task.event, task.stream, task.done = stream.record_event(), number, True
        self._tasks[task.number] = self._tails[number] = task

    def wait(self, tasks: Sequence[Task], unknown: bool = False) -> None:
        """Put the caller's stream behind tasks; with `unknown` also behind those that left the window before they had ended."""
        current = self._current()
        for task in tasks:
            current.wait_event(task.event)
        for event in self._passed.values() if unknown else ():
            current.wait_event(event)

    def flush(self) -> None:
        """Put the caller's stream behind everything."""
        self.wait([task for task in self._tails if task is not None])

    def _choose(self, upstream: Sequence[Task]) -> int:
        """The stream that ends in a task that is waited for anyway; else one that has nothing to do, else the next in turn."""
        for task in sorted(upstream, key=lambda one: -one.number):
            if self._tails[task.stream] is task:
                return task.stream
        count = len(self._streams)
        turn = self._turn
        for step in range(count):
            tail = self._tails[(turn + step) % count]
            if tail is None or tail.event.query():
                turn = (turn + step) % count
                break
        self._turn = (turn + 1) % count
        return turn

    def _leave(self, task: Task) -> None:
        del self._tasks[task.number]
        self._ended(task)
