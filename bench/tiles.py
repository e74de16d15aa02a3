"""Tiles by measurement where the GPU's machine has no compiler: what `Options(tune=True)` does in one place, in three steps.

    python -m bench.tiles build DIR [PATTERN...] [--most 6]     each stage alone, in the planner's tile and its neighbours
    python -m bench.tiles run DIR --json FILE [--seconds 60]    times them (needs a Hopper GPU and no compiler; `build` none)
    python -m bench.tiles learn FILE                            shows how far the planner is from the best tile, and keeps the
                                                                times: `Options(tuned_for="NVIDIA H200")` then plans with them

Patterns name cases of `bench.suite`. FILE is written after every stage; a stage that it has is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.case import BenchCase
from bench.tables import geometric_mean
from bench.timing import note_commit

LIMIT = 30
"""Seconds for the tiles of one stage."""


def build(folder: Path, cases: list[BenchCase], most: int) -> None:
    """Compile the candidates of each stage that the folder does not have yet."""
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.errors import KitsuneError
    from kitsune_mlir.frontend import import_model
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.pipeline import Options
    from kitsune_mlir.targets import FORM, partitioned_code, run_passes
    from kitsune_mlir.tuning import TuningCache, partition, plan, tensor_types

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    target = find_target("sm_90a")
    for case in cases:
        model, args = case.make("cpu", False)
        module = import_model(model, args, context=new_context()).module
        run_passes(module, FORM, target, Options())
        for work in plan(module, target, TuningCache("nothing is known", folder / "none"))[1]:
            place = folder / work.stage.key
            if (place / "stage.json").exists():
                continue
            place.mkdir(parents=True, exist_ok=True)
            tiles, start = [], time.perf_counter()
            for tile in work.tiles[:most]:
                name = "x".join(map(str, tile))
                try:
                    code = partitioned_code(work.module, partition({work.stage.name: tile}), target, Options())
                except KitsuneError:
                    continue
                tasks = json.loads(code.artifacts["kernel.json"])["tasks"]
                (place / f"{name}.cubin").write_bytes(code.artifacts["kernel.cubin"])
                (place / f"{name}.json").write_bytes(code.artifacts["kernel.json"])
                tiles.append([name, [engine for _, engine, _ in tasks]])
            inputs, results = tensor_types(work.module)
            facts = {"case": case.name, "stage": work.stage.name, "tiles": tiles, "inputs": inputs, "results": results}
            (place / "stage.json").write_text(json.dumps(facts))
            print(f"{case.name} {work.stage.name}: {tiles} {time.perf_counter() - start:.1f} s", flush=True)


def measure(place: Path) -> dict[str, Any]:
    """Milliseconds of every tile of a stage: the lesser of two turns."""
    import torch

    from kitsune_mlir.runtime.cuda_runner import CudaRunner
    from kitsune_mlir.runtime.manifest_check import read_manifest
    from kitsune_mlir.runtime.timer import milliseconds

    facts = json.loads((place / "stage.json").read_text())
    runners = {}
    for name, _ in facts["tiles"]:
        manifest = read_manifest((place / f"{name}.json").read_text())
        runners[name] = CudaRunner([(manifest, (place / f"{name}.cubin").read_bytes())])
    times: dict[str, float] = {}
    for _ in range(2):
        for name, runner in runners.items():
            enough = 3 * min(times.values(), default=float("inf"))
            found = milliseconds(runner, facts["inputs"], facts["results"], enough)
            times[name] = min(found, times.get(name, float("inf")))
            torch.cuda.empty_cache()
    return {"key": place.name, "case": facts["case"], "stage": facts["stage"], "tiles": facts["tiles"], "milliseconds": times}


def work(folder: Path) -> None:
    """The second process of `run`: a key a line in, a line of JSON out."""
    from bench.timing import environment

    print(json.dumps({"environment": environment(folder)}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ok": True, **measure(folder / line.strip())}), flush=True)


def run(folder: Path, file: Path, seconds: float) -> None:
    """Time all stages of a folder that the file does not have yet."""
    from bench.worker import Worker

    record = json.loads(file.read_text()) if file.exists() else {"environment": None, "stages": {}}
    worker, start = Worker([sys.executable, "-u", "-m", "bench.tiles", "work", str(folder)]), time.monotonic()
    try:
        for place in sorted(folder.glob("*/stage.json")):
            key = place.parent.name
            if key in record["stages"] or time.monotonic() - start > seconds:
                continue
            found = worker.ask(key, LIMIT)
            record["environment"] = (worker.greeting or {}).get("environment") or record["environment"]
            record["stages"][key] = found
            file.write_text(json.dumps(record, indent=1))
            print(told(found) if found["ok"] else f"{key}: {found['problem']}", flush=True)
    finally:
        worker.close()


def told(found: dict[str, Any]) -> str:
    """A stage as a line: the planner's tile, the best one, what it is worth."""
    times, planned = found["milliseconds"], found["tiles"][0][0]
    best = min(times, key=lambda name: times[name])
    every = ", ".join(f"{name} {1e3 * ms:.1f}" for name, ms in times.items())
    loss = times[planned] / times[best]
    return f"{found['case']} {found['stage']} ({found['tiles'][0][1][0]}): best {best}, planner {loss:.2f} of it | µs: {every}"


def learn(file: Path) -> None:
    """Keep the times for the device that they were taken on, and say how good the planner's choices were."""
    from kitsune_mlir.tuning import TuningCache

    record = json.loads(file.read_text())
    cache = TuningCache(record["environment"]["device"])
    losses = []
    for key, found in record["stages"].items():
        if found["ok"] and found["milliseconds"]:
            times = {tuple(map(int, name.split("x"))): ms for name, ms in found["milliseconds"].items()}
            cache.put(key, found["stage"], times)
            losses.append(next(iter(times.values())) / min(times.values()))
            print(told(found))
    within = sum(loss <= 1.1 for loss in losses)
    print(f"{within} of {len(losses)} stages within 10 % of the best tile; geometric mean {geometric_mean(losses):.3f}")
    print(f"kept in {cache.folder}")


def main() -> int:
    """Command line."""
    from bench.cases import select

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "work", "learn"])
    parser.add_argument("path", type=Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--most", type=int, default=6, help="tiles of a stage")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    if given.mode == "build":
        build(given.path, select(given.patterns), given.most)
    elif given.mode == "run":
        run(given.path, given.json or given.path / "times.json", given.seconds)
    elif given.mode == "work":
        work(given.path)
    else:
        learn(given.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
