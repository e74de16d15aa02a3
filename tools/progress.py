"""Signs of life for commands that take a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class Progress:
    """Shows the phase that runs: a spinner on a terminal; elsewhere a line when a phase has taken `patience` seconds, and one
    every `interval` seconds from then on."""

    def __init__(self, console: Console, patience: float = 2.0, interval: float = 10.0):
        self.console, self.patience, self.interval = console, patience, interval
        self.title = ""
        self.start = time.monotonic()
        self._status = None
        self._done = threading.Event()

    def phase(self, title: str) -> None:
        """A phase starts."""
        self.title, self.start = title, time.monotonic()
        if self._status is not None:
            self._status.update(f"{title} ...")

    @contextmanager
    def running(self, title: str) -> Iterator[Progress]:
        """Show progress while the body runs."""
        self.phase(title)
        if self.console.is_terminal:
            with self.console.status(f"{title} ...") as self._status:
                yield self
            self._status = None
            return
        thread = threading.Thread(target=self._beat, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._done.set()
            thread.join()
            self._done.clear()

    def _beat(self) -> None:
        due = self.patience
        title = self.title
        while not self._done.wait(0.1):
            if self.title != title:
                title, due = self.title, self.patience
            taken = time.monotonic() - self.start
            if taken >= due:
                self.console.print(f"{title} ... {taken:.0f} s", highlight=False)
                due = taken + self.interval
