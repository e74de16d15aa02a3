"""Requests that wait, by deadline; the models that can share launches; and whose turn it is."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.cost import CostModel

__all__ = ["UNHURRIED", "Family", "Queue", "Request", "turn"]

Q = TypeVar("Q", bound="Queue")

UNHURRIED = 1.0
"""Seconds after which a request without a deadline should be answered: what it may be ordered by."""

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


class Queue:
    """What waits for the launches of one code, and when these begin; it knows no programs. Used under the engine's lock.

    Attributes:
        cost: T(n).
        exclusive: a launch has one request of a model: models change weights of theirs.
        late: launches take far longer than predicted; such a family runs by itself, one request a launch, after the others.

    Args:
        models: how many there are of the code.
        most: requests of a launch.
    """

    def __init__(self, models: int, most: int, exclusive: bool, cost: CostModel):
        self.models, self.most, self.exclusive, self.cost = models, most, exclusive, cost
        self.late = False
        self._waiting: list[Request] = []
        self._interval = float("inf")
        self._last = 0.0
        self._slow = self._quick = 0

    @property
    def limit(self) -> int:
        """Most requests of a launch now."""
        return 1 if self.late else self.most

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

        It pays where launches of what waits would not keep up with what comes (otherwise others join while one runs), where the
        next one is expected sooner than what a launch with it saves, and as long as the first one's deadline allows: no more
        than half of its slack is spent so.
        """
        first, count = self.first(), self.count()
        if first is None or count >= self.limit or self.exclusive and self.models <= count:
            return 0.0
        if self.cost(count) <= count * self._interval:
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


class Family(Queue):
    """Programs of one code, with weights of their own: their requests share launches.

    Attributes:
        programs: by the name of the model.
        batch: launches them.

    Args:
        limit: most requests of a launch, if the code takes as many.
    """

    def __init__(self, programs: Mapping[str, Program], limit: int):
        program = next(iter(programs.values()))
        exclusive = any(n < len(program.signature.weights) for n in program.signature.written)
        self.programs = dict(programs)
        self.batch, self._device = program.batch(min(limit, program.most_requests)), program.device
        super().__init__(len(programs), self.batch.limit, exclusive, CostModel([], []))

    def finish(self) -> None:
        """Wait until what was launched is done."""
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.current_stream(self._device).synchronize()


def turn(queues: Sequence[Q], now: float, closing: bool = False) -> tuple[Q | None, float | None]:
    """Whose turn it is: the earliest deadline's, but for those that had better wait for a request more; late ones come later.

    Args:
        now: as `Request.deadline` counts.
        closing: no more requests come, so nobody waits for one.

    Returns:
        The queue; or None, and the seconds after which to ask again (None: not before another request comes).
    """
    ready = [(request, queue) for queue in queues if (request := queue.first()) is not None]
    pauses = []
    for _, queue in sorted(ready, key=lambda one: (one[0].deadline + one[1].late * UNHURRIED, one[0].number)):
        pause = 0.0 if closing else queue.patience(now)
        if pause <= 0:
            return queue, None
        pauses.append(pause)
    return None, min(pauses, default=None)
