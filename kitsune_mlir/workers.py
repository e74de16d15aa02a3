"""Processes that compile while this one does something else: stages while others are measured, graphs while PyTorch runs them.

Each process is a Python program of its own (no fork, and the user's main module is not imported again): it reads pickled
requests from its standard input and writes `("ok", result)` or `("error", text)` to its standard output, until the input ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from kitsune_mlir.errors import CompileError

__all__ = ["NO_DEVICE", "Compilers", "serve"]

MOST = 8

NO_DEVICE = {"CUDA_VISIBLE_DEVICES": ""}
"""Processes with this environment leave the GPU alone: code that they make is not loaded there."""


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
        self._asked: queue.SimpleQueue[tuple[Hashable, Future[Any]] | None] = queue.SimpleQueue()
        self._threads = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()  # of what is above and below
        self._closed = False
        self._answers: dict[Hashable, Future[Any]] = {}

    def close(self) -> None:
        """End the processes; what was not answered yet is dropped."""
        with self._lock:
            self._closed = True
            threads, processes = self._threads, list(self._processes)
        for _ in range(threads):
            self._asked.put(None)
        for process in processes:
            process.kill()
            process.wait()

    def expect(self, request: Hashable) -> None:
        """Say that the answer to a request will be asked for; earlier ones are worked on first."""
        with self._lock:
            if request in self._answers:
                return
            answer = self._answers[request] = Future[Any]()
            self._asked.put((request, answer))
            if self._threads < min(self.count, len(self._answers)):
                self._threads += 1
                # Daemons: a process that ends does not wait for what nobody will ask for.
                threading.Thread(target=self._serve, name=f"compiler-{self._threads}", daemon=True).start()

    def answer(self, request: Hashable, seconds: float | None = None) -> Any:
        """The answer to a request, once: it is forgotten afterwards.

        Raises:
            CompileError: it could not be compiled, the process ended, or it took longer than `seconds`.
            CancelledError: `close` was called meanwhile.
        """
        self.expect(request)
        try:
            return self._answers[request].result(seconds)
        except TimeoutError:
            raise CompileError(f"a stage was not compiled within {seconds:g} s") from None
        finally:
            with self._lock:
                self._answers.pop(request, None)

    def _serve(self) -> None:
        """One thread, with a process of its own."""
        process = None
        while (asked := self._asked.get()) is not None and not self._closed:
            request, answer = asked
            try:
                process = process or self._started()
                kind, value = _exchanged(process, request)
            except Exception as error:
                answer.set_exception(CancelledError() if self._closed else CompileError(_ending(process, error)))
                process = None
                continue
            if kind == "error":
                answer.set_exception(CompileError(value))
            else:
                answer.set_result(value)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise CompileError("nothing is compiled any more")
            process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment
            )
            self._processes.append(process)
            return process


def _ending(process: subprocess.Popen[bytes] | None, error: Exception) -> str:
    if process is None:
        return f"no process to compile in could be started: {error}"
    process.kill()
    return f"the process that compiled it ended ({process.wait()}): {error}"


def _exchanged(process: subprocess.Popen[bytes], request: Hashable) -> tuple[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(request, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


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
        except Exception as error:  # what fails costs only itself
            made = ("error", f"{type(error).__name__}: {error}")
        pickle.dump(made, answers)
        answers.flush()
