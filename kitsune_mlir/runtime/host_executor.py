"""Runs compiled tile programs on the processor: workers on a few threads, a workspace for each call.

Each worker is one call into the compiled code, which releases Python's global lock; the calling thread is always one of them,
so a run makes progress whether or not a helper thread wakes up in time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.runtime.host_code import HostCode

__all__ = ["HostExecutor"]

_ERROR_OFFSET = 64  # bytes into the control block: number of the first failed assertion
_PAGE = 256  # alignment of the arena, in bytes
_HANDOFF_SECONDS = 100e-6  # a run shorter than this is over before a helper has woken up
_TRIALS = 4  # runs that are timed to find out
_MOST_COUNTS = 4096  # sets of counts of which it is held what they leave out
_MOST_TILES = (1 << 31) - (1 << 16)  # their counter has 32 bits, and each worker takes one number too many
_memset, _memmove, _at = ctypes.memset, ctypes.memmove, ctypes.c_int64.from_address
_HUGE = 4 << 20  # workspaces from this size on ask the system for large pages


class HostExecutor:
    """A compiled tile program, ready to run. Any number of threads may call `run` at the same time.

    Args:
        code: what `compile_host` gave, or the same read from a file.
        semaphore_slots, arena_bytes, task_count: the planner's figures, checked against the code's where given.
        threads: how many workers run a call; all processors where it is None.

    Raises:
        TargetError: the code does not run on this machine.
        ArgumentError: a figure differs from the code's.
    """

    def __init__(
        self,
        code: HostCode,
        semaphore_slots: int | None = None,
        arena_bytes: int | None = None,
        task_count: int | None = None,
        threads: int | None = None,
    ):
        for name, value in (("semaphore_slots", semaphore_slots), ("arena_bytes", arena_bytes), ("task_count", task_count)):
            if value is not None and value != getattr(code, name):
                raise ArgumentError(f"'{code.name}' was compiled with {name} = {getattr(code, name)}, not {value}")
        if threads is not None and threads < 1:
            raise ArgumentError(f"a program runs on at least one thread, not {threads}")
        self.code = code
        self.threads = min(threads or _processors(), max(1, code.task_count))
        self._loaded = code.load()
        self._free: dict[int, list[_Workspace]] = {1: []}  # by how many requests they have room for
        self._cuts = _Cuts(code) if code.cut else None
        self._trials: dict[tuple[int, int], _Trials] = {}
        self._alone: set[int] = set()  # of how many places are needed (`_Cuts.of`): runs that are known to take one thread
        self._call, self._ready, self._count = self._loaded.call, self._free[1], code.arguments - 1

    def run(self, pointers: Sequence[int], stream: int = 0) -> None:
        """Run the program once and return when every tile is done.

        Args:
            pointers: addresses of the inputs, then of the results, in the order of the program's arguments (without the
                arena). Each points to contiguous elements that stay alive and unmoved during the call.
            stream: ignored.

        Raises:
            ArgumentError: the number of pointers is wrong.
            KitsuneError: an assertion of the program failed; the message is the assertion's. Results are undefined then.
        """
        # In one function: while torch.compile's hook is there, a call of a Python function takes several times as long.
        try:
            words, size, needed = (None, 0, 0) if self._cuts is None else self._cuts.of(pointers)
            workspace = self._ready.pop() if needed in self._alone and len(pointers) == self._count else None
        except IndexError:
            workspace = None
        if workspace is None:
            (problem,) = self.run_requests([pointers])
            if problem is not None:
                raise problem
            return
        try:
            _memset(workspace.control, 0, workspace.control_bytes)
            workspace.pointers[: self._count] = pointers
            if words is not None:
                _memmove(workspace.control + workspace.control_bytes - size, words, size)
            self._call(workspace.address, workspace.control, workspace.scratch, 1)
            number = workspace.error.value
        finally:
            self._ready.append(workspace)
        if number:
            raise self._problem(number)

    def run_requests(self, rows: Sequence[Sequence[int]]) -> list[KitsuneError | None]:
        """Run the program for several requests at once, tile by tile of each task, and return when every tile is done.

        Args:
            rows: for each request addresses as `run` takes them. What one writes, no other reads or writes.

        Returns:
            for each request None, or the assertion that failed in it; the others' results are right all the same.

        Raises:
            ArgumentError: the number of pointers of a request is wrong, or there are too many tiles to count.
        """
        for pointers in rows:
            if len(pointers) != self.code.arguments - 1:
                raise ArgumentError(f"'{self.code.name}' takes {self.code.arguments - 1} pointers, got {len(pointers)}")
        if len(rows) > self.most_requests:
            raise ArgumentError(f"{len(rows)} requests of {self.code.task_count} tiles each are more tiles than {_MOST_TILES}")
        if not rows:
            return []
        room = 1 << (len(rows) - 1).bit_length()
        free = self._free.setdefault(room, [])
        try:
            workspace = free.pop()
        except IndexError:
            workspace = _Workspace(self.code, self.threads, room)
        try:
            workspace.prepare(rows)
            share = room, self._cuts.leave_out(rows, workspace) if self._cuts is not None else 0
            trials = self._trials.get(share)
            if trials is None:
                trials = self._trials.setdefault(share, _Trials(self.threads))
            self._run(workspace, trials)
            if room == 1 and trials.alone:
                self._alone.add(share[1])
            errors = workspace.errors
            return [self._problem(errors[request].value) if errors[request].value else None for request in range(len(rows))]
        finally:
            free.append(workspace)

    def _problem(self, number: int) -> KitsuneError:
        return KitsuneError(self.code.messages[number - 1])

    @property
    def most_requests(self) -> int:
        """How many requests a run can have."""
        return _MOST_TILES // max(1, self.code.task_count)

    def _run(self, workspace: _Workspace, trials: _Trials) -> None:
        """Run on all threads, unless the first runs show that the program is over before a helper would have woken up."""
        start = time.perf_counter()
        together = trials.together
        share = _Share(self._loaded.call, workspace) if together else None
        if share is not None:
            _helpers.ask(share, self.threads - 1)
        try:
            workspace.work(self._loaded.call, 0)
        finally:
            if share is not None:
                share.close()
        if not trials.over:
            trials.judge(time.perf_counter() - start, together)


class _Trials:
    """The first runs of a program, or of those in which about as many of its tiles are needed: on all threads, or on one?"""

    def __init__(self, threads: int):
        self._left = _TRIALS if threads > 1 else 0
        self._settled = threads > 1
        self._seconds = float("inf")  # of the fastest trial on one thread

    @property
    def over(self) -> bool:
        """Whether it is known."""
        return self._left <= 0

    @property
    def alone(self) -> bool:
        """Whether it is known that one thread does."""
        return self.over and not self._settled

    @property
    def together(self) -> bool:
        """Whether the next run is one of all threads: of the trials the first one is."""
        return self._settled and (self.over or self._left == _TRIALS)

    def judge(self, seconds: float, together: bool) -> None:
        """Learn from one of the first runs: a long first one settles it, otherwise the next ones are timed on one thread."""
        self._left -= 1
        if together:
            if seconds > 10 * _HANDOFF_SECONDS:
                self._left = 0
            return
        self._seconds = min(self._seconds, seconds)
        self._settled = self._seconds > _HANDOFF_SECONDS


class _Cuts:
    """What calls leave out, by their counts."""

    def __init__(self, code: HostCode):
        self._tasks = code.cut
        self._counts = sorted({count for task in code.cut for count in task.counts})
        self._known: dict[tuple[int, ...], tuple[Any, int, int]] = {}

    def leave_out(self, rows: Sequence[Sequence[int]], workspace: _Workspace) -> int:
        """Write the words of each request's control block; how many places are needed in all, as a power of two."""
        total = 0
        for request, pointers in enumerate(rows):
            words, size, needed = self.of(pointers)
            workspace.write_last(request, words, size)
            total = max(total, needed)
        return total + (len(rows) - 1).bit_length()

    def of(self, pointers: Sequence[int]) -> tuple[Any, int, int]:
        """The last words of the control block, their bytes, and how many places are needed, as a power of two."""
        values: Any = ()
        for count in self._counts:
            values = (*values, _at(pointers[count]).value)
        return self._known.get(values) or self._found(values)

    def _found(self, values: tuple[int, ...]) -> tuple[Any, int, int]:
        counts = dict(zip(self._counts, values, strict=True))
        words = [task.left_out(counts) for task in self._tasks]
        needed = sum(task.extent - word for task, word in zip(self._tasks, words, strict=True))
        if len(self._known) >= _MOST_COUNTS:
            self._known.clear()
        known = self._known[values] = (ctypes.c_int32 * len(words))(*words), 4 * len(words), needed.bit_length()
        return known


class _Workspace:
    """Memory of one call: for each request arena, control block and pointers; and each worker's scratch area.

    Attributes:
        errors: for each request the number of its first failed assertion, 0 for none.
        control, control_bytes: address of the control blocks, and bytes of each.
        pointers, address: of all requests, and where they lie.
        scratch, error: of the first worker, and of the first request.
    """

    def __init__(self, code: HostCode, threads: int, room: int):
        scratch = -(-code.scratch_bytes // _PAGE) * _PAGE
        control = -(-room * code.control_bytes // _PAGE) * _PAGE
        arena = -(-code.arena_bytes // _PAGE) * _PAGE
        size = control + room * arena + threads * scratch + _PAGE
        # One block of zero pages: memory that no worker touches is never given by the system.
        self._memory = (ctypes.c_uint8 * size).from_buffer(_anonymous(size))
        base = -(-ctypes.addressof(self._memory) // _PAGE) * _PAGE
        self.control, self.control_bytes = base, code.control_bytes
        self._scratch = [base + control + room * arena + i * scratch for i in range(threads)]
        self._row = code.arguments
        self.pointers = (ctypes.c_void_p * (room * self._row))()
        for request in range(room):
            self.pointers[(request + 1) * self._row - 1] = base + control + request * arena
        self.address = ctypes.addressof(self.pointers)
        self.errors = [ctypes.c_int32.from_address(base + n * code.control_bytes + _ERROR_OFFSET) for n in range(room)]
        self.scratch, self.error = self._scratch[0], self.errors[0]
        self._requests = 0

    def prepare(self, rows: Sequence[Sequence[int]]) -> None:
        """Zero the control blocks, and write the pointers."""
        self._requests = len(rows)
        _memset(self.control, 0, self._requests * self.control_bytes)
        start, count = 0, self._row - 1
        for pointers in rows:
            self.pointers[start : start + count] = pointers
            start += self._row

    def write_last(self, request: int, words: Any, size: int) -> None:
        """Write the last words of a request's control block, so many bytes."""
        _memmove(self.control + (request + 1) * self.control_bytes - size, words, size)

    def work(self, call: Any, worker: int) -> None:
        """Take tiles until there are none, as the worker with this number."""
        call(self.address, self.control, self._scratch[worker], self._requests)


class _Share:
    """One run that helper threads may join until it is closed."""

    def __init__(self, call, workspace: _Workspace):
        self._call = call
        self._workspace = workspace
        self._lock = threading.Condition(threading.Lock())
        self._active = 0
        self._joined = 0
        self._open = True

    def join(self) -> None:
        """Work on the run, in a helper thread, unless it is closed."""
        with self._lock:
            if not self._open:
                return
            self._active += 1
            self._joined += 1
            worker = self._joined
        try:
            self._workspace.work(self._call, worker)
        finally:
            with self._lock:
                self._active -= 1
                self._lock.notify_all()

    def close(self) -> None:
        """Let nobody else in, and wait for those who are in."""
        with self._lock:
            self._open = False
            while self._active:
                self._lock.wait()


class _Helpers:
    """Daemon threads of the process, as many as the largest run asked for. A forked child starts without any."""

    def __init__(self):
        self._lock = threading.Lock()
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[_Share] = queue.SimpleQueue()
        self._count = 0

    def ask(self, share: _Share, count: int) -> None:
        """Ask `count` threads to join a run."""
        if self._count < count:
            with self._lock:
                while self._count < count:
                    self._count += 1
                    name = f"kitsune-{self._count}"
                    threading.Thread(target=self._serve, args=(self._requests,), name=name, daemon=True).start()
        for _ in range(count):
            self._requests.put(share)

    @staticmethod
    def _serve(requests: queue.SimpleQueue[_Share]) -> None:
        while True:
            requests.get().join()


_helpers = _Helpers()


def _anonymous(size: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size)
    except (OSError, OverflowError) as error:
        raise KitsuneError(f"the system does not give a call {size} bytes for intermediates: {error}") from error
    if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them; the memory works all the same
    return memory


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
