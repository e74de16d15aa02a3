"""Tasks of the `generic` engine: predicted and measured microseconds, one operator a program.

    python -m bench.generic build DIR [NAME...]              compile with timestamps; needs no GPU
    python -m bench.generic run DIR [--json FILE]            time them; needs a Hopper GPU and only the runtime
    python -m bench.generic compare FILE                     predict what FILE measured, and print both; needs the compiler

What is measured of a task is the time of the block that works on it longest, without waits: its first run of tiles begins
with cold instruction and constant caches, so the median of several launches is taken. `make gpu-generic` does all three.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kitsune_mlir
from bench.models import default_dtype
from bench.sweeps import Function
from bench.timing import environment, note_commit

LAUNCHES = 7
COMMAND = "python -m bench.generic run DIR"
ENGINE = "generic"

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


CASES: dict[str, Callable[[], Case]] = {
    "logcumsumexp_64x128": lambda: (lambda x: x.logcumsumexp(1), (torch.randn(64, 128),)),
    "topk_512x8": lambda: (lambda x: x.topk(2, 1)[0], (torch.randn(512, 8),)),
    "topk_1000x100": lambda: (lambda x: x.topk(4, 1), (torch.randn(1000, 100),)),
}
"""By name: a function and its inputs, made when they are asked for."""


def build(folder: Path, names: list[str]) -> int:
    """Compile to NAME.kit and say who does each task."""
    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    for name in names or list(CASES):
        function, inputs = CASES[name]()
        program = kitsune_mlir.compile(Function(function), inputs, target="sm_90a", options={"timestamps": True})
        program.save(folder / f"{name}.kit")
        print(name, [(e["task"], e["engine"], e["tiles"]) for e in program.summary["engines"]], flush=True)
    return 0


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Microseconds of each generic task of one case, and the largest error of its results beside torch's in float64."""
    function, inputs = CASES[name]()
    program = kitsune_mlir.load(folder / f"{name}.kit")
    on_device = [tensor.cuda() for tensor in inputs]
    samples: dict[str, list[float]] = {}
    for _ in range(LAUNCHES):
        got = program(*on_device)
        line = program.timeline()
        busy = line.times[:, :, 1] - line.times[:, :, 0] - (line.waits if line.waits is not None else 0.0)
        for number, (task, engine, _) in enumerate(line.tasks):
            if engine == ENGINE:
                samples.setdefault(task, []).append(float(busy[:, number].max()))
    with default_dtype(torch.float64):  # of what the function makes itself
        want = function(*(t.double() if t.is_floating_point() else t for t in inputs))
    pairs = zip(*((x,) if isinstance(x, Tensor) else tuple(x) for x in (got, want)), strict=True)
    error = max(float((a.double().cpu() - b.double()).norm() / max(1e-30, float(b.double().norm()))) for a, b in pairs)
    return {"case": name, "error": error, "microseconds": {task: statistics.median(found) for task, found in samples.items()}}


def run(folder: Path, out: Path | None) -> int:
    """Measure every case that the folder holds; returns how many gave no answer or a wrong one."""
    results, failed = [], 0
    for name in [name for name in CASES if (folder / f"{name}.kit").exists()]:
        try:
            result = measure(folder, name)
        except Exception as error:  # whatever it is, the other cases go on
            result = {"case": name, "problem": f"{type(error).__name__}: {error}"}
        failed += "problem" in result or not result["error"] < 2e-2
        results.append(result)
        print(json.dumps(result), flush=True)
    if out is not None:
        out.write_text(
            json.dumps({"environment": environment(folder), "command": COMMAND, "results": results}, indent=1) + "\n"
        )
    return failed


def compare(measured: Path) -> int:
    """Print predicted beside measured microseconds, and how far they are apart on average (a factor)."""
    apart = []
    for result in json.loads(measured.read_text())["results"]:
        for task, microseconds in result.get("microseconds", {}).items():
            predicted = predictions(result["case"])[task]
            apart.append(abs(math.log(predicted / microseconds)))
            print(f"{result['case']:26s} {task:18s} measured {microseconds:10.1f} predicted {predicted:10.1f} us", end=" ")
            print(f"{predicted / microseconds:6.2f}")
    print(f"apart by {math.exp(statistics.mean(apart)):.2f} on average, {math.exp(max(apart)):.2f} at most")
    return 0


def predictions(name: str) -> dict[str, float]:
    """Predicted microseconds of each task of a case."""
    from kitsune_mlir.simulation.simulate import simulate

    function, inputs = CASES[name]()
    predicted = simulate(kitsune_mlir.compile(Function(function), inputs, target="sm_90a"), "H200")
    return {stage.name: 1e6 * stage.working / min(stage.tiles, predicted.blocks) for stage in predicted.stages}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.mode == "build":
        return build(given.folder, given.names)
    return run(given.folder, given.json) if given.mode == "run" else compare(given.folder)


if __name__ == "__main__":
    sys.exit(main())
