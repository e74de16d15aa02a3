"""Lets a thread sleep until another one has something for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Bell"]


class Bell:
    """One thread sleeps, any other one rings.

    Attributes:
        asleep: whether the thread is to be woken.

    Args:
        lock: guards what the thread waits for; whoever rings holds it.
        busy: whether there is something already, asked under the lock before the thread sleeps.
    """

    def __init__(self, lock: threading.Lock, busy: Callable[[], bool]):
        self._lock, self._busy, self.asleep = lock, busy, False
        self._gate = threading.Lock()  # released to wake the thread
        self._gate.acquire()

    def ring(self) -> None:
        """Let the thread go on, if it sleeps; the lock is held."""
        if self.asleep:
            self.asleep = False
            self._gate.release()

    def sleep(self, seconds: float | None) -> None:
        """Wait until somebody rings, or so long, unless there is something already."""
        with self._lock:
            if self._busy():
                return
            self.asleep = True
        if self._gate.acquire(timeout=-1 if seconds is None else seconds):
            return
        with self._lock:
            if self.asleep:
                self.asleep = False
                return
        self._gate.acquire()  # somebody has just released it
