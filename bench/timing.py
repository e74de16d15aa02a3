"""Timing on a GPU: CUDA events, medians, peers interleaved in one run."""

from __future__ import annotations

import datetime
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["commit_of", "environment", "launches", "note_commit", "peer_times", "time_calls"]


def commit_of(folder: Path | None = None) -> str:
    """The commit that the code was built from: what `note_commit` left in `folder`, else this checkout's."""
    if folder is not None and (folder / "commit.txt").exists():
        return (folder / "commit.txt").read_text().strip()
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


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
        "driver": driver.stdout.strip(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit_of(folder),
    }


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
    events = [e for e in recorded.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.lower().startswith(kinds) for e in events)


def graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call captured into a CUDA graph; its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        kept = call()
    replay = graph.replay
    replay_holder = (graph, kept)

    def run() -> None:
        replay()
        _ = replay_holder

    return run


def time_calls(calls: Mapping[str, Callable[[], Any]], rounds: int = 5, each: int = 6) -> dict[str, float]:
    """Median milliseconds of each call by CUDA events, the calls interleaved round by round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        for _ in range(rounds):
            for name, call in calls.items():
                pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(each)]
                for start, end in pairs:
                    start.record()
                    call()
                    end.record()
                torch.cuda.synchronize()
                samples[name] += [start.elapsed_time(end) for start, end in pairs]
    return {name: statistics.median(values) for name, values in samples.items()}


def peer_times(
    model: torch.nn.Module, args: tuple, calls: Mapping[str, Callable[[], Any]], autotune: bool = True
) -> dict[str, float]:
    """Times of `calls` (also under a CUDA graph) beside eager, torch.compile and (if asked) max-autotune, graphed."""
    every = dict(calls)
    for name, call in calls.items():
        every[f"{name}, graph"] = graphed(call)
    every["eager"] = lambda: model(*args)
    every["eager, graph"] = graphed(lambda: model(*args))
    modes = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
    for label in modes if autotune else ["compile"]:
        mode = modes[label]
        torch._dynamo.reset()
        compiled = torch.compile(model, mode=mode)
        try:
            with torch.no_grad():
                compiled(*args)
            every[f"{label}, graph"] = graphed(lambda c=compiled: c(*args))
        except RuntimeError as error:
            print(f"peer {label} failed: {error}")
    return time_calls(every)
