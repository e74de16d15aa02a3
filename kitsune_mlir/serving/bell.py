"""Lets a thread sleep until another one has something for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["NAP", "Bell", "leave_to"]

TRUSTED = 3
"""So often in a row whoever came did the work: then the thread is not woken for the next one."""

POLL, POLLS = 5e-3, 20
"""Seconds after which it looks by itself meanwhile, and how often it finds nothing before it sleeps until it is woken again."""

MOMENT = 2e-5
"""Seconds in which another thread gets the interpreter; what a sleep takes besides makes about 1e-4 of them."""

NAP = 1e-4
"""Seconds after which one who has to look for what comes looks again; it does not sleep for less."""


class Bell:
    """One thread sleeps, any other one rings.

    To wake a thread takes longer than many a launch, as both want the interpreter then. So where those who bring something
    have done it themselves again and again, they are trusted to do so again, and `announce` does not ring; the thread looks
    now and then whether it was so.

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
        self._helped = self._polls = 0
        self._polling = False  # it sleeps for `POLL` at most

    def ring(self) -> None:
        """Let the thread go on, if it sleeps; the lock is held."""
        if self.asleep:
            self.asleep = False
            self._gate.release()

    def announce(self, alone: bool) -> None:
        """As `ring`, by one who may do the work; `alone`: there is no other."""
        if not self._polling or not alone:
            self.ring()

    def helped(self) -> None:
        """Whoever came has done the work."""
        self._helped += 1
        if self._helped >= TRUSTED and not self._polling:
            with self._lock:
                self.ring()  # it looks by itself from now on

    def sleep(self, seconds: float | None) -> None:
        """Wait until somebody rings, or so long, unless there is something already."""
        while True:
            with self._lock:
                if self._busy():
                    return
                self.asleep = True
                self._polling = polls = seconds is None and self._helped >= TRUSTED
            if self._gate.acquire(timeout=POLL if polls else -1 if seconds is None else seconds):
                return
            with self._lock:
                if self.asleep:
                    self.asleep = False
                    if not polls or not self._looked():
                        return
                    continue
            self._gate.acquire()  # somebody has just released it
            return

    def _looked(self) -> bool:
        """Whether the thread may sleep on, after it has looked by itself; the lock is held."""
        self._polls = self._polls + 1 if self._helped == TRUSTED else 0
        if self._busy() or self._polls >= POLLS:
            self._helped = self._polls = 0  # nobody did it, or nobody came for long
        elif self._helped > TRUSTED:
            self._helped = TRUSTED
        return not self._busy()


def leave_to(thread: threading.Thread) -> None:
    """Leave the interpreter to a thread with much to do for a moment, unless this is it: who goes on and on handing in lets it
    wait 5 ms (`sys.setswitchinterval`) after each of its calls to the device."""
    if threading.get_ident() != thread.ident:
        time.sleep(MOMENT)
