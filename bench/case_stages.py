"""Where a case of the benchmark spends its time: each stage's share of the blocks' time, and of waits.

    python -m bench.case_stages build DIR PATTERN... [--options JSON]    compile with timestamps; needs no GPU
    python -m bench.case_stages run DIR [PATTERN...]                     DIR/NAME.stages.txt of what DIR holds; needs a GPU

Patterns are those of `bench.suite`. Columns are those of `bench.training_stages`. Timestamps cost a little at each tile:
times of whole programs are those of `bench.suite`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

import kitsune_mlir
from bench.case import BenchCase
from bench.cases import select
from bench.training_stages import CALLS, lines_of, table

SUFFIX = ".timed.kit"


def build(folder: Path, case: BenchCase, options: dict[str, object]) -> None:
    """Compile a case to a package without weights."""
    model, args = case.make("cpu", False)
    exact = {"convolution_precision": "highest"} if case.dtype == "f32" else {}
    program = kitsune_mlir.compile(model, args, target="sm_90a", options={**exact, **options, "timestamps": True})
    program.save(folder / f"{case.name}{SUFFIX}", weights=False, ir=False)


def run(folder: Path, case: BenchCase) -> str:
    """Call a package a few times; the last call as a table."""
    from bench.measure import prepared

    (_, args), program = prepared(folder / f"{case.name}{SUFFIX}", case)
    for _ in range(CALLS):
        program(*args)
    torch.cuda.synchronize()
    text = f"{program.summary['launches']} launches, {program.timeline().total:.1f} us\n{table(lines_of(program))}\n"
    (folder / f"{case.name}.stages.txt").write_text(text)
    return text


def main() -> int:
    """Command line; the exit status is the number of cases that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--options", type=json.loads, default={}, help="of kitsune_mlir.compile")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case in select(given.patterns or ["*"]):
        try:
            if given.what == "build":
                build(given.folder, case, given.options)
            elif (given.folder / f"{case.name}{SUFFIX}").exists():
                print(case.name, run(given.folder, case), sep="\n", flush=True)
        except Exception as error:  # an error costs only its case
            failed += 1
            print(f"{case.name}: {type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
