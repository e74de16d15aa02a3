"""Small models of all kinds on a device (`test.gpu.operators`): programs built on one machine, run and checked on another.

    python -m test.gpu.operator_programs build DIR [NAME ...]    # needs the compiler, no GPU
    python -m test.gpu.operator_programs run DIR [NAME ...]      # needs a Hopper GPU, torch, cuda-bindings; no compiler

`build` also checks that what cannot be compiled is refused with an error that says why. `run` compares with float64 on fresh
random inputs, twice; cases run in several processes, and one that hangs or crashes costs only itself.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import re
import sys
import time
import traceback
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

import kitsune_mlir
from kitsune_mlir.errors import KitsuneError
from test.gpu.driver import answers_beside, program_main
from test.gpu.operators import attention, images, indices, products, recurrent, tensors
from test.gpu.operators.case import Case
from test.numerics.compare import exact, problems

CASES: dict[str, Case] = {
    name: case for part in (products, images, attention, recurrent, indices, tensors) for name, case in part.CASES.items()
}
SECONDS = 20
PROCESSES = 4


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases to `NAME.kit`, all of them in two processes; returns how many failed."""
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    wanted = [(name, folder) for name in names or CASES]
    with contextlib.ExitStack() as stack:
        # Compiling hundreds of models takes memory that a process does not give back.
        pool = None if names else stack.enter_context(multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=40))
        for name, problem, seconds in pool.imap(_built, wanted) if pool else map(_built, wanted):
            bad += problem is not None
            print(f"{'ok  ' if problem is None else 'FAIL'} {name:32s} {seconds:5.1f} s {problem or ''}", flush=True)
    print(f"{len(wanted) - bad} built, {bad} failed")
    return bad


def _built(work: tuple[str, Path]) -> tuple[str, str | None, float]:
    """A case's name, what is wrong with building it (None: nothing), and how long it took."""
    (name, folder), start = work, time.perf_counter()
    path = folder / f"{name}.kit"
    path.unlink(missing_ok=True)
    return name, _problem(CASES[name], path), time.perf_counter() - start


def _problem(case: Case, path: Path) -> str | None:
    """Compile a case; what is wrong with that, or None."""
    try:
        program = kitsune_mlir.compile(case.model(), case.args(), target="sm_90a", options=case.compiled_with())
        program.save(path)
    except KitsuneError as error:
        return None if case.refused and re.search(case.refused, str(error)) else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}, no error of its own: {error}"
    if case.refused:
        return f"compiled, and should be refused ({case.refused})"
    return None


def run(folder: Path, names: Sequence[str], _: Namespace) -> int:
    """Check the packages of a folder; returns how many failed."""
    found = [path.stem for path in sorted(folder.glob("*.kit")) if not names or path.stem in names]
    wanted = [name for name in names or CASES if not CASES[name].refused]
    bad = missing = len(set(wanted) - set(found))
    for result in answers_beside(PROCESSES, "test.gpu.operator_programs", folder, found, SECONDS):
        bad += not result["ok"]
        if not result["ok"]:
            print(f"FAIL {result['case']:32s} {result['error']}", flush=True)
    refused = f"{len(names or CASES) - len(wanted)} are refused when they are compiled"
    print(f"{len(wanted) - bad} right, {bad - missing} wrong or failed, {missing} have no package; {refused}")
    return bad


def part(folder: Path, names: Sequence[str], _: Namespace) -> int:
    """Check some cases in this process: a line of JSON each."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in names:
        try:
            error = check(folder / f"{name}.kit", CASES[name])
        except Exception:
            lines = traceback.format_exc().strip().splitlines()
            error = next((line for line in lines if "CUDA error" in line), lines[-1])
        print(json.dumps({"case": name, "ok": not error, "error": error}), flush=True)
        if error and "CUDA" in error:  # an illegal access, say: this process can do nothing more
            return 1
    return 0


def check(path: Path, case: Case, device: str = "cuda") -> str:
    """What is wrong with a package's results, or nothing."""
    program = kitsune_mlir.load(path)
    torch.manual_seed(zlib.crc32(path.stem.encode()))
    model, args = case.model().to(device), case.args(device)
    with torch.no_grad():
        plain = model(*(a.clone() for a in args))
        wanted = plain if case.plain else exact(model, args)
        found = [
            problem for _ in range(2) for problem in problems(program(*(a.clone() for a in args)), wanted, plain, case.limit)
        ]
    if device == "cuda":
        torch.cuda.synchronize()
    return "; ".join(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run, part))
