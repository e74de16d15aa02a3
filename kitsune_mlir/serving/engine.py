"""An engine that serves programs: requests of any threads, joined into launches, the earliest deadline first.

As in "The OoO VLIW JIT Compiler for GPU Inference" (section 4): requests of models with the same code become one launch, each
with its own weights, deadlines decide the order, and who is late is taken out of what others share. A request waits to be
joined only while its slack allows it and the model of costs expects a gain (`requests.Family.patience`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from kitsune_mlir.errors import ArgumentError, BusyError, ConflictError, DeadlineError, KitsuneError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.families import families_of
from kitsune_mlir.serving.requests import UNHURRIED, Family, Request, turn
from kitsune_mlir.serving.simulate import Forecast, simulate
from kitsune_mlir.serving.statistics import Statistics

__all__ = ["Engine", "serve"]


def serve(
    models: Mapping[str, Program] | Sequence[Program], *, limit: int = 32, capacity: int = 1024, measure: bool = True
) -> Engine:
    """Serve programs: an engine that takes requests from any threads.

        with kitsune_mlir.serve({"a": program, "b": program.with_weights(weights)}) as engine:
            future = engine.submit("a", (x,), deadline=0.005)
            y = future.result()

    Args:
        models: programs by name; those of a sequence are called "0", "1", ... Programs of one code share launches: made by
            `Program.with_weights`, or compiled of the same model.
        limit: most requests of a launch (of what a program was compiled for: option `requests` on a GPU).
        capacity: most requests that wait at a time.
        measure: run each code with random inputs now, to know what launches of so many requests take; otherwise it is learnt.

    Raises:
        ArgumentError: a limit is not above 0, or there are no models.
        TargetError: a program cannot run on this machine.
    """
    named = models if isinstance(models, Mapping) else {str(number): program for number, program in enumerate(models)}
    if not named:
        raise ArgumentError("there are no models to serve")
    for name, value in (("limit", limit), ("capacity", capacity)):
        if type(value) is not int or value < 1:
            raise ArgumentError(f"the {name} of an engine is a whole number above 0, not {value!r}")
    return Engine(families_of(named, limit, measure), capacity)


class Engine:
    """Serves families of programs by one thread that launches; `serve` makes it. A context manager, which closes it."""

    def __init__(self, families: Sequence[Family], capacity: int):
        self.capacity = capacity
        self._families = {name: family for family in families for name in family.programs}
        self._all = list(families)
        self._statistics = {name: Statistics() for name in self._families}
        self._lock = threading.Condition(threading.Lock())
        self._waiting = 0
        self._closed = False
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
            BusyError: `capacity` requests wait already, or the engine is closed.
        """
        family = self._families.get(model)
        if family is None:
            raise ArgumentError(f"there is no model '{model}'; models are {', '.join(sorted(self._families))}")
        if deadline is not None and not (isinstance(deadline, int | float) and 0 < deadline < float("inf")):
            raise ArgumentError(f"a deadline is a number of seconds above 0, not {deadline!r}")
        strict = deadline is not None
        request = Request.of(time.monotonic() + (deadline or UNHURRIED), model, args, kwargs or {}, strict)
        statistics = self._statistics[model]
        with self._lock:
            if self._closed:
                raise BusyError("the engine is closed")
            if self._waiting >= self.capacity:
                statistics.refused += 1
                raise BusyError(f"{self._waiting} requests wait, and the engine's capacity is {self.capacity}: try again later")
            statistics.submitted += 1
            self._waiting += 1
            family.add(request)
            self._lock.notify()
        request.future.add_done_callback(lambda future: self._cancelled(model) if future.cancelled() else None)
        return request.future

    def __call__(self, model: str, *args: Any, deadline: float | None = None, **kwargs: Any) -> Any:
        """Submit a call and wait for its output."""
        return self.submit(model, args, kwargs, deadline=deadline).result()

    def stats(self) -> dict[str, Any]:
        """ "models": by name the counts of `Statistics`, with "p50" and "p99" of the latest latencies in seconds; "waiting"
        requests, and the "capacity" for them."""
        with self._lock:
            models = {name: statistics.to_dict() for name, statistics in self._statistics.items()}
            return {"models": models, "waiting": self._waiting, "capacity": self.capacity}

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
        with self._lock:
            return simulate(self._all, rate, count, deadline=deadline, overhead=overhead, seed=seed)

    def close(self, cancel: bool = False) -> None:
        """Take no more requests, and return when those that wait are answered, or cancelled."""
        with self._lock:
            self._closed = True
            pending = [request for family in self._all for request in family.pending()] if cancel else []
            self._lock.notify_all()
        for request in pending:
            request.future.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancelled(self, model: str) -> None:
        with self._lock:
            self._waiting -= 1
            self._statistics[model].cancelled += 1
            self._families[model].compact(self._waiting)
            self._lock.notify()

    def _serve(self) -> None:
        """Launch until the engine is closed and nothing waits."""
        while True:
            with self._lock:
                while True:
                    now = time.monotonic()
                    over = [request for family in self._all for request in family.expired(now)]
                    family, pause = turn(self._all, now, self._closed)
                    if family is not None or over:
                        break
                    if self._closed and not any(one.first() for one in self._all):
                        return
                    self._lock.wait(pause)
                requests = family.take(now) if family is not None else []
            self._refuse(self._started(over))
            if family is not None and (started := self._started(requests)):
                self._launch(family, started)

    def _started(self, requests: Sequence[Request]) -> list[Request]:
        """Those of requests that were not cancelled; they cannot be any more, and wait no longer."""
        started = [request for request in requests if request.future.set_running_or_notify_cancel()]
        with self._lock:
            self._waiting -= len(started)
        return started

    def _refuse(self, requests: Sequence[Request]) -> None:
        """Answer those whose time is over."""
        for request in requests:
            late = 1e3 * (time.monotonic() - request.deadline)
            self._answer(request, DeadlineError(f"the deadline of model '{request.model}' was over {late:.1f} ms ago"), 1)

    def _launch(self, family: Family, rest: Sequence[Request]) -> None:
        begin = start = time.perf_counter()
        outputs = self._outputs(family, rest)
        seconds = time.perf_counter() - start
        failed = any(isinstance(output, Exception) for output in outputs)
        with self._lock:
            for name in {request.model for request in rest}:
                self._statistics[name].launches += 1
        for request, output in zip(rest, outputs, strict=True):
            if isinstance(output, ConflictError) and len(rest) > 1:
                (output,) = self._outputs(family, [request])
            self._answer(request, output, len(rest))
        if not failed:
            with self._lock:
                family.observe(len(rest), seconds, time.perf_counter() - begin)

    def _outputs(self, family: Family, requests: Sequence[Request]) -> list[Any]:
        """The output or the error of each; an error that is nobody's own is that of who has it when run alone."""
        programs = [family.programs[request.model] for request in requests]
        args, kwargs = [request.args for request in requests], [request.kwargs for request in requests]
        try:
            outputs = family.batch(args, programs, kwargs, return_exceptions=True)
            family.finish()
            return outputs
        except Exception as error:
            if len(requests) == 1:
                return [error]
            return [output for request in requests for output in self._outputs(family, [request])]

    def _answer(self, request: Request, output: Any, count: int) -> None:
        now, statistics = time.monotonic(), self._statistics[request.model]
        failed = isinstance(output, Exception)
        with self._lock:
            statistics.failed += failed
            statistics.expired += isinstance(output, DeadlineError)
            statistics.answered += not failed
            statistics.joined += count > 1
            if not failed:
                statistics.missed += request.strict and now > request.deadline
                statistics.latencies.append(now - request.arrived)
        if failed:
            own = (
                output.__cause__ if isinstance(output, KitsuneError) and isinstance(output.__cause__, KitsuneError) else output
            )
            request.future.set_exception(own)
        else:
            request.future.set_result(output)
