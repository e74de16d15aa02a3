"""The back end of threads: tasks that nothing holds up are run by a few threads, and by whoever waits for one.

Compiled code on the host releases Python's global lock, so bodies overlap; what Python does around them does not. With no
threads everything runs in the thread of whoever reads, in the order of the appends. With a lane that launches and then waits
for its stream it is the software form of the paper (arXiv 2401.12377, Algorithm 2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.windows.compiled_hazards import CompiledHazards
from kitsune_mlir.windows.hazards import Hazards
from kitsune_mlir.windows.task import Task

__all__ = ["Pool", "host_lane", "synchronized_lane"]

IDLE_SECONDS = 0.2
"""A thread ends that has had nothing to do for so long; the next append starts another."""

Lane = Callable[[Task], None]


def host_lane() -> Lane:
    """Runs tasks on the host."""
    return lambda task: task.execute(0)


def synchronized_lane(device: str) -> Lane:
    """Launches a task on a stream of its own, and waits until it has ended."""
    import torch

    torch.cuda.set_device(device)
    stream = torch.cuda.Stream(device)

    def run(task: Task) -> None:
        call = task.call  # its tensors are handed out again when nobody has them, whatever this stream still does with them
        stream.wait_event(task.event)
        task.execute(stream.cuda_stream)
        stream.synchronize()
        del call

    return run


class Pool:
    """See the module.

    Args:
        lock: held by whoever calls; it is given away while a task runs.
        hazards: those of the window.
        ended: called with each task that has ended.
        threads: how many there are at most beside the callers.
        lane: makes what runs tasks, once a thread.
        entry: what a task waits for that lies before the window: an event.
    """

    def __init__(
        self,
        lock: threading.Condition,
        hazards: Hazards | CompiledHazards,
        ended: Callable[[Task], None],
        threads: int,
        lane: Callable[[], Lane] = host_lane,
        entry: Callable[[], Any] | None = None,
    ):
        self._lock, self._hazards, self._ended, self._threads = lock, hazards, ended, threads
        self._lane, self._entry = lane, entry
        self._own = threading.local()
        self._tasks: dict[int, Task] = {}
        self._ready: dict[int, Task] = {}
        self._running = 0
        self._idle = 0

    @property
    def threads(self) -> int:
        """How many threads there are now."""
        return self._running

    def room(self) -> int:
        """Run, or wait for, the oldest entry while the window is full."""
        while len(self._hazards) >= self._hazards.size:
            self._until([self._tasks[self._hazards.oldest]])
        return self._hazards.size - len(self._hazards)

    def submit(self, task: Task, upstream: Sequence[Task]) -> None:
        """Take a task."""
        if self._entry is not None:
            task.event = self._entry()
        number = task.number
        self._tasks[number] = task
        if not upstream:
            self._ready[number] = task
            if self._threads:
                self._wake()
            return
        task.upstream = upstream
        task.waiting = len(upstream)
        for other in upstream:
            if other.followers is None:
                other.followers = [task]
            else:
                other.followers.append(task)

    def wait(self, tasks: Sequence[Task]) -> None:
        """Run what these tasks depend on, and return when they have ended."""
        self._until(tasks)

    def flush(self) -> None:
        """Run everything."""
        self._until([*self._tasks.values()])

    def _wake(self) -> None:
        if self._idle:
            self._lock.notify()
        elif self._running < self._threads:
            self._running += 1
            threading.Thread(target=self._work, name="kitsune-window", daemon=True).start()

    def _work(self) -> None:
        with self._lock:
            try:
                while True:
                    if self._ready:
                        self._run(self._ready[next(iter(self._ready))])
                        continue
                    self._idle += 1
                    woken = self._lock.wait(IDLE_SECONDS)
                    self._idle -= 1
                    if not woken and not self._ready:
                        return
            finally:
                self._running -= 1

    def _until(self, tasks: Sequence[Task]) -> None:
        cone: dict[int, Task] = {}
        stack = [task for task in tasks if not task.done]
        while stack:
            task = stack.pop()
            if task.number not in cone:
                cone[task.number] = task
                stack += [other for other in task.upstream if not other.done]
        for number in sorted(cone):
            task = cone[number]
            while not task.done:  # everything before it in the cone has ended: it is ready, or another thread runs it
                if number in self._ready:
                    self._run(task)
                else:
                    self._lock.wait()

    def _run(self, task: Task) -> None:
        """Run a task that is ready; the lock is free meanwhile."""
        del self._ready[task.number]
        lane = getattr(self._own, "lane", None)
        self._lock.release()
        try:
            if lane is None:
                lane = self._own.lane = self._lane()
            lane(task)
        except Exception as error:  # the device failed: nobody may wait for this task for ever
            task.error = task.error or error
        finally:
            self._lock.acquire()
            self._finish(task)

    def _finish(self, task: Task) -> None:
        task.done = True
        task.upstream = ()
        del self._tasks[task.number]
        for other in task.followers or ():
            other.waiting -= 1
            if not other.waiting:
                self._ready[other.number] = other
                self._wake()
        task.followers = None
        self._ended(task)
        if self._running or self._idle:
            self._lock.notify_all()
