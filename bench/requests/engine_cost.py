"""Processor time that an engine spends on a request of a small program, beside its launches.

    python -m bench.requests.engine_cost [--requests 3200] [--rounds 20] [--json FILE]

Requests for 64 models of 8 x 4 numbers come in bursts, from one thread, each by `submit` or 32 at once by `submit_many`:
"submit" is that thread's processor time, "serve" the
engine's own thread's, launches included, and "launch" what the same launches take without an engine, from pointers to results;
all in microseconds a request, the least of some rounds. It is what a processor does, not what a clock shows: so it says little
of how long threads wait for each other, and other work on the machine changes it by its caches only.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kitsune_mlir
from bench.records import Record
from bench.timing import commit_of
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.serving.engine import Engine

MODELS, LIMIT = 64, 32
CASES = (("without deadlines", None, 1), ("with deadlines", 60.0, 1), ("with deadlines, 32 at once", 60.0, 32))


def burst(engine: Engine, x: torch.Tensor, count: int, deadline: float | None, at_once: int = 1) -> tuple[float, float]:
    """Seconds of the thread that submits so many requests, some at once, and of the engine's."""
    done, clock = threading.Event(), time.pthread_getcpuclockid(engine._thread.ident or 0)
    names = [str(number % MODELS) for number in range(count)]
    left = [count]

    def told(places: Sequence[int], outputs: Sequence[Any]) -> None:
        left[0] -= len(places)
        if not left[0]:
            done.set()

    begun, start = time.clock_gettime(clock), time.thread_time()
    if at_once > 1:
        for first in range(0, count, at_once):
            engine.submit_many([(name, (x,)) for name in names[first : first + at_once]], told, deadline=deadline)
        seconds = time.thread_time() - start
    else:
        for name in names:
            future = engine.submit(name, (x,), deadline=deadline)
        seconds = time.thread_time() - start
        future.add_done_callback(lambda _: done.set())
    done.wait(60)
    engine(names[0], x)  # the thread has done all that it does after a launch
    return seconds, time.clock_gettime(clock) - begun


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3200, help="of a burst")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    models, x = [nn.Linear(8, 4).eval() for _ in range(MODELS)], torch.randn(1, 8)
    program = kitsune_mlir.compile(models[0], (x,), target="host")
    programs = [program.with_weights(dict(model.named_parameters())) for model in models]
    launch = float("inf")
    bound = [one.bind((x,), {}) for one in programs[:LIMIT]]
    rows, runner = [one.pointers for one in bound], program._usable_runner()
    for _ in range(50):
        start = time.thread_time()
        runner.run_requests(rows, 0)
        launch = min(launch, (time.thread_time() - start) / LIMIT)
    record = Record.open(asked.json)
    record.begin({"command": "python -m bench.requests.engine_cost", "commit": commit_of(), "device": device_name("cpu")})
    with kitsune_mlir.serve(programs, limit=LIMIT, capacity=2 * asked.requests) as engine:
        for name, deadline, at_once in CASES:
            found = [burst(engine, x, asked.requests, deadline, at_once) for _ in range(asked.rounds)]
            submit, serve = (1e6 * min(one) / asked.requests for one in zip(*found, strict=True))
            figures = {"submit": round(submit, 2), "serve": round(serve, 2), "launch": round(1e6 * launch, 2)}
            print(f"{name}: {figures} us a request", flush=True)
            record.add({"case": name, "ok": True, "requests": asked.requests, **figures})


if __name__ == "__main__":
    main()
