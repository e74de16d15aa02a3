"""An engine of 64 towers under a load, beside what was forecast of it and beside PyTorch one call after the other.

    python -m bench.requests.load [--requests 4000] [--deadline 0.005] [--json FILE]

Requests come at times of a Poisson process, to all towers alike (widths as `bench.requests.coalesced`, f32, one row, weights of
their own), whether or not earlier ones are answered. The engine's own time for a request is measured on a burst that is as long
as the loads, and is the only figure that the forecast has beside T(n), which the engine measures when it is made. Rates are
shares of what PyTorch does one after the other. Goodput is requests a second within the deadline.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kitsune_mlir
from bench.records import Record
from bench.requests.coalesced import MODELS, WIDTHS, tower
from bench.requests.systems import Taker, one_by_one
from bench.timing import commit_of
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.serving.statistics import percentile

SHARES = (0.25, 0.5, 0.8, 1.2, 2.0)
ROWS = 256
"""Inputs that requests are drawn from."""

Submit = Callable[[int, Tensor, Callable[[Any], None]], None]
"""Hands in a call of a model, and what is to be called with its output, or the error that it ended with."""


def offer(
    dues: Sequence[float], send: Callable[[int, Callable[[Any], None]], None], parts: int = 1
) -> tuple[list[float], float]:
    """An open loop: send each request when it is due, whether or not earlier ones are answered.

    Args:
        dues: seconds after the start, in order.
        send: hands in the request of this number; what it gets is to be called with each output, or error.
        parts: how many outputs a request has.

    Returns:
        Seconds from when a request was due until its last output, sorted, of those without errors; and seconds of it all.

    Raises:
        TimeoutError: some have not ended a minute after the last one was sent.
    """
    lock, times, done = threading.Lock(), list[float](), threading.Event()
    waiting, failed, left = [parts] * len(dues), set[int](), [len(dues)]
    start = time.perf_counter()
    for number, due in enumerate(dues):
        while (wait := start + due - time.perf_counter()) > 0:
            time.sleep(wait if wait > 1e-3 else 0)

        def ended(output: Any, number: int = number, due: float = start + due) -> None:
            now = time.perf_counter()
            with lock:
                waiting[number] -= 1
                if isinstance(output, BaseException):
                    failed.add(number)
                if not waiting[number]:
                    times.extend(() if number in failed else (now - due,))
                    left[0] -= 1
                    if not left[0]:
                        done.set()

        send(number, ended)
    if not done.wait(60):
        raise TimeoutError(f"{left[0]} requests of {len(dues)} have no answer")
    return sorted(times), time.perf_counter() - start


def load(submit: Submit, inputs: list[Tensor], rate: float, count: int, deadline: float, seed: int) -> dict[str, float]:
    """Send requests at a rate; percentiles in milliseconds, goodput a second."""
    draw = random.Random(seed)
    dues = list(itertools.accumulate(draw.expovariate(rate) for _ in range(count)))
    asked = [(draw.randrange(MODELS), draw.choice(inputs)) for _ in range(count)]
    ordered, seconds = offer(dues, lambda number, ended: submit(*asked[number], ended))
    return {
        "p50": round(1e3 * percentile(ordered, 50), 3),
        "p99": round(1e3 * percentile(ordered, 99), 3),
        "goodput": round(sum(one <= deadline for one in ordered) / seconds, 1),
    }


def engine_submit(engine: kitsune_mlir.serving.engine.Engine, deadline: float | None) -> Submit:
    """Hands calls to an engine."""

    def submit(model: int, x: Tensor, ended: Callable[[Any], None]) -> None:
        future = engine.submit(str(model), (x,), deadline=deadline)
        future.add_done_callback(lambda future: ended(future.exception() or future.result()))

    return submit


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000, help="of each load")
    parser.add_argument("--deadline", type=float, default=0.005, help="seconds")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    models = [tower().eval() for _ in range(MODELS)]
    inputs = [torch.randn(1, WIDTHS[0]) for _ in range(ROWS)]
    program = kitsune_mlir.compile(models[0], (inputs[0],), target="host")
    programs = [program.with_weights(dict(model.named_parameters())) for model in models]
    with torch.no_grad():
        start = time.perf_counter()
        for number in range(asked.requests):
            models[number % MODELS](inputs[number % ROWS])
        capacity = asked.requests / (time.perf_counter() - start)
    record = Record.open(asked.json)
    record.begin({"command": "python -m bench.requests.load", "commit": commit_of(), "device": device_name("cpu")})
    with kitsune_mlir.serve(programs, limit=32, capacity=2 * asked.requests) as engine:
        burst = load(engine_submit(engine, None), inputs, 1e9, asked.requests, float("inf"), 0)
        measured = asked.requests / burst["goodput"]
        overhead = max(0.0, (measured - engine.forecast(1e9, count=asked.requests).seconds) / asked.requests)
        print(
            f"PyTorch: {capacity:.0f} requests a second; the engine's own time: {1e6 * overhead:.0f} us a request", flush=True
        )
        for share in SHARES:
            rate = share * capacity
            expected = engine.forecast(rate, count=asked.requests, deadline=asked.deadline, overhead=overhead)
            found = {"kitsune": load(engine_submit(engine, asked.deadline), inputs, rate, asked.requests, asked.deadline, 1)}
            taker = Taker(one_by_one(models, inputs[:1]))
            found["eager"] = load(taker.submit, inputs, rate, asked.requests, asked.deadline, 1)
            taker.close()
            forecast = {
                "p50": round(1e3 * expected.p50, 3),
                "p99": round(1e3 * expected.p99, 3),
                "goodput": round(expected.goodput, 1),
            }
            entry = {
                "case": f"towers at {share} of PyTorch's rate",
                "ok": True,
                "rate": round(rate, 1),
                "deadline": asked.deadline,
            }
            entry |= {**found, "forecast": forecast, "overhead": overhead, "requests": asked.requests}
            print(entry["case"], {**found, "forecast": forecast}, flush=True)
            record.add(entry)


if __name__ == "__main__":
    main()
