"""Predicted against measured times of the zoo at full size, and what timestamps cost.

    python -m bench.predictions build DIR [NAME...]          compile with and without timestamps; needs no GPU
    python -m bench.predictions run DIR [--json FILE]        time them; needs a Hopper GPU and only the runtime
    python -m bench.predictions compare DIR FILE... [-o OUT] predict, print both; OUT gets both and the programs in numbers
    python -m bench.predictions collect DIR -o OUT           what `bench.suite build DIR` predicted, beside its packages

`run` times replays of CUDA graphs by events (submitted while the device is busy), programs with and without timestamps in
turns. Each case runs in a process of its own (forked before the GPU is touched, so that it starts at once) and is given up
after `SECONDS`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir
from bench.forked import answer_of
from bench.models import ZOO, make
from bench.timing import commit_of, environment, graphed, note_commit, sample_calls

SECONDS = 8
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ZOO},
    "llama8b_tok_b16": ("llama8b_tok", {"batch": 16}),
}
"""Cases: a model of the zoo with its numbers."""
TOLERANCE = 0.25


def build(folder: Path, names: list[str]) -> int:
    """Compile to NAME.kit and NAME.timed.kit, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    for name in names or list(VARIANTS):
        model, numbers = VARIANTS[name]
        built, args = make(model, values=False, **numbers)
        for suffix, timed in (("", False), (".timed", True)):
            program = kitsune_mlir.compile(built, args, target="sm_90a", options={"timestamps": timed})
            program.save(folder / f"{name}{suffix}.kit", weights=False)
        print(f"{name}: {sum(program.seconds.values()):.1f} s", flush=True)
    return 0


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Times of one case in milliseconds; the kernel's own time in microseconds."""
    model, numbers = VARIANTS[name]
    built, args = make(model, device="cuda", **numbers)
    state = {**dict(built.named_parameters(remove_duplicate=False)), **dict(built.named_buffers(remove_duplicate=False))}
    plain, timed = (kitsune_mlir.load(folder / f"{name}{suffix}.kit", weights=state) for suffix in ("", ".timed"))
    calls = {"plain": graphed(lambda: plain(*args)), "timed": graphed(lambda: timed(*args))}
    samples = sample_calls(calls, rounds=60, each=5, queued=True)
    kernels = []
    for _ in range(5):
        timed(*args)
        kernels.append(timed.timeline().total)
    medians = {key: statistics.median(values) for key, values in samples.items()}
    return {
        "case": name,
        "milliseconds": medians["plain"],
        "with_timestamps": medians["timed"],
        "kernel_microseconds": statistics.median(kernels),
    }


def run(folder: Path, out: Path | None) -> int:
    """Measure every case that the folder holds."""
    results, failed = [], 0
    for name in [n for n in VARIANTS if (folder / f"{n}.timed.kit").exists()]:
        result = answer_of(lambda name=name: measure(folder, name), name, SECONDS)
        failed += "problem" in result
        results.append(result)
        print(json.dumps(result), flush=True)
    if out is not None:
        out.write_text(json.dumps({"environment": environment(folder), "results": results}, indent=1) + "\n")
    return failed


def compare(folder: Path, measured: list[Path], out: Path | None) -> int:
    """Print predicted and measured times; returns how many cases are farther apart than `TOLERANCE`.

    What `out` holds of the cost of timestamps stays there, but for what was measured again.
    """
    from kitsune_mlir.machine.target import find_machine
    from kitsune_mlir.simulation.record import record_of
    from kitsune_mlir.simulation.simulate import numbers_of, simulate_program

    machine, parts = find_machine("H200"), [json.loads(path.read_text()) for path in measured]
    found = {**parts[0], "results": [r for part in parts for r in part["results"] if "problem" not in r]}
    far = 0
    for result in found["results"]:
        program = numbers_of(kitsune_mlir.load(folder / f"{result['case']}.kit", weights=_unset(result["case"])), machine)
        predicted = 1e3 * simulate_program(program, machine).seconds
        ratio = predicted / result["milliseconds"]
        far += abs(ratio - 1) > TOLERANCE
        result |= {"predicted_milliseconds": round(predicted, 5), "program": record_of(program)}
        print(f"{result['case']:20s} predicted {predicted:.4f} ms, measured {result['milliseconds']:.4f} ms, {ratio:.2f}")
    costs = [
        {"case": r["case"], "waits_recorded": True, **{key: r[key] for key in ("milliseconds", "with_timestamps")}}
        for r in found["results"]
    ]
    if out is not None:
        before = json.loads(out.read_text())["timestamps"] if out.exists() else []
        again = {cost["case"] for cost in costs}
        kept = [cost for cost in before if not cost["waits_recorded"] or cost["case"] not in again]
        out.write_text(json.dumps({**found, "timestamps": kept + costs}, separators=(",", ":")) + "\n")
    return far


def collect(folder: Path, out: Path) -> int:
    """One record of what `bench.suite build` has predicted for each case that it built."""
    found = {
        path.name.removesuffix(".predicted.json"): json.loads(path.read_text()) for path in folder.glob("*.predicted.json")
    }
    cases = {name: found[name]["milliseconds"] for name in sorted(found)}
    about = {"machine": "H200", "commit": commit_of(), "command": "python -m bench.suite build DIR"}
    out.write_text(json.dumps({**about, "milliseconds": cases}, indent=1) + "\n")
    return not cases


def _unset(name: str) -> dict[str, torch.Tensor]:
    """The model's tensors with whatever memory holds: a prediction does not look at them."""
    model, numbers = VARIANTS[name]
    built, _ = make(model, values=False, **numbers)
    return {**dict(built.named_parameters(remove_duplicate=False)), **dict(built.named_buffers(remove_duplicate=False))}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "compare", "collect"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    if given.mode == "build":
        return build(given.folder, given.names)
    if given.mode == "run":
        return run(given.folder, given.json)
    if given.mode == "collect":
        if given.output is None:
            parser.error("collect: where to (-o)?")
        return collect(given.folder, given.output)
    return compare(given.folder, [Path(name) for name in given.names], given.output)


if __name__ == "__main__":
    sys.exit(main())
