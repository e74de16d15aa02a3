"""Networks whose calls depend on values, eager and through `kitsune_mlir.window()`, in turns.

    python -m bench.requests.window_run [NET...] [--device cpu] [--calls 40] [--rounds 5] [--after N] [--compile] [--small]
        [--json FILE]

Every call has a new input. Paths must be eager's, and values agree. The time is of all calls of a round, with the last value
read: median of the rounds after the first, which is shown apart. Segments are compiled as they come; `--after` is when.
`--compile` also times torch.compile with its default backend.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

import kitsune_mlir
from bench.records import Record
from bench.requests.window_nets import NETS, STATIC, Net
from bench.timing import commit_of
from kitsune_mlir.runtime.timer import device_name


def measure(name: str, net: Net, asked: argparse.Namespace) -> dict[str, Any]:
    """One network's entry of the record."""
    torch.manual_seed(0)
    draw = random.Random(0)
    model, make = net.make(asked.small)
    model.eval().to(asked.device)

    def inputs() -> list[Any]:
        return [
            tree_map(lambda x: x.to(asked.device) if isinstance(x, torch.Tensor) else x, make(draw)) for _ in range(asked.calls)
        ]

    captured: list[Any] = []

    def through_window(given: Sequence[Any]) -> list[Any]:
        with kitsune_mlir.window(after=asked.after) as capture:
            found = [model(x) for x in given]
        captured.append(capture)
        return found

    runs: dict[str, Callable[[Sequence[Any]], list[Any]]] = {
        "eager": lambda given: [model(x) for x in given],
        "window": through_window,
    }
    if asked.compile:
        compiled = torch.compile(model)
        runs["compile"] = lambda given: [compiled(x) for x in given]
    seconds: dict[str, list[float]] = {kind: [] for kind in runs}
    paths, error = set(), 0.0
    for _ in range(asked.rounds + 1):
        given, found = inputs(), {}
        for kind, run in runs.items():
            start = time.perf_counter()
            found[kind] = run(given)
            found[kind][-1][0].sum().item()
            seconds[kind].append(time.perf_counter() - start)
        for (value, path), (other, same) in zip(found["window"], found["eager"], strict=True):
            if path != same:
                raise AssertionError(f"{name}: path {path}, eager takes {same}")
            error = max(error, float((value - other).abs().max() / other.abs().max()))
            paths.add(path)
    each = {kind: round(1e3 * statistics.median(times[1:]) / asked.calls, 4) for kind, times in seconds.items()}
    last = captured[-1]
    return {
        "case": name,
        "ok": error < 1e-3,
        "milliseconds": each,
        "ratio": round(each["eager"] / each["window"], 3),
        "first round, seconds": round(seconds["window"][0], 2),
        "paths": len(paths),
        "error": error,
        "calls captured": last.taken,
        "segments": dict(last.segments),
        "eager": dict(last.eager),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--after", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    record = Record.open(asked.json)
    machine = torch.cuda.get_device_name() if asked.device == "cuda" else device_name("cpu")
    record.begin({"command": "python -m bench.requests.window_run", "commit": commit_of(), "device": machine})
    nets = NETS | STATIC
    for name in asked.names or nets:
        with torch.no_grad():
            entry = measure(name, nets[name], asked)
        record.add(entry)
        print(f"{name}: {entry['milliseconds']} ms a call, {entry['ratio']} times eager's speed, error {entry['error']:.1e}")
        print(f"  {entry['paths']} paths, {entry['segments']}, first round {entry['first round, seconds']} s", flush=True)


if __name__ == "__main__":
    main()
