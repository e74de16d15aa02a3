"""An engine of 64 towers on a GPU under open loads, beside what was forecast of it and beside what PyTorch's users have.

    python -m bench.requests.load_cuda build DIR                   # needs the compiler, no GPU
    python -m bench.requests.load_cuda run DIR [--requests 20000] [--rates 5000,...] [--deadline 0.005] [--json FILE]

Requests come at times of a Poisson process (`bench.requests.load.load`), to all of 64 towers 512-1024-512-256-1 in bf16 alike,
one row each that is on the GPU, weights of their own. Peers are threads that take what waits, in the order in which it came:
"graphs" replays the graph of each request's tower, one after the other; "streams" does so on eight streams; "vmap" does all
towers at once, `vmap` through `torch.compile` in a graph, for at most one request of each. All synchronize once for what they
took. The load generator and all systems share one Python process and its global lock, which bounds what any of them can show.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.records import Record
from bench.requests.coalesced import MODELS, STREAMS, WIDTHS, tower
from bench.requests.load import ROWS, Submit, engine_submit, load
from bench.requests.systems import LIMIT, Taker, one_by_one, together
from bench.timing import environment, note_commit

RATES = (2000, 5000, 10_000, 20_000, 40_000)
SECONDS = 1.5
"""Of a load, at most."""


def build(folder: Path) -> None:
    """Compile the tower for a GPU."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    example = tower().bfloat16(), (torch.randn(1, WIDTHS[0]).bfloat16(),)
    kitsune_mlir.compile(*example, target="sm_90a", options={"requests": LIMIT}).save(folder / "tower.kit", ir=False)


def run(folder: Path, rates: Sequence[float], count: int, deadline: float, record: Record) -> None:
    """Measure every system at every rate."""
    import kitsune_mlir

    torch.manual_seed(0)
    models = [tower().cuda().bfloat16().requires_grad_(False) for _ in range(MODELS)]
    inputs = [torch.randn(1, WIDTHS[0]).cuda().bfloat16() for _ in range(ROWS)]
    program = kitsune_mlir.load(folder / "tower.kit", dict(models[0].named_parameters()))
    programs = [program.with_weights(dict(model.named_parameters())) for model in models]
    gc.collect()
    gc.freeze()  # every capture of a graph collects garbage
    with torch.no_grad():
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        works = {
            "graphs": one_by_one(models, inputs[:1]),
            "streams": one_by_one(models, inputs[:1], streams),
            "vmap": together(models, inputs[0]),
        }
    most = count
    with kitsune_mlir.serve(programs, limit=LIMIT, capacity=2 * most) as engine:
        burst = load(engine_submit(engine, None), inputs, 1e9, count, float("inf"), 0)
        measured = count / burst["goodput"]
        overhead = max(0.0, (measured - engine.forecast(1e9, count=count).seconds) / count)
        print(f"the engine's own time: {1e6 * overhead:.0f} us a request", flush=True)
        for rate in rates:
            count = min(most, int(SECONDS * rate))
            expected = engine.forecast(rate, count=count, deadline=deadline, overhead=overhead)
            found = {"kitsune": load(engine_submit(engine, deadline), inputs, rate, count, deadline, 1)}
            for name, work in works.items():
                taker = Taker(work)
                submit: Submit = taker.submit
                found[name] = load(submit, inputs, rate, count, deadline, 1)
                taker.close()
            figures: dict[str, Any] = {"p50": 1e3 * expected.p50, "p99": 1e3 * expected.p99, "goodput": expected.goodput}
            found["forecast"] = {name: round(value, 3) for name, value in figures.items()}
            name = f"towers at {rate:g} a second"
            entry = {"case": name, "ok": True, "rate": rate, "deadline": deadline, "overhead": overhead, "requests": count}
            print(name, found, flush=True)
            record.add(entry | found)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=20_000, help="of each load, at most")
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="requests a second")
    parser.add_argument("--deadline", type=float, default=0.005, help="seconds")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.mode == "build":
        build(asked.folder)
        return 0
    record = Record.open(asked.json)
    record.begin({"environment": environment(asked.folder), "command": "python -m bench.requests.load_cuda run"})
    run(asked.folder, [float(rate) for rate in asked.rates.split(",")], asked.requests, asked.deadline, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
