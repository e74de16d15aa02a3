"""An engine that serves programs: requests of any threads, joined into launches, the earliest deadline first.

As in "The OoO VLIW JIT Compiler for GPU Inference" (section 4): requests of models with the same code become one launch, each
with its own weights, deadlines decide the order, and who is late is taken out of what others share. A request waits to be
joined only while its slack allows it and the model of costs expects a gain (`requests.Queue.patience`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any

from kitsune_mlir.errors import BusyError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.answer import start
from kitsune_mlir.serving.aside import Aside, slow
from kitsune_mlir.serving.backlog import Backlog, Lengths, busy, refusals, unknown
from kitsune_mlir.serving.bell import NAP, Bell, leave_to
from kitsune_mlir.serving.bulk import Bulk
from kitsune_mlir.serving.counts import Counts, too_late
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.groups import Call, Done, Group, begun, give
from kitsune_mlir.serving.handed import Handed, handed_in
from kitsune_mlir.serving.requests import UNHURRIED, Request, Waiting, turn
from kitsune_mlir.serving.simulate import Forecast, simulate
from kitsune_mlir.serving.waits import Waits

__all__ = ["Engine", "Source"]

Source = Callable[["Engine", bool], bool]
"""Hands in what has come, see `serve.serve`."""

_log = logging.getLogger(__name__)
_NONE: Mapping[str, Any] = {}


class Engine(Waits):
    """Serves families of programs by one thread that launches; `serve.serve` makes it. A context manager, which closes it.

    Requests lie in a list until the thread fetches them, all at once when it may launch again: a submission costs others a lock
    for a moment. What waits and what was counted have locks of their own, which nobody who submits takes.

    A thread that waits for the only request there is launches it itself: to wake the engine's thread, and to be woken by it,
    takes longer than many a launch. Only one thread launches at a time, and it never answers others' requests unless it is
    the engine's: what they call then is not its own.

    Args:
        clock: seconds, that deadlines and latencies are of.
        source: as of `serve.serve`.
    """

    def __init__(
        self,
        families: Sequence[Family],
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
        source: Source | None = None,
    ):
        self.capacity, self._source = capacity, source
        self._families = {name: family for family in families for name in family.programs}
        self._all, families[0].alone = [*families], len(families) == 1
        apart = slow(families)
        self._main = [family for family in families if family not in apart]
        self._counts, self._clock = Counts(self._families, clock), clock
        self._lead = threading.Lock()  # of who launches; taken before the others
        self._queues = threading.Lock()  # of what waits in families; taken before `_lock`
        self._lock = threading.Lock()  # of all below, and of figures of submissions
        self._arrived, self._waiting = list[Waiting](), 0
        self._backlog, self._length_of, self._closed, self._asking = Backlog(), Lengths(), False, False
        for family in self._main:
            family.aside, family.backlog = False, self._backlog
        own = self._lock, self._queues, self._counts, self._backlog, clock
        self._bulk = Bulk(*own, lambda: bool(self._arrived) or any(one.urgent for one in self._main), self._left)
        self._aside = Aside(apart, self._queues, self._counts, clock, self._fetched, self._started)
        self._bell = Bell(self._lock, lambda: any((self._arrived, self._aside.arrived, self._bulk, self._closed)))
        self._thread = threading.Thread(target=self._serve, name="kitsune-serve", daemon=True)
        self._thread.start()

    @property
    def models(self) -> dict[str, Program]:
        """The programs by name."""
        return {name: family.programs[name] for name, family in self._families.items()}

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def submit(
        self, model: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, *, deadline: float | None = None
    ) -> Future[Any]:
        """Hand in a call of a model; from any thread.

        Args:
            model: its name.
            args, kwargs: as a call of the program takes them; they must not change before the answer is there.
            deadline: seconds from now after which the answer is worth nothing; None where there is no hurry.

        Returns:
            The output, or the call's own error; DeadlineError where the time was over before it could be started.
            It can be cancelled until it is started.

        Raises:
            ArgumentError: there is no such model, or the deadline is no number above 0.
            BusyError: `capacity` requests wait already, or so many that it would be answered too late, or the engine is closed.
        """
        return self._submit(model, args, kwargs or _NONE, deadline, True)

    def _submit(
        self, model: str, args: Sequence[Any], kwargs: Mapping[str, Any], deadline: float | None, wakes: bool
    ) -> Request:
        """As `submit`; `wakes`: the engine's thread, if it is asleep."""
        family = self._families.get(model)
        if family is None:
            raise unknown(model, self._families)
        strict, due = deadline is not None, UNHURRIED if deadline is None else deadline
        length, now = self._length_of(due), self._clock()
        request = Request(now + due, model, args, kwargs, strict, now, self._cancelled, self._help)
        request.length, request.seconds = length, family.pace
        statistics = self._counts.of[model]
        with self._lock:
            waiting = self._waiting
            if self._closed:
                raise BusyError("the engine is closed")
            many = strict and waiting >= family.least_waiting
            if waiting >= self.capacity or many and family.backlog.room(now, due, length) < family.spare(due):
                statistics.refused += 1
                raise busy(waiting, self.capacity)
            statistics.submitted += 1
            family.backlog.enter(length, request.seconds)
            self._waiting = waiting + 1
            (self._aside.arrived if family.aside else self._arrived).append(request)
            if wakes and self._bell.asleep:
                self._bell.announce(not waiting)
        return request

    def submit_many(self, calls: Sequence[Call], done: Done, *, deadline: float | Sequence[float] | None = None) -> Group:
        """Hand in several calls at once; from any thread. It costs a fraction of as many calls of `submit`: no future is made.

        Args:
            calls: the model and the positional arguments of each; these must not change before the answer is there.
            done: `done(numbers, outputs)` is called when some of the calls have ended, which are those of a launch, with their
                places in `calls` and for each the output, or the error that `submit` or its future would raise. It should
                not take long: the thread that launches calls it (or this one, for calls that are not taken in, and for those
                of an engine's source, which are launched at once where nothing else waits).
            deadline: of all, or of each, as of `submit`.

        Returns:
            What cancels those of them that are not started.

        Raises:
            ArgumentError: there is no such model, or a deadline is no number above 0, or not one a call; nothing is handed in.
            BusyError: the engine is closed.
        """
        now, group = self._clock(), Group(done, self._drop)
        handed, due = handed_in(self._families, calls, deadline, self._length_of, group, now)
        main = [one for one in handed if not one.family.aside]
        if self._asking and len(main) == 1 and not self._closed and not (only := main[0]).family.exclusive:
            self._asking = False  # what is told may hand in more
            with self._lead:
                self._bulk.at_once(only)
            self._asking, now = True, self._clock()
            if only.start == len(calls) and not only.late:
                return group
            due = max([one.ends[call] for one in handed for call in one.rest]) - now
        if self._admit(handed, now, due) or (handed and self._waiting > handed[0].family.limit and not self._bulk.waits):
            leave_to(self._thread)
        return group

    def _admit(self, handed: Sequence[Handed], now: float, due: float) -> bool:
        """Let calls wait that were not launched at once, or refuse the last ones of each family; whether some were."""
        told = []
        with self._lock:
            if self._closed:
                raise BusyError("the engine is closed")
            for one in handed:
                backlog, rest = one.family.backlog, one.rest
                room = backlog.room(now, due, one.length) if one.strict else inf
                refused = refusals([one.family] * len(rest), self._waiting, self.capacity, room, due)
                taken, over = rest[: len(rest) - len(refused)], rest[len(rest) - len(refused) :]
                self._counts.handed_in([one.calls[call][0] for call in taken], [one.calls[call][0] for call in over])
                if one.family.aside:
                    self._aside.arrived += [one.member(call) for call in taken]
                elif one.start:
                    self._arrived += [one.member(call) for call in taken]
                elif taken:
                    one.stop = len(taken)
                    self._bulk.add(one)
                backlog.enter(one.length, len(taken) * one.seconds)
                self._waiting += len(taken)
                told.append((one.group, one.places(over), self._waiting))
            self._bell.ring()
        for group, places, waiting in told:
            group.tell(places, [busy(waiting, self.capacity)] * len(places))
        return any([places for _, places, _ in told])

    def __call__(self, model: str, *args: Any, deadline: float | None = None, **kwargs: Any) -> Any:
        """Submit a call and wait for its output."""
        return self._submit(model, args, kwargs, deadline, False).result()

    def stats(self) -> dict[str, Any]:
        """ "models": by name the counts of `Statistics`, "p50" and "p99" (seconds); "waiting" requests; the "capacity"."""
        with self._lock:
            return {"models": self._counts.to_dict(), "waiting": self._waiting, "capacity": self.capacity}

    def forecast(
        self, rate: float, *, count: int = 20_000, deadline: float | None = None, overhead: float = 0.0, seed: int = 0
    ) -> Forecast:
        """What is to be expected of requests of a Poisson process, to all models alike; nothing is run.

        Args:
            rate: requests a second.
            count: requests.
            deadline: seconds that each has, or None.
            overhead: seconds that the engine itself spends on a request, beside its launches.
            seed: of the times and models.
        """
        with self._queues:
            like = [family.alike() for family in self._all]
        return simulate(like, rate, count, deadline=deadline, overhead=overhead, seed=seed)

    def close(self, cancel: bool = False) -> None:
        """Take no more requests, and return when those that wait are answered, or cancelled."""
        with self._lock:
            self._closed = True
            self._bell.ring()
        for request in self._pending() if cancel else ():
            request.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sleep(self, seconds: float | None) -> None:
        self._bell.sleep(seconds if self._source is None else NAP)

    def _fetch(self, apart: bool) -> bool:
        """Put what has arrived into its families, and (`apart`) what was handed in together; whether nothing else comes."""
        with self._lock:
            if apart:
                self._arrived += self._bulk.members()
            arrived, closed, waiting = self._arrived, self._closed, self._waiting
            self._arrived = []  # an empty one, too: who comes from now on must not be in what is read below
        if arrived and len(self._main) == 1:
            self._main[0].add(*arrived)
        else:
            for request in arrived:
                self._families[request.model].add(request)
        for family in self._all:
            family.compact(waiting)
        return closed

    def _fetched(self) -> Sequence[Waiting]:
        """What has arrived for families that run beside the others, and is nowhere any more."""
        with self._lock:
            arrived, self._aside.arrived = self._aside.arrived, []
        return arrived

    def _serve(self) -> None:
        """Launch until the engine is closed and nothing waits. An error of the engine's own is told to all that wait."""
        try:
            while self._turn():
                pass
        except BaseException as error:
            with self._queues, self._lock:
                self._closed = True
                self._arrived += self._bulk.members()
                held, self._arrived, self._aside.arrived = begun(self._held()), [], []
            self._bulk.fail(error)
            self._aside.fail(error)
            give(held, [error] * len(held))
            raise

    def _turn(self) -> bool:
        """Ask the source, and launch what is next, or sleep; whether there may be more."""
        if self._source is not None and self._ask(self._source) and self._waiting <= self._aside.waiting:
            if self._aside:
                with self._lead:
                    self._aside.turn()
            return True
        with self._lead:
            apart, begin = self._bulk.launch(), self._clock()
            with self._queues:
                closed = self._fetch(apart)
                now = self._clock()
                over = [request for family in self._main for request in family.expired(now)]
                family, pause = turn(self._main, now, closed)
                requests = family.take(now) if family is not None else ()
                over, requests = self._started(over), self._started(requests)
            if over:
                give(over, self._counts.answered(over, too_late(over, self._clock()), 1))
            if requests and family is not None:
                self._backlog.free = now + family.expected(len(requests))
                self._launch(family, requests, begin)
            again = self._aside.turn(closed)
        if not over and family is None:
            pause = again if pause is None else pause if again is None else min(pause, again)
            if closed and pause is None and not self._bulk:
                return False
            if self._source is None or (pause is not None and pause > NAP):
                self._sleep(pause)
        return True

    def _help(self, request: Request, here: bool) -> None:
        """Launch a request that this thread is about to wait for (`here`), if it is the only one; else see to it that it is."""
        family = self._families[request.model]
        if here and self._waiting == 1 and family.at_home and self._lead.acquire(blocking=False):
            try:
                if self._alone(request):
                    give((request,), self._counts.alone(request, family.output(request.model, request.args, request.kwargs)))
                    self._bell.helped()
            except BaseException as error:  # this thread is interrupted, and nobody else would answer
                if not request.pending and not request.done():
                    request.set_exception(error)
                raise
            finally:
                self._lead.release()
        if request.pending:
            with self._lock:
                self._bell.ring()

    def _alone(self, request: Request) -> bool:
        """Start a request, if no other one waits and its time is not over; `_lead` is held."""
        with self._lock:
            if self._waiting != 1 or self._arrived != [request] or (request.strict and self._clock() > request.deadline):
                return False
            if started := start((request,)):
                self._arrived = []
                self._leave(started)
            return bool(started)

    def _ask(self, source: Source) -> bool:
        """Let a source hand in what has come; whether it was launched. One that fails is asked no more."""
        self._asking, again, before = True, False, self._bulk.last
        try:
            again = not self._closed and source(self, not self._waiting and before is None and not self._aside.busy)
        except Exception:
            _log.exception("exception calling %r", source)
        self._asking, self._source = False, source if again else None
        return self._bulk.last is not before

    def _started(self, requests: Sequence[Waiting]) -> Sequence[Waiting]:
        """Those of requests that were not cancelled; they cannot be any more, and wait no longer."""
        if not requests:
            return requests
        started = begun(requests)
        with self._lock:
            self._leave(started)
        return started

    def _launch(self, family: Family, requests: Sequence[Waiting], turned: float) -> None:
        """Run requests and answer them; the thread has turned to them at this time."""
        begin, models = self._clock(), [request.model for request in requests]
        try:
            outputs, right = family.outputs(models, [one.args for one in requests], [one.kwargs for one in requests])
            seconds = self._clock() - begin
            self._counts.launched(models)
        except BaseException as error:
            give(requests, [error] * len(requests))
            raise
        give(requests, self._counts.answered(requests, outputs, len(requests)))
        if right:
            with self._queues:
                family.observe(len(requests), seconds, self._clock() - turned)
