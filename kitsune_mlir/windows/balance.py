"""Whether a capture pays: what Python does for it, beside what its segments save at best."""

from __future__ import annotations

import logging
import sys
import threading
import time

from kitsune_mlir.windows.segments import Entry

__all__ = ["Balance", "Place", "place_of"]

LEAST = 0.02
"""Seconds that capturing segments has taken, in all blocks, before it is judged."""
STEP = 1e-3
"""Seconds of capturing from one judgement to the next."""
SURE = 3
"""Blocks in a row that were slower than PyTorch, after which those that begin at the same place are not captured."""
SKIPPED, MOST_SKIPPED = 16, 4096
"""Blocks that are not captured then, before one is again; twice as many each time, up to the second number."""
MOST_PLACES = 4096

logger = logging.getLogger("kitsune_mlir.windows")


class Place:
    """A line of code at which blocks begin.

    Attributes:
        name: file and line.
        skips: how many blocks are not captured yet.
    """

    def __init__(self, name: str):
        self.name, self.skips = name, 0
        self._lost, self._next, self._told = 0, SKIPPED, False

    def skip(self) -> bool:
        """Whether the block that begins is not captured."""
        self.skips -= self.skips > 0
        return self.skips > 0

    def ended(self, why: str) -> None:
        """A captured block has ended.

        Args:
            why: it was slower than PyTorch; empty where it was not.
        """
        if not why:
            self._lost, self._next, self.skips = 0, SKIPPED, 0
            return
        self._lost += 1
        if self._lost >= SURE:
            self.skips, self._next = 1 + self._next, min(MOST_SKIPPED, 2 * self._next)
        if not self._told:
            self._told = True
            logger.warning("the window at %s steps aside and leaves its work to PyTorch: %s", self.name, why)


_places: dict[str, Place] = {}


def place_of(depth: int) -> Place:
    """The place at which a function was called; `depth` frames above the caller of this one."""
    frame = sys._getframe(1 + depth)
    name = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    if name not in _places and len(_places) >= MOST_PLACES:
        _places.clear()
    return _places.setdefault(name, Place(name))


class Balance:
    """Of one block: each segment's part of what capturing took.

    Attributes:
        apart: seconds of this thread in what eager would do, too, or once: running segments, calls that are not captured,
            waiting, compiling.
    """

    def __init__(self) -> None:
        self.apart = 0.0
        self._thread = threading.get_ident()
        self._spent = self._judged = self._ended = 0.0
        self._of: dict[Entry, list[float]] = {}  # how often it came, and seconds

    def now(self) -> float:
        """Seconds of this thread that are not apart, since some time."""
        return time.perf_counter() - self.apart

    def captured(self, since: float) -> None:
        """Python has worked for the capture since then, by `now`."""
        self._spent += self.now() - since

    def ran(self, since: float) -> None:
        """Something ran that is apart, since then by `time.perf_counter`; in whatever thread."""
        if threading.get_ident() == self._thread:
            self.apart += time.perf_counter() - since

    def segment(self, entry: Entry) -> None:
        """All that was captured since the last one is a segment of this entry."""
        own = self._of.setdefault(entry, [0, 0.0])
        seconds, self._ended = self._spent - self._ended, self._spent
        own[0] += 1
        own[1] += seconds
        entry.captured += seconds

    def loses(self, last: bool = False) -> str:
        """Why the capture is slower than PyTorch, even if no segment that may be compiled yet took any time then; empty where
        it is not, or not known.

        Args:
            last: the block is over; else there is no judgement so soon after the one before.
        """
        if not last and self._spent < self._judged + STEP:
            return ""
        self._judged = self._spent
        known = [(entry, *own) for entry, own in self._of.items() if entry.eager_seconds < float("inf")]
        spent = sum(seconds for _, _, seconds in known)
        eager = sum(count * entry.eager_seconds for entry, count, _ in known)
        best = sum(count * entry.least_seconds for entry, count, _ in known)
        if sum(entry.captured for entry, _, _ in known) < LEAST or spent + best <= eager:
            return ""
        parts = f"{1e3 * spent:.3g} ms of Python, and {1e3 * best:.3g} at least to run it"
        return f"capturing what takes PyTorch {1e3 * eager:.3g} ms took {parts}"
