"""How long the first runs of something take on a GPU, known when they are over: nobody waits for them."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

__all__ = ["Watch"]


class Watch:
    """Looks at some runs.

    Attributes:
        left: how many it will look at.

    Args:
        runs: how many at most; 0 where there is no GPU.
    """

    def __init__(self, runs: int):
        self.left = runs
        self._pending: deque[tuple[Any, Any]] = deque()
        self._seconds = float("inf")

    def begin(self) -> Any:
        """Before a run on the current stream; what `end` wants. None where it is not looked at."""
        if self.left <= 0 or torch.cuda.is_current_stream_capturing():
            return None
        self.left -= 1
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self, begun: Any) -> None:
        """After it."""
        if begun is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._pending.append((begun, event))

    @property
    def over(self) -> bool:
        """Whether all runs that were to be looked at have ended."""
        return not self.left and self.seconds is not None and not self._pending

    @property
    def seconds(self) -> float:
        """Of the shortest run that has ended; infinite if none has."""
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._seconds = min(self._seconds, 1e-3 * begin.elapsed_time(end))
        return self._seconds
