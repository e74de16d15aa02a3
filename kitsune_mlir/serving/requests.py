"""Requests that wait, by deadline, and whose turn it is."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from kitsune_mlir.serving.answer import Answer
from kitsune_mlir.serving.backlog import Backlog
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.groups import Member

__all__ = ["UNHURRIED", "Queue", "Request", "Waiting", "numbers", "turn"]

Q = TypeVar("Q", bound="Queue")

UNHURRIED = 1.0
"""Seconds after which a request without a deadline should be answered: what it may be ordered by."""

WEIGHT = 0.2
"""Of a new time between arrivals, in the moving average."""

LATE, LATE_TIMES = 1.5, 3
"""A family is late when so many launches in a row took so many times as long as predicted."""

FEW = 1.5
"""Times as long as one of a request may take a launch of a family that is late."""

SMALLER = 8
"""Launches in a row that are kept small for the sake of their first requests."""

PROBATION = 16
"""Launches on time after which it is late no more."""

SPARED = 0.5
"""Of a deadline, for the launch of a request whose turn has come."""

SEATS = 4
"""A launch has so many times as many as may wait whatever comes before them."""

PACED = 8
"""Launches from one pace to the next."""

numbers = itertools.count()
"""Of requests, in the order in which they come."""

_NEVER = float("inf")
_NONE: Mapping[str, Any] = {}


class Request(Answer):
    """A request that waits, and the future of its answer; the one with the earliest deadline comes first, of equal ones the
    first that came.

    Attributes:
        deadline: time.monotonic() (or another clock) at which it should be answered.
        model: its name.
        args, kwargs: of the call; empty when it is answered.
        strict: whether the deadline was asked for, so that it is not started later.
        arrived: when it came.
        number: of requests, in the order in which they came.
        length, seconds: what an engine's backlog knows it by.

    Args:
        on_cancel: called with it, once, when it is cancelled.
        on_wait: called with it by a thread that asks for its answer, and whether it is about to wait for it, for as long as it
            takes.
    """

    length, seconds = 0, 0.0

    def __init__(
        self,
        deadline: float,
        model: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        strict: bool,
        arrived: float,
        on_cancel: Callable[[Request], None] | None = None,
        on_wait: Callable[[Request, bool], None] | None = None,
    ):
        self.deadline, self.strict, self.arrived, self.number = deadline, strict, arrived, next(numbers)
        self.model, self.args, self.kwargs = model, args, kwargs
        self._on_cancel, self._on_wait = on_cancel, on_wait

    def result(self, timeout: float | None = None) -> Any:
        """As of `Future`."""
        self._looked_at(timeout is None)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of `Future`."""
        self._looked_at(timeout is None)
        return super().exception(timeout)

    def done(self) -> bool:
        """As of `Future`."""
        self._looked_at(False)
        return super().done()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As of `Future`."""
        self._looked_at(False)
        super().add_done_callback(fn)

    def waited_for(self) -> None:
        """As of `Answer`."""
        self._looked_at(False)

    def _looked_at(self, waits: bool) -> None:
        if self.pending and self._on_wait is not None:
            self._on_wait(self, waits)

    def dropped(self) -> None:
        """As of `Answer`."""
        self.forget()
        if self._on_cancel is not None:
            self._on_cancel(self)

    def forget(self) -> None:
        """Let its arguments go: the future may live on."""
        self.args, self.kwargs = (), _NONE


Waiting = Request | Member
"""What a queue holds."""

Turn = tuple[float, int, Waiting]
"""Deadline and number, by which requests are ordered, and the request."""


class Queue:
    """What waits for the launches of one code, and when these begin; it knows no programs. Used under the engine's lock.

    A request that would be late if it were launched now is set aside: it has a seat only where no other request waits, of any
    queue. So a load beyond what launches do costs those that come too late, not all of them, as the earliest deadline first
    would; and where launches are quicker than the model of costs has it, those set aside are run, and it learns.

    Attributes:
        cost: T(n).
        exclusive: a launch has one request of a model: models change weights of theirs.
        late: launches take far longer than predicted; such a family runs by itself, one request a launch, after the others.
        alone: there are no others, which a late family would hold up.
        overhead: seconds of the engine's own for each request of a launch, beside T(n).
        pace: seconds that a request takes in launches of as many as do best; 0 where nothing is known.
        least_waiting: so many wait before one is refused that seems to come too late: launches should not become small by
            refusals, for then each request takes longer, more are refused, and they become smaller still.

    Args:
        models: how many there are of the code.
        most: requests of a launch.
    """

    def __init__(self, models: int, most: int, exclusive: bool, cost: CostModel):
        self.models, self.most, self.exclusive, self.cost = models, most, exclusive, cost
        self.late = self.alone = self.aside = False
        self.backlog = Backlog()
        self.overhead = self.pace = 0.0
        self._spare = 0.0, 0.0  # seconds of the smallest launch, and of one of as many as do best
        self._observed, self.least_waiting, self._few = 0, 1 + most // SEATS, 1
        self._waiting: list[Turn] = []
        self._aside: list[Turn] = []
        self._interval = _NEVER
        self._last = 0.0
        self._slow = self._quick = self._smaller = 0

    def alike(self) -> Queue:
        """Another one, of the same costs, where nothing waits."""
        other = Queue(self.models, self.most, self.exclusive, CostModel([*self.cost.counts], [*self.cost.seconds]))
        other.overhead = self.overhead
        other.set_pace()
        return other

    def set_pace(self) -> None:
        """Work out the pace, of what launches are known to take."""
        self._few = max(1, self._fitting(FEW * self.expected(1), self.most + 1)) if self.cost.counts else 1
        widest = min(self.limit, self.models) if self.exclusive else self.limit
        best = min((s / n for n, s in zip(self.cost.counts, self.cost.seconds, strict=True) if n <= widest), default=0.0)
        self.pace = best + self.overhead if best else 0.0
        self._spare = self.expected(1), self.pace * widest
        self.least_waiting = 1 + self.limit // SEATS

    def spare(self, deadline: float) -> float:
        """Seconds before a deadline at which a request should have its turn: what a launch of many takes, or half of the
        deadline, for launches of fewer are made where others would take too long."""
        least, whole = self._spare
        return max(least, min(whole, SPARED * deadline))

    @property
    def limit(self) -> int:
        """Most requests of a launch now: of a family that is late as many as hardly take longer than one."""
        return min(self._few, self.most) if self.late else self.most

    def add(self, *requests: Waiting) -> None:
        """Let requests wait, in the order in which they came."""
        waiting, new = self._waiting, [(request.deadline, request.number, request) for request in requests]
        ordered = not waiting or waiting[-1] < new[0]
        waiting += new
        if not ordered or len(new) > 1:
            waiting.sort()  # two ordered runs are merged
        self.came(requests[-1].arrived, len(new))

    def came(self, last: float, count: int) -> None:
        """Learn how often requests come: so many since the last ones, of which the latest came at this time."""
        if not count:
            return
        if self._last:
            between, mean = (last - self._last) / count, self._interval
            self._interval = between if mean == _NEVER else mean + (1 - (1 - WEIGHT) ** count) * (between - mean)
        self._last = last

    @property
    def urgent(self) -> bool:
        """Whether requests wait that are not set aside."""
        return bool(self._waiting)

    def first(self) -> Waiting | None:
        """The request that is next: the one with the earliest deadline, of those that are not set aside if there are any."""
        return _head(self._waiting) or _head(self._aside)

    def hopeless(self, now: float) -> bool:
        """Whether all that waits would be late; sets aside what would."""
        request = _head(self._waiting)
        if request is not None and request.strict:
            soonest = now + self.expected(1)
            while request is not None and request.strict and request.deadline < soonest:
                bisect.insort(self._aside, self._waiting.pop(0))
                request = _head(self._waiting)
        return request is None

    def expired(self, now: float) -> list[Waiting]:
        """Those whose time is over; they wait no longer."""
        over = []
        for held in (self._waiting, self._aside):
            while (request := _head(held)) is not None and request.strict and request.deadline < now:
                over.append(held.pop(0)[2])
        return over

    def count(self) -> int:
        """How many requests would be taken now, at most."""
        return min(self.limit, len(self._waiting) or len(self._aside))

    def pending(self) -> list[Waiting]:
        """The requests that wait."""
        return [request for _, _, request in (*self._waiting, *self._aside)]

    def compact(self, live: int) -> None:
        """Drop cancelled requests where they are most of what is held."""
        if len(self._waiting) + len(self._aside) > 2 * live + 64:
            self._waiting, self._aside = _live(self._waiting), _live(self._aside)

    def take(self, now: float) -> list[Waiting]:
        """The next launch's requests, in the order of their deadlines: as many as fit and are answered in time."""
        count = whole = self.count()
        taken, left, end = list[Waiting](), list[Turn](), now + self.expected(whole)
        if not self.exclusive and self._waiting and self._waiting[0][0] >= end:
            taken = [turn[2] for turn in self._waiting[:count]]
            if not any([request.cancelled() for request in taken]):
                del self._waiting[:count]
                self._smaller = 0
                return taken
            taken = []
        while len(taken) < count and self._waiting:
            turn = self._waiting.pop(0)
            request = turn[2]
            if request.cancelled():
                continue
            if self.exclusive and any(request.model == other.model for other in taken):
                left.append(turn)
                continue
            if request.strict and request.deadline < end:
                fitting = self._fitting(request.deadline - now, count)
                if fitting <= len(taken) or not self._worth(fitting, count):
                    bisect.insort(self._aside, turn)
                    continue
                count, end = fitting, now + self.expected(fitting)
            taken.append(request)
        self._smaller = self._smaller + 1 if count < whole else 0
        for turn in left:
            bisect.insort(self._waiting, turn)
        return taken if taken or left else self._set_aside()

    def _set_aside(self) -> list[Waiting]:
        """Some of those that were set aside: as many as are done before another request comes, so that it need not wait."""
        count, taken, left = min(self.limit, len(self._aside)), list[Waiting](), list[Turn]()
        count = max(1, self._fitting(self._interval, count)) if self.expected(count) > self._interval else count
        while len(taken) < count and (request := _head(self._aside)) is not None:
            turn = self._aside.pop(0)
            if self.exclusive and any(request.model == other.model for other in taken):
                left.append(turn)
            else:
                taken.append(request)
        for turn in left:
            bisect.insort(self._aside, turn)
        return taken

    def expected(self, count: int) -> float:
        """From the start of a launch of so many requests to the answers."""
        return self.cost(count) + count * self.overhead

    def _fitting(self, slack: float, most: int) -> int:
        """How many requests a launch has that is over in time; at most `most`, which is too many."""
        return bisect.bisect_right(range(1, most), slack, key=self.expected)

    def _worth(self, few: int, many: int) -> bool:
        """Whether to launch a few requests for the sake of one that a launch of many would answer too late.

        It is where such launches keep up with what comes, because the others have their turn next, or do as much in their time
        as those of many; otherwise several come too late for the one. Not where nothing is known of launches of as many, nor
        again and again: what these take would not be learnt.
        """
        if not self.cost.knows(many) or self._smaller >= SMALLER:
            return False
        seconds = self.expected(few)
        return seconds < few * self._interval or many * seconds <= few * self.expected(many)

    def patience(self, now: float) -> float:
        """Seconds that it pays to wait for another request; 0 is none.

        It pays where launches of what waits would not keep up with what comes (otherwise others join while one runs), where the
        next one is expected sooner than what a launch with it saves, and as long as the first one's deadline allows: no more
        than half of its slack is spent so.
        """
        first = self.first()
        return 0.0 if first is None else self.pause(now, self.count(), first.deadline, max(self._last, first.arrived))

    def pause(self, now: float, count: int, deadline: float, last: float) -> float:
        """As `patience`, of so many requests, with the first one's deadline, of which the last came at this time."""
        if count >= self.limit or self.exclusive and self.models <= count:
            return 0.0
        if self.cost(count) <= count * self._interval:
            return 0.0
        slack = deadline - now - self.cost(count + 1)
        wanted = min(self.cost.gain(count), slack / 2)
        return max(0.0, wanted - (now - last)) if self._interval < wanted else 0.0

    def observe(self, count: int, seconds: float, whole: float | None = None, judged: bool = True) -> None:
        """Learn from a launch, and whether the family is late.

        Args:
            whole: seconds until the requests were answered, what the engine itself did included.
            judged: these are the launch's own seconds; else it was over before somebody looked, and says nothing of lateness.
        """
        ratio, late = self.cost.observe(count, seconds) if judged else min(LATE, self.cost.observe(count, seconds)), self.late
        if whole is not None:
            # Small launches tell little: what a launch costs however few it has would seem to be what each request does.
            self.overhead += WEIGHT * count / self.most * ((whole - seconds) / count - self.overhead)
        self._slow = self._slow + 1 if ratio > LATE else 0
        self._quick = self._quick + 1 if ratio <= LATE else 0
        if self._slow >= LATE_TIMES and not self.alone:
            self.late, self._quick = True, 0
        elif self.late and self._quick >= PROBATION:
            self.late = False
        self._observed += 1
        if self._observed % PACED == 1 or self.late != late:
            self.set_pace()


def _head(held: list[Turn]) -> Waiting | None:
    """The first one; those that were cancelled are dropped on the way."""
    while held and held[0][2].cancelled():
        held.pop(0)
    return held[0][2] if held else None


def _live(held: list[Turn]) -> list[Turn]:
    return [turn for turn in held if not turn[2].cancelled()]


def turn(queues: Sequence[Q], now: float, closing: bool = False) -> tuple[Q | None, float | None]:
    """Whose turn it is: the earliest deadline's, but for those that had better wait for a request more; late ones come later,
    and those of which every request would be late come last.

    Args:
        now: as `Request.deadline` counts.
        closing: no more requests come, so nobody waits for one.

    Returns:
        The queue; or None, and the seconds after which to ask again (None: not before another request comes).
    """
    ready = [(queue.hopeless(now), request, queue) for queue in queues if (request := queue.first()) is not None]
    pauses = []
    for _, _, queue in sorted(ready, key=lambda one: (one[0], one[1].deadline + one[2].late * UNHURRIED, one[1].number)):
        pause = 0.0 if closing else queue.patience(now)
        if pause <= 0:
            return queue, None
        pauses.append(pause)
    return None, min(pauses, default=None)
