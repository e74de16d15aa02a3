"""What an engine will do under a load: its own order of requests and launches, on a clock that only counts.

Launches take what the cost model says, so what is forecast is known before a machine is asked for: at which rate requests come
too late, and how many share a launch.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.serving.backlog import Backlog, length_of
from kitsune_mlir.serving.requests import UNHURRIED, Queue, Request, turn
from kitsune_mlir.serving.statistics import percentile

__all__ = ["Forecast", "simulate"]

TICK = 1e-7
"""Seconds that the clock goes on at least: a shorter pause might round to none."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Of one load.

    Attributes:
        latencies: seconds from arrival to answer, in order, of requests that are answered.
        refused: requests that are not taken in, because too much waits for an answer in time.
        expired: requests whose time is over before they are started.
        in_time: requests answered within the deadline (all that are answered, without one).
        launches: of which each has one request or more.
        seconds: from the first arrival to the last answer.
    """

    latencies: Sequence[float]
    refused: int
    expired: int
    in_time: int
    launches: int
    seconds: float

    @property
    def p50(self) -> float:
        """Seconds that half of the answered requests do not exceed."""
        return percentile(list(self.latencies), 50)

    @property
    def p99(self) -> float:
        """Seconds that 99 of 100 answered requests do not exceed."""
        return percentile(list(self.latencies), 99)

    @property
    def goodput(self) -> float:
        """Requests a second that are answered in time."""
        return self.in_time / self.seconds if self.seconds else 0.0


def simulate(
    queues: Sequence[Queue],
    rate: float,
    count: int,
    *,
    deadline: float | None = None,
    overhead: float = 0.0,
    refusal: float = 0.0,
    seed: int = 0,
) -> Forecast:
    """Run requests of a Poisson process, to all models alike, through queues like these, which stay as they are.

    Args:
        rate: requests a second.
        count: requests.
        deadline: seconds that each has, or None.
        overhead: seconds that the engine spends on a request beside its launches.
        refusal: seconds that it spends on a request that it does not take in.

    Raises:
        ArgumentError: the rate or the count is not above 0.
    """
    if not rate > 0 or count < 1:
        raise ArgumentError(f"a load has a rate and a count above 0, not {rate!r} and {count!r}")
    like = [queue.alike() for queue in queues]
    for one in like:
        one.overhead = overhead
        one.set_pace()
    backlog, length = Backlog(), length_of(deadline or UNHURRIED)
    coming = _arrivals(like, rate, count, deadline, random.Random(seed))
    now, begun, place, launches, expired, refused = 0.0, 0.0, 0, 0, 0, 0
    latencies: list[float] = []
    while True:
        while place < count and coming[place][0].arrived <= now:
            request, queue = coming[place]
            place += 1
            room = backlog.room(request.arrived, request.deadline - request.arrived, length)
            short = room < queue.spare(request.deadline - request.arrived)
            if request.strict and short and sum(len(one.pending()) for one in like) >= queue.least_waiting:
                refused += 1
                now += refusal
                continue
            request.length, request.seconds = length, queue.pace
            backlog.enter(length, queue.pace)
            queue.add(request)
        over = [request for one in like for request in one.expired(now)]
        backlog.leave(over)
        expired += len(over)
        now += overhead * len(over)
        queue, pause = turn(like, now, closing=place == count)
        if queue is None:
            if place == count:
                break
            begun = now = min(coming[place][0].arrived, now + (float("inf") if pause is None else max(pause, TICK)))
            continue
        taken = queue.take(now)
        backlog.leave(taken)
        seconds = queue.cost(len(taken))
        now += overhead * len(taken) + seconds
        queue.observe(len(taken), seconds, now - begun)
        begun = backlog.free = now
        launches += 1
        latencies += [now - request.arrived for request in taken]
    in_time = sum(deadline is None or latency <= deadline for latency in latencies)
    return Forecast(sorted(latencies), refused, expired, in_time, launches, now - coming[0][0].arrived)


def _arrivals(
    queues: Sequence[Queue], rate: float, count: int, deadline: float | None, draw: random.Random
) -> list[tuple[Request, Queue]]:
    """Requests in the order of their times, each with its queue; the first one comes a moment after 0."""
    models = [(str(number), queue) for queue in queues for number in range(queue.models)]
    time, found = 0.0, []
    for _ in range(count):
        time += draw.expovariate(rate)
        name, queue = draw.choice(models)
        due = time + (UNHURRIED if deadline is None else deadline)
        found.append((Request(due, name, (), {}, deadline is not None, time), queue))
    return found
