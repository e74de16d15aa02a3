"""The host target beside PyTorch on the same processor: eager, and `torch.compile` (Inductor, static shapes).

    python -m bench.host [PATTERN...] [--dtype f32] [--json FILE] [--resume] [--seconds 1.5] [--limit 600]

Cases: `bench/host_cases.py`; a pattern is a name with `*` and `?`. Each case has a process of its own, in which it is compared
with float64 and timed: rounds in which each peer is called for a few milliseconds, one peer after the other, for `--seconds` a
peer. A pause before each lets the threads of the one before go to sleep. Milliseconds of a call: the median and the least of
all rounds. FILE is written after every case; `--resume` leaves out those that it holds. Use idle cores for figures to keep.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.case import DTYPES, LIMITS
from bench.forked import answer_of
from bench.host_cases import HOST_CASES, HostCase
from bench.measure import exact, relative_errors
from bench.records import Record
from bench.tables import HOST_PEERS, host_table
from bench.timing import commit_of

__all__ = ["measure", "milliseconds"]

BLOCK_SECONDS = 0.02
"""How long a peer is called in one round."""
PAUSE_SECONDS = 0.005
"""OpenMP's threads poll for about as long after a call."""


def milliseconds(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, dict[str, float]]:
    """Median and least milliseconds of a call, from five rounds or more: about `seconds` for each of `calls`."""
    counts = {}
    for name, call in calls.items():
        call()
        taken = min(_timed(call, 1) for _ in range(5))
        counts[name] = max(1, round(BLOCK_SECONDS / taken))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(max(5, round(seconds / BLOCK_SECONDS))):
        for name, call in calls.items():
            time.sleep(PAUSE_SECONDS)
            call()
            samples[name].append(_timed(call, counts[name]) * 1e3)
    return {name: {"median": statistics.median(times), "least": min(times)} for name, times in samples.items()}


def _timed(call: Callable[[], Any], times: int) -> float:
    """Seconds of one of so many calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def measure(case: HostCase, dtype: str = "f32", seconds: float = 1.5) -> dict[str, Any]:
    """Compile a case, compare it with float64, and time it beside its peers; `speedup` is against the best of them."""
    import kitsune_mlir

    model, args = case.make(DTYPES[dtype])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = exact(model, args)
        start = time.perf_counter()
        program = kitsune_mlir.compile(model, args, target="host")
        spent = time.perf_counter() - start
        inductor = torch.compile(model, dynamic=False)
        calls = {"kitsune": lambda: program(*args), "eager": lambda: model(*args), "compile": lambda: inductor(*args)}
        errors = {name: max(relative_errors(call(), wanted)) for name, call in calls.items()}
        found = milliseconds(calls, seconds)
    limit = max(2 * errors["eager"], LIMITS["f32"])
    best = min(HOST_PEERS, key=lambda name: found[name]["median"])
    return {
        "case": case.name,
        "small": case.small,
        "dtype": dtype,
        "ok": errors["kitsune"] <= limit,
        "errors": errors,
        "compile_seconds": round(spent, 1),
        "milliseconds": found,
        "best_peer": best,
        "speedup": found[best]["median"] / found["kitsune"]["median"],
    }


def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """What a recorded figure needs beside it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "device": f"{processor()}, {cores} cores", "torch": torch.__version__, "commit": commit_of()}


def line_of(answer: Mapping[str, Any]) -> str:
    """A case in one line."""
    if "problem" in answer:
        return f"{answer['case']}: {answer['problem']}"
    times = "  ".join(f"{name} {t['median']:.3f} (least {t['least']:.3f})" for name, t in answer["milliseconds"].items())
    wrong = "" if answer["ok"] else f"  WRONG {answer['errors']}"
    return f"{answer['speedup']:6.2f}  {answer['case']:20s} {times}{wrong}"


def main() -> int:
    """Command line; the exit status is the number of cases that failed or are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--limit", type=float, default=600)
    given = parser.parse_args()
    record = Record.open(given.json, given.resume)
    chosen = [c for c in HOST_CASES if any(fnmatch.fnmatch(c.name, p) for p in given.patterns)]
    chosen = [c for c in chosen if not record.cases.get(c.name, {}).get("ok")]
    if chosen:
        record.begin({"environment": environment(), "command": "python -m bench.host"})
    for case in chosen:
        answer = answer_of(lambda case=case: measure(case, given.dtype, given.seconds), case.name, given.limit)
        record.add({"ok": False, **answer})
        print(line_of(answer), flush=True)
    print(*host_table(record.cases), sep="\n")
    return sum(not entry["ok"] for entry in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
