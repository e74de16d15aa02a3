"""Compile time of whole models, from `nn.Module` to cubins: without anything kept, and from the cache.

    python -m bench.compile_time [CASE...] [--target sm_90a] [--json FILE]

Each case runs in processes of its own with a folder for its cache that is empty first, in bf16 with random weights; importing
torch, with the parts that it imports late, and kitsune_mlir does not count. *Wall* is what a user waits for, and depends on
what else the machine does; *processor* is the time of the process and of ptxas, on all cores together. No GPU is needed. The
cases are `bench/whole_models.py`'s, EfficientNet-B0 of timm where that is installed, and, by name, those of the benchmark. FILE
is written after every case.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["measured", "table", "timed"]

OF_LIBRARY = "lib_efficientnet_b0_b1"
PHASES = ("import", "plan", "lower", "codegen")


def timed(case: str, target: str, folder: str) -> dict[str, Any]:
    """Compile a case once in this process: wall and processor seconds, and wall seconds by phase."""
    import torch
    import torch._dynamo
    import torch.export._trace  # importing is not what is measured

    import kitsune_mlir
    import kitsune_mlir.pipeline
    from bench.cases import all_cases
    from bench.whole_models import MODELS

    torch.manual_seed(0)
    model, args = MODELS[case]() if case in MODELS else all_cases()[case].make("cpu", False)
    dtype = torch.bfloat16 if target != "host" else torch.float32
    model, args = model.to(dtype).eval(), tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    before, start = _processor(), time.perf_counter()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = kitsune_mlir.compile(model, args, target=target, options={"cache": True, "cache_dir": folder})
    wall = time.perf_counter() - start
    found = {"wall": wall, "processor": _processor() - before, **program.seconds}
    kernels = {kernel["name"] for kernel in program.summary.get("kernels", ())}
    return {**found, "launches": program.summary["launches"], "kernels": len(kernels)}


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(case: str, target: str = "sm_90a") -> tuple[dict[str, Any], dict[str, Any]]:
    """A case cold and from the cache, each in a new process.

    Raises:
        subprocess.CalledProcessError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.compile_time", "--one", folder, "--target", target, case]
        lines = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout for _ in range(2)]
    cold, kept = (json.loads(line.splitlines()[-1]) for line in lines)
    return cold, kept


def table(rows: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Seconds of all cases as Markdown."""
    head = ["case", "launches", "kernels", "cold wall", "cold processor", *PHASES, "cached wall", "cached processor"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for case, cold, kept in rows:
        seconds = [cold["wall"], cold["processor"], *(cold[name] for name in PHASES), kept["wall"], kept["processor"]]
        cells = [case, str(cold["launches"]), str(cold["kernels"]), *(f"{value:.1f}" for value in seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(timed(arguments.cases[0], arguments.target, arguments.one)))
        return
    from bench.cases import all_cases
    from bench.whole_models import MODELS

    rows = []
    cores = len(os.sched_getaffinity(0))
    for case in arguments.cases or [*(name for name in MODELS if not name.startswith("small")), OF_LIBRARY]:
        if case in all_cases() and (library := all_cases()[case].missing):
            print(f"{case}: missing: {library} is not installed (extra `breadth`)", file=sys.stderr)
            continue
        rows.append((case, *measured(case, arguments.target)))
        if arguments.json is not None:
            entries = {name: {"cold": cold, "cached": kept} for name, cold, kept in rows}
            arguments.json.write_text(
                json.dumps({"cores": cores, "target": arguments.target, "cases": entries}, indent=1) + "\n"
            )
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(f"{cores} cores; seconds\n\n{table(rows)}")


if __name__ == "__main__":
    main()
