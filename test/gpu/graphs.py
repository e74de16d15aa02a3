"""Generated graphs on a GPU, in two steps as in `test/gpu/zoo.py`.

python -m test.gpu.graphs build DIR [--count 200] [--only NUMBER...]
python -m test.gpu.graphs run DIR [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import kitsune_mlir
from bench.timing import note_commit
from kitsune_mlir.errors import KitsuneError
from test.numerics.compare import exact, problems
from test.numerics.graphs import GraphModel, inputs_of, recipes

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def collect(count: int) -> list[dict]:
    """The same recipes each time."""
    from hypothesis import HealthCheck, Phase, given, settings

    found: list[dict] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(recipes())
    def gather(recipe: dict) -> None:
        found.append(recipe)

    gather()
    return found


def case(recipe: dict, dtype: torch.dtype):
    """Model and inputs of a recipe in a type."""
    return GraphModel(recipe).to(dtype), inputs_of(recipe, dtype)


def build(folder: Path, count: int, only: Sequence[int] | None = None) -> int:
    """Compile `count` graphs, or those of them with the numbers `only`; every third in bf16, the others in f32."""
    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    failed = 0
    chosen = [(n, recipe) for n, recipe in enumerate(collect(count)) if only is None or n in only]
    for n, recipe in chosen:
        name = "bf16" if n % 3 == 2 else "f32"
        model, args = case(recipe, DTYPES[name])
        try:
            program = kitsune_mlir.compile(model, args, target="sm_90a")
        except KitsuneError as error:
            failed += 1
            print(f"graph {n}: {error}\n  {recipe}")
            continue
        program.save(folder / f"{n:04d}.{name}.kit", weights=False)
        (folder / f"{n:04d}.{name}.json").write_text(json.dumps(recipe))
    print(f"{failed} of {len(chosen)} do not compile")
    return failed


def run(folder: Path, out: Path | None) -> int:
    """Check every graph against float64 on the CPU."""
    from bench.timing import environment

    bad, results = 0, []
    for path in sorted(folder.glob("*.kit")):
        recipe = json.loads(path.with_suffix(".json").read_text())
        model, args = case(recipe, DTYPES[path.name.split(".")[1]])
        wide = exact(model, args)
        with torch.no_grad():
            plain = model(*args)
        model, there = model.cuda(), tuple(a.cuda() for a in args)
        program = kitsune_mlir.load(path, weights=dict(model.named_parameters()))
        got = program(*there)
        torch.cuda.synchronize()
        found = problems(tuple(g.cpu() for g in got), wide, plain)
        bad += bool(found)
        results.append({"case": path.stem, "ok": not found, "problems": found})
        if found:
            print(f"FAIL {path.stem}: {found} {[e['engine'] for e in program.summary['engines']]} {recipe}", flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            json.dumps(
                {"environment": environment(folder), "command": "python -m test.gpu.graphs run DIR", "results": results},
                indent=1,
            )
        )
    print(f"{len(results) - bad} passed, {bad} failed")
    return bad


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", type=int, nargs="*", metavar="NUMBER", help="build some of them")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    return build(given.folder, given.count, given.only) if given.mode == "build" else run(given.folder, given.json)


if __name__ == "__main__":
    sys.exit(main())
