"""An engine of 64 towers under a load, beside what was forecast of it and beside PyTorch one call after the other.

    python -m bench.requests.load [--requests 4000] [--deadline 0.005] [--json FILE]

Requests come at times of a Poisson process, to all towers alike (widths as `bench.requests.coalesced`, f32, one row, weights of
their own), whether or not earlier ones are answered. The engine's own time for a request is measured on a burst that is as long
as the loads, and is the only figure that the forecast has beside T(n), which the engine measures when it is made. Rates are
shares of what PyTorch does one after the other. Goodput is requests a second within the deadline.
"""

from __future__ import annotations

import argparse
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kitsune_mlir
from bench.records import Record
from bench.requests.coalesced import MODELS, WIDTHS, tower
from bench.timing import commit_of
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.serving.statistics import percentile

SHARES = (0.25, 0.5, 0.8, 1.2, 2.0)
ROWS = 256
"""Inputs that requests are drawn from."""

Submit = Callable[[int, Tensor, Callable[[bool], None]], None]
"""Hands in a call of a model, and what is to be called with whether it was answered."""


def load(submit: Submit, inputs: list[Tensor], rate: float, count: int, deadline: float, seed: int) -> dict[str, float]:
    """Send requests at a rate; percentiles in milliseconds, goodput a second."""
    draw, lock = random.Random(seed), threading.Lock()
    times, left, done = list[float](), [count], threading.Event()
    start = due = time.perf_counter()
    for _ in range(count):
        due += draw.expovariate(rate)
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait if wait > 1e-3 else 0)

        def ended(answered: bool, due: float = due) -> None:
            now = time.perf_counter()
            with lock:
                times.extend([now - due] if answered else [])
                left[0] -= 1
                if not left[0]:
                    done.set()

        submit(draw.randrange(MODELS), draw.choice(inputs), ended)
    if not done.wait(60):
        raise TimeoutError(f"{left[0]} requests of {count} have no answer")
    seconds = time.perf_counter() - start
    ordered = sorted(times)
    return {
        "p50": round(1e3 * percentile(ordered, 50), 3),
        "p99": round(1e3 * percentile(ordered, 99), 3),
        "goodput": round(sum(one <= deadline for one in times) / seconds, 1),
    }


def engine_submit(engine: kitsune_mlir.serving.engine.Engine, deadline: float | None) -> Submit:
    """Hands calls to an engine."""

    def submit(model: int, x: Tensor, ended: Callable[[bool], None]) -> None:
        future = engine.submit(str(model), (x,), deadline=deadline)
        future.add_done_callback(lambda future: ended(future.exception() is None))

    return submit


def eager_submit(models: list[Any]) -> tuple[Submit, Callable[[], None]]:
    """Hands calls to a thread that runs PyTorch, the first that came first; and what ends it."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        with torch.no_grad():
            while (item := waiting.get()) is not None:
                model, x, ended = item
                models[model](x)
                ended(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def close() -> None:
        waiting.put(None)
        thread.join()

    return lambda model, x, ended: waiting.put((model, x, ended)), close


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
            submit, close = eager_submit(models)
            found["eager"] = load(submit, inputs, rate, asked.requests, asked.deadline, 1)
            close()
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
