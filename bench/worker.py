"""A process that does one task after the other, and is replaced when a task crashes it or takes too long."""

from __future__ import annotations

import json
import math
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Worker", "side_by_side"]

START_SECONDS = 90


class Worker:
    """Asks a child process, line by line: a name goes in, a line of JSON comes out.

    The child's first line is its greeting. Lines that are no JSON object are left out (compilers talk).

    Attributes:
        greeting: of the child that was started last; a user takes it by setting it to None.
    """

    def __init__(self, command: Sequence[str]):
        self.command = list(command)
        self.greeting: dict[str, Any] | None = None
        self._child: subprocess.Popen[str] | None = None

    def ask(self, name: str, limit: float) -> dict[str, Any]:
        """The child's answer; `{"ok": False, "problem": why}` where it dies or is silent for `limit` seconds."""
        if self._child is None:
            problem = self._start()
            if problem:
                return {"ok": False, "problem": problem}
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(name + "\n")
            self._child.stdin.flush()
        except OSError:
            return {"ok": False, "problem": self._ended()}
        answer = self._line(limit)
        return answer if isinstance(answer, dict) else {"ok": False, "problem": answer}

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _start(self) -> str:
        self._errors = tempfile.TemporaryFile("w+")
        self._child = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self._child.stdout, self._lines), daemon=True).start()
        greeting = self._line(START_SECONDS)
        if isinstance(greeting, str):
            return greeting
        self.greeting = greeting
        return ""

    def _line(self, limit: float) -> dict[str, Any] | str:
        """The next JSON object, or what went wrong (the child is then gone)."""
        while True:
            try:
                line = self._lines.get(timeout=limit)
            except queue.Empty:
                self.close()
                return f"no answer in {limit:g} s"
            if line is None:
                return self._ended()
            if line.startswith("{"):
                return json.loads(line)

    def _ended(self) -> str:
        assert self._child is not None
        status = self._child.wait()
        self._errors.seek(0)
        last = [line.strip() for line in self._errors.read().splitlines() if line.strip()][-3:]
        self.close()
        return f"the process ended ({status}): " + " | ".join(last)


def side_by_side(
    command: Sequence[str],
    names: Sequence[str],
    jobs: int,
    limit: float,
    told: Callable[[dict[str, Any]], None],
    seconds=math.inf,
) -> list[dict[str, Any]]:
    """Answers to names by `jobs` workers, in the order in which they came; of those that were asked.

    Args:
        command: of a worker.
        limit: seconds for one name.
        told: called with each answer (by threads).
        seconds: no name is asked later than that.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    start, answers = time.monotonic(), []

    def serve() -> None:
        worker = Worker(command)
        try:
            while time.monotonic() - start < seconds:
                name = waiting.get_nowait()
                answers.append({"case": name, **worker.ask(name, limit)})
                told(answers[-1])
        except queue.Empty:
            pass
        finally:
            worker.close()

    threads = [threading.Thread(target=serve) for _ in range(max(1, min(jobs, len(names))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _pump(stream: Any, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
