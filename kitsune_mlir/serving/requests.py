"""Requests that wait, by deadline; and the models that can share launches."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.cost import CostModel

__all__ = ["Family", "Request"]

WEIGHT = 0.2
"""Of a new time between arrivals, in the moving average."""

LATE, LATE_TIMES = 1.5, 3
"""A family is late when so many launches in a row took so many times as long as predicted."""

PROBATION = 16
"""Launches on time after which it is late no more."""

_numbers = itertools.count()


@dataclasses.dataclass(order=True)
class Request:
    """A request that waits; the one with the earliest deadline comes first, of equal ones the first that came.

    Attributes:
        deadline: time.monotonic() at which it should be answered.
        strict: whether that was asked for, so that it is not started later.
    """

    deadline: float
    number: int
    model: str = dataclasses.field(compare=False)
    args: Sequence[Any] = dataclasses.field(compare=False)
    kwargs: Mapping[str, Any] = dataclasses.field(compare=False)
    future: Future[Any] = dataclasses.field(compare=False)
    strict: bool = dataclasses.field(compare=False)
    arrived: float = dataclasses.field(compare=False, default_factory=time.monotonic)

    @staticmethod
    def of(deadline: float, model: str, args: Sequence[Any], kwargs: Mapping[str, Any], strict: bool) -> Request:
        """A new request."""
        return Request(deadline, next(_numbers), model, args, kwargs, Future(), strict)


class Family:
    """Programs of one code, with weights of their own: their requests share launches. Used under the engine's lock.

    Attributes:
        programs: by the name of the model.
        limit: most requests of a launch.
        cost: T(n).
        exclusive: a launch has one request of a model: models change weights of theirs.
        late: launches take far longer than predicted; such a family runs by itself, one request a launch, after the others.

    Args:
        limit: most requests of a launch, if the code takes as many.
    """

    def __init__(self, programs: Mapping[str, Program], limit: int):
        self.programs, self.cost = dict(programs), CostModel([], [])
        program = next(iter(programs.values()))
        self.batch, self._device = program.batch(min(limit, program.most_requests)), program.device
        self.exclusive = any(n < len(program.signature.weights) for n in program.signature.written)
        self.late = False
        self._waiting: list[Request] = []
        self._interval = float("inf")
        self._last = 0.0
        self._slow = self._quick = 0

    @property
    def limit(self) -> int:
        """Most requests of a launch now."""
        return 1 if self.late else self.batch.limit

    def add(self, request: Request) -> None:
        """Let a request wait."""
        heapq.heappush(self._waiting, request)
        if self._last:
            between = request.arrived - self._last
            self._interval = between if self._interval == float("inf") else self._interval + WEIGHT * (between - self._interval)
        self._last = request.arrived

    def first(self) -> Request | None:
        """The request with the earliest deadline; those that were cancelled are dropped on the way."""
        while self._waiting and self._waiting[0].future.cancelled():
            heapq.heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    def count(self) -> int:
        """How many requests would be taken now, at most."""
        return min(self.limit, len(self._waiting))

    def pending(self) -> list[Request]:
        """The requests that wait."""
        return list(self._waiting)

    def finish(self) -> None:
        """Wait until what was launched is done."""
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.current_stream(self._device).synchronize()

    def compact(self, live: int) -> None:
        """Drop cancelled requests where they are most of what is held."""
        if len(self._waiting) > 2 * live + 64:
            self._waiting = [request for request in self._waiting if not request.future.cancelled()]
            heapq.heapify(self._waiting)

    def take(self) -> list[Request]:
        """The next launch's requests, in the order of their deadlines."""
        taken: list[Request] = []
        left: list[Request] = []
        while len(taken) < self.limit and (request := self.first()) is not None:
            heapq.heappop(self._waiting)
            again = self.exclusive and any(request.model == other.model for other in taken)
            (left if again else taken).append(request)
        for request in left:
            heapq.heappush(self._waiting, request)
        return taken

    def patience(self, now: float) -> float:
        """Seconds that it pays to wait for another request; 0 is none.

        It pays where the next one is expected sooner than what a launch with it saves, and as long as the first one's deadline
        allows: no more than half of its slack is spent so.
        """
        first, count = self.first(), self.count()
        if first is None or count >= self.limit or self.exclusive and len(self.programs) <= count:
            return 0.0
        slack = first.deadline - now - self.cost(count + 1)
        wanted = min(self.cost.gain(count), slack / 2)
        waited = now - max(self._last, first.arrived)
        return max(0.0, wanted - waited) if self._interval < wanted else 0.0

    def observe(self, count: int, seconds: float) -> None:
        """Learn from a launch, and whether the family is late."""
        ratio = self.cost.observe(count, seconds)
        self._slow = self._slow + 1 if ratio > LATE else 0
        self._quick = self._quick + 1 if ratio <= LATE else 0
        if self._slow >= LATE_TIMES:
            self.late, self._quick = True, 0
        elif self.late and self._quick >= PROBATION:
            self.late = False
