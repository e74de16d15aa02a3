"""Processes that compile stages while others are measured: compiling takes seconds, a measurement a tenth of one.

Each process is a Python program of its own (no fork, and the user's main module is not imported again): it reads pickled
requests from its standard input and writes `("ok", result)` or `("error", text)` to its standard output, until the input ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kitsune_mlir.errors import CompileError

__all__ = ["Compilers", "serve"]

MOST = 8


class Compilers:
    """Answers to requests, made ahead by several processes, until `close`.

    Args:
        command: of one process.
        count: of processes; None is one fewer than there are processors, at most eight.
        environment: variables that the processes have beside this one's.
    """

    def __init__(self, command: Sequence[str], count: int | None = None, environment: dict[str, str] | None = None):
        self.command = list(command)
        self.count = max(1, min(MOST, len(os.sched_getaffinity(0)) - 1)) if count is None else count
        self._environment = {**os.environ, **(environment or {})}
        self._threads = ThreadPoolExecutor(self.count, "compilers")
        self._own = threading.local()  # the process of a thread
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()  # of the list and of what follows
        self._closed = False
        self._answers: dict[Hashable, Future[Any]] = {}

    def close(self) -> None:
        """End the processes; what was not answered yet is dropped."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
            process.wait()

    def expect(self, request: Hashable) -> None:
        """Say that the answer to a request will be asked for; earlier ones are worked on first."""
        if request not in self._answers:
            self._answers[request] = self._threads.submit(self._ask, request)

    def answer(self, request: Hashable, seconds: float | None = None) -> Any:
        """The answer to a request, once: it is forgotten afterwards.

        Raises:
            CompileError: it could not be compiled, the process ended, or it took longer than `seconds`.
        """
        self.expect(request)
        try:
            return self._answers.pop(request).result(seconds)
        except TimeoutError:
            raise CompileError(f"a stage was not compiled within {seconds:g} s") from None

    def _ask(self, request: Hashable) -> Any:
        process = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            kind, value = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            process.kill()
            self._own.process = None
            raise CompileError(f"the process that compiled a stage ended ({process.wait()})") from error
        if kind == "error":
            raise CompileError(value)
        return value

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise CompileError("nothing is compiled any more")
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment
            )
            self._processes.append(process)
            return process


def serve(work: Callable[[Any], Any]) -> None:
    """The loop of such a process: `work` answers a request. What it prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            made = ("ok", work(request))
        except Exception as error:  # a stage that fails costs only itself
            made = ("error", f"{type(error).__name__}: {error}")
        pickle.dump(made, answers)
        answers.flush()
