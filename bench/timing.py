"""Timing on a GPU: CUDA events, medians and spread, calls interleaved in one run."""

from __future__ import annotations

import datetime
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "commit_of",
    "environment",
    "graphed",
    "launches",
    "note_commit",
    "peak_of",
    "rates",
    "sample_calls",
    "summary",
    "time_calls",
]


def commit_of(folder: Path | None = None) -> str:
    """The commit that the code was built from: what `note_commit` left in `folder`, else this checkout's.

    "-dirty" is appended where tracked files differ from it. A copy without history is of the commit that KITSUNE_COMMIT names.
    """
    if folder is not None and (folder / "commit.txt").exists():
        return (folder / "commit.txt").read_text().strip()

    def git(*words: str) -> str | None:
        asked = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return asked.stdout.strip() if asked.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return os.environ.get("KITSUNE_COMMIT", "unknown")
    return commit + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")


def note_commit(folder: Path) -> None:
    """Leave the checkout's commit beside built packages: the machine that runs them may have no checkout."""
    (folder / "commit.txt").write_text(commit_of() + "\n")


def environment(folder: Path | None = None) -> dict[str, Any]:
    """What a recorded figure needs beside it: date, device, driver, versions, the commit of the built code."""
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "driver": driver.stdout.partition("\n")[0].strip(),  # one line a device
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit_of(folder),
    }


def rates() -> dict[str, float]:
    """This device's speeds now: bf16 operations a second of an 8192³ product, bytes a second (read and written) of a copy."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = time_calls({"product": lambda: a @ b, "copy": lambda: target.copy_(source)}, rounds=3)
    return {"matrix": 2 * n**3 / times["product"] * 1e3, "copy": 2 * source.numel() / times["copy"] * 1e3}


def launches(call: Callable[[], Any]) -> int:
    """Kernels that one call launches, counted by the profiler (copies and fills of memory are not kernels)."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            call()
            torch.cuda.synchronize()
    kinds = ("memcpy", "memset")
    events = [e for e in recorded.events() or () if e.device_type.name == "CUDA"]
    return sum(not e.name.lower().startswith(kinds) for e in events)


def graphed(call: Callable[[], Any], own: Any = None) -> Callable[[], Any]:
    """The call captured into a CUDA graph: its replay, which returns the captured call's result.

    Args:
        own: the stream that it is captured on, whose context its kernels belong to.
    """
    stream = own or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=own), torch.no_grad():
        kept = call(), call  # who is called may hold the only copy of what the graph reads

    def run() -> Any:
        graph.replay()
        return kept[0]

    return run


def peak_of(call: Callable[[], Any]) -> int:
    """Bytes of the GPU's memory that a call allocates at most, as PyTorch counts them, its result among them.

    The call was made before: what it keeps for the next ones is not counted.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


SUBMITTING = 120_000
"""Cycles of the device in which the host submits a call with room to spare: 60 µs, of which it was seen to take 10 to 30."""


def sample_calls(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 5, each: int = 6, batch: int = 1, queued: bool = False
) -> dict[str, list[float]]:
    """Milliseconds of calls by CUDA events, `rounds` × `each` samples of every call, interleaved round by round.

    Args:
        batch: calls a sample, back to back; the sample is their time divided by their number.
        queued: the device is kept busy until a round's calls of one name are submitted, so that its own time is measured: the
            host takes 16 µs to submit a graph, longer than a short program runs, and would else be what the events see.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        for _ in range(rounds):
            for name, call in calls.items():
                pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(each)]
                if queued:
                    torch.cuda._sleep(SUBMITTING * each * batch)
                for start, end in pairs:
                    start.record()
                    for _ in range(batch):
                        call()
                    end.record()
                torch.cuda.synchronize()
                samples[name] += [start.elapsed_time(end) / batch for start, end in pairs]
    return samples


def summary(samples: list[float]) -> dict[str, float]:
    """Median and spread of samples: minimum, 10 % and 90 % quantiles, how many."""
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "p10": tenths[0],
        "p90": tenths[-1],
        "samples": len(samples),
    }


def time_calls(calls: Mapping[str, Callable[[], Any]], rounds: int = 5, each: int = 6) -> dict[str, float]:
    """Median milliseconds of each call; see `sample_calls`."""
    return {name: statistics.median(values) for name, values in sample_calls(calls, rounds, each).items()}
