"""Where training spends its time: each stage's share of the blocks' time, and of waits.

    python -m bench.training_stages [NAME...] [--what step] [--dtype bf16] [--size full] [--out FOLDER] [--jobs N]

Names are those of `bench/training_cases.py`. A whole step, or forward and backward alone (`--what gradients`), is compiled with
timestamps and called a few times. For each of its programs a line a stage goes to `FOLDER/NAME.txt`: microseconds that its
tiles took of a block, waits apart, and those of waits (means of the blocks that have any of its tiles), when it was worked on,
engine, tiles, sizes, slowest first. `--jobs` cases prepare side by side; each is looked at alone. A GPU is needed.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import DTYPES
from bench.forked import in_turns
from bench.records import Record
from bench.training import KINDS, SECONDS, Case, made
from bench.training_cases import CASES
from kitsune_mlir.dynamo.report import GraphReport

CALLS = 4
"""The first ones load kernels."""


def lines_of(program: Any) -> list[dict[str, Any]]:
    """What each stage of a program took in its last call, slowest first, in microseconds."""
    timeline = program.timeline()
    stages = {stage["name"]: stage for stage in program.summary["stages"]}
    each = timeline.times[:, :, 1] - timeline.times[:, :, 0]
    blocks = np.maximum((each > 0).sum(axis=0), 1)  # of launches of their own some have more blocks than others
    took = each.sum(axis=0) / blocks
    waited = timeline.waits.sum(axis=0) / blocks if timeline.waits is not None else 0 * took
    found = []
    for number, (name, engine, tiles) in enumerate(timeline.tasks):
        stage = stages.get(name, {})
        found.append(
            {
                "stage": name,
                "engine": engine,
                "microseconds": round(float(took[number] - waited[number]), 1),
                "waits": round(float(waited[number]), 1),
                "span": [
                    round(float(edge), 1) for edge in (timeline.times[:, number, 0].min(), timeline.times[:, number, 1].max())
                ],
                "tiles": tiles,
                "sizes": stage.get("sizes"),
                "tile": stage.get("tile"),
                "ops": stage.get("ops"),
                "source": stage.get("source"),
            }
        )
    return sorted(found, key=lambda line: -line["microseconds"])


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as text."""
    head = (
        f"{'stage':28s} {'engine':10s} {'us':>8s} {'waits':>8s} {'from':>8s} {'to':>8s} {'tiles':>7s}  sizes, tile, operations"
    )
    rows = [
        f"{one['stage']:28s} {one['engine']:10s} {one['microseconds']:8.1f} {one['waits']:8.1f} {one['span'][0]:8.1f} "
        f"{one['span'][1]:8.1f} {one['tiles']:7d}  {one['sizes']} {one['tile']} {one['ops']} {one['source']}"
        for one in lines
    ]
    return "\n".join([head, *rows, f"{len(lines)} stages"])


def measure(name: str, what: str, dtype: str, size: str, out: Path, prepared: Callable[[], None]) -> dict[str, Any]:
    """One case; its tables are files of `out`. `prepared` is called before the calls that count."""
    import torch

    reports: list[GraphReport] = []
    _, call = made(Case(CASES[name], size, dtype, "cuda"), what, "kitsune", reports, options={"timestamps": True})
    call()
    prepared()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    texts, totals = [], []
    for report in reports:
        for program in report.programs:
            lines = lines_of(program)
            totals.append(round(program.timeline().total, 1))
            memory = {field: getattr(program.memory, field) for field in ("arena", "copies", "apart")}
            texts.append(f"{program.summary['launches']} launches, {totals[-1]} us, memory {memory}\n{table(lines)}")
            texts.append(program.timeline().table())
            texts.append(json.dumps(program.summary, default=str))
    (out / f"{name}.txt").write_text("\n\n".join(texts) + "\n")
    return {"case": name, "microseconds": totals}


def main() -> int:
    """Command line; the exit status is the number of cases that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--what", default="step", choices=KINDS)
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--jobs", type=int, default=1, help="steps that prepare side by side")
    parser.add_argument("--out", type=Path, default=Path("training-stages"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    asked = (given.what, given.dtype, given.size, given.out)
    works = {name: functools.partial(measure, name, *asked) for name in given.names or CASES}
    record = Record()
    in_turns(works, record, SECONDS, given.jobs)
    return sum("problem" in found for found in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
