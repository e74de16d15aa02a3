"""Compiles the peers of cases ahead, so that a timed run finds code and choices in inductor's cache.

Cases are compiled by several processes side by side; what they measure to choose by (max-autotune), they measure in turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.case import BenchCase
from bench.worker import side_by_side

__all__ = ["use_cache", "warm", "warm_work"]


def use_cache(folder: Path) -> None:
    """Let this process, and those it starts, keep what inductor compiles in `folder`, unless the environment names a place."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str((folder / "inductor").resolve()))


def warm(folder: Path, cases: list[BenchCase], peers: str, jobs: int, limit: float, seconds: float) -> int:
    """Compile the peers of cases; how many cases were not done.

    Args:
        jobs: processes.
        limit: seconds for one case.
        seconds: no case is started later than that.
    """
    use_cache(folder)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def tell(answer: dict[str, Any]) -> None:
        told = ", ".join(f"{k} {v}" for k, v in answer.items() if k not in ("ok", "case"))
        print(f"{'ok  ' if answer['ok'] else 'FAIL'} {answer['case']:28s} {told}", flush=True)

    command = [sys.executable, "-u", "-m", "bench.suite", "warm-work", str(folder), "--peers", peers]
    done = [a["ok"] for a in side_by_side(command, [c.name for c in cases], jobs, limit, tell, seconds)]
    left = len(cases) - len(done)
    print(f"{sum(done)} cases compiled in {time.monotonic() - start:.0f} s" + f", {left} left" * bool(left), flush=True)
    return len(cases) - sum(done)


def warm_work(folder: Path, peers: tuple[str, ...]) -> None:
    """One of the processes: reads case names, one a line, and answers each with a line of JSON."""
    from bench.cases import all_cases
    from bench.peers import COMPILED, make_peers, peers_of

    _measure_in_turns(folder / ".measuring")
    print("{}", flush=True)
    for line in sys.stdin:
        name, start = line.strip(), time.monotonic()
        answer: dict[str, Any] = {"case": name, "ok": False}
        try:
            case = all_cases()[name]
            wanted = peers_of(case, peers)
            kinds = tuple(kind for kind in COMPILED if kind in wanted or f"{kind}, graph" in wanted)
            model, args = case.make("cuda", True)
            missing = make_peers(model, args, kinds)[1]
            answer |= {"ok": not missing, "seconds": round(time.monotonic() - start, 1), **missing}
        except Exception as error:  # costs only itself
            answer["problem"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


def _measure_in_turns(path: Path) -> None:
    """Let one process at a time measure kernels for inductor's choices."""
    from torch._inductor.runtime.benchmarking import benchmarker

    inner = benchmarker.benchmark_gpu

    def alone(*args: Any, **kwargs: Any) -> Any:
        with _locked(path):
            return inner(*args, **kwargs)

    replace: Callable[..., None] = setattr
    replace(benchmarker, "benchmark_gpu", alone)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
