"""Latency of one request at a time: an engine where nothing else waits, beside the same program called alone.

    python -m bench.requests.unloaded [S1 S2 ...] [--device cpu] [--small] [--requests 2000] [--json FILE]

A request is to one of a scenario's models (`bench/requests/scenarios.py`), and is waited for before the next one is made; ways
take turns. "alone" calls the model's program and waits for the device; "engine" is `engine(model, x)`; "engine, future" is
`engine.submit(model, x).result()`; "graph" copies the input into the place of a graph of the eager model, replays it, copies
the output, and waits. p50 and p99 in microseconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir
from bench import host
from bench.records import Record
from bench.requests.loads import Load
from bench.requests.scenarios import SCENARIOS
from bench.requests.systems import LIMIT, one_by_one
from bench.timing import environment
from kitsune_mlir.serving.statistics import percentile


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The entry of one scenario."""
    load = Load(name, asked)
    programs, cuda = load.programs, asked.device == "cuda"
    count = load.counts[0]
    with torch.no_grad():
        graphs = one_by_one(load.models[:count], [rows[0] for rows in load.inputs[:count]])
    with kitsune_mlir.serve({str(n): program for n, program in enumerate(programs)}, limit=LIMIT) as engine:

        def alone(model: int, x: torch.Tensor) -> Any:
            output = programs[model](x)
            if cuda:
                torch.cuda.current_stream().synchronize()
            return output

        ways: dict[str, Callable[[int, torch.Tensor], Any]] = {
            "alone": alone,
            "engine": lambda model, x: engine(str(model), x),
            "engine, future": lambda model, x: engine.submit(str(model), (x,)).result(),
            "graph": lambda model, x: graphs([(model, x, 0)]),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(asked.requests):
            for way, call in ways.items():
                model = number % count
                x, begin = load.inputs[model][number % 64], time.perf_counter()
                call(model, x)
                taken[way].append(time.perf_counter() - begin)
    own = {way: sorted(seconds[len(seconds) // 10 :]) for way, seconds in taken.items()}
    figures = {way: {f"p{n}": round(1e6 * percentile(it, n), 2) for n in (50, 99)} for way, it in own.items()}
    right = figures["engine"]["p50"] <= 1.05 * figures["alone"]["p50"] + 10
    return {"case": f"{name} unloaded", "ok": True, "microseconds": figures, "within 1.05 of alone and 10 us": right}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="scenarios")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--small", action="store_true", help="small models, four of each family")
    parser.add_argument("--requests", type=int, default=2000, help="of each way; the first tenth is not counted")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.limit = LIMIT
    record = Record.open(asked.json)
    where = environment() if asked.device == "cuda" else host.environment()
    record.begin({"command": "python -m bench.requests.unloaded" + " --small" * asked.small, "environment": where})
    if asked.device == "cpu":
        torch.set_num_threads(1)
    for name in asked.names or SCENARIOS:
        entry = measure(name, asked)
        record.add(entry)
        print(entry["case"], entry["microseconds"], entry["within 1.05 of alone and 10 us"], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
