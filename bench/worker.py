"""A process that does one task after the other, and is replaced when a task crashes it or takes too long."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["Worker"]

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


def _pump(stream: Any, lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
