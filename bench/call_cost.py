"""What one call of a compiled program costs the processor, and which part costs how much.

    python -m bench.call_cost build DIR        a tiny program for a GPU; needs none
    python -m bench.call_cost run DIR [--json FILE]

Calls follow each other without waiting, 500 at a time (the launch queue holds more), and the median of 30 such rounds counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir

NAME = "tiny.kit"
CALLS, ROUNDS = 500, 30


class Tiny(torch.nn.Module):
    """Two tensors in, one out."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def inputs(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What `Tiny` is compiled for."""
    return torch.ones(64, 64, device=device), torch.ones(64, 64, device=device)


def build(folder: Path) -> None:
    """Compile the program."""
    from bench.timing import note_commit

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    kitsune_mlir.compile(Tiny(), inputs("cpu"), target="sm_90a").save(folder / NAME)


def microseconds(call: Callable[[], Any]) -> float:
    """Median wall time of one call, enqueued back to back."""
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter_ns() - start) / CALLS / 1e3)
    return statistics.median(rounds)


def measure(folder: Path) -> dict[str, float]:
    """Microseconds of a call and of its parts (see the keys)."""
    import ctypes

    from kitsune_mlir.runtime.launch import library

    x, y = inputs("cuda")
    program: Any = kitsune_mlir.load(folder / NAME)
    assert torch.equal(program(x, y), x + y)
    executor, direct, stream = program._runner.executor, program._direct, torch.cuda.current_stream().cuda_stream
    kept = torch.empty_like(x)
    pointers = (x.data_ptr(), y.data_ptr(), kept.data_ptr())
    executor.run(pointers, stream)
    state = executor._states[stream]
    prepared = (state.config.address, executor._handle, state.table_address, None)
    cooperative = ctypes.CDLL("libcuda.so.1").cuLaunchCooperativeKernel
    cooperative.argtypes = (ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_void_p)
    manifest = executor.manifest
    sizes = (executor.blocks, 1, 1, manifest.threads, 1, 1, manifest.shared_bytes)
    launch = library().launch
    shape, stride, dtype = direct.results[0]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program(x, y)
    found = {
        "program(x, y)": microseconds(lambda: program(x, y)),
        "the general way": microseconds(lambda: program._call((x, y), {})),
        "x + y in PyTorch": microseconds(lambda: x + y),
        "graph replay": microseconds(graph.replay),
        "executor.run": microseconds(lambda: executor.run(pointers, stream)),
        "cuLaunchKernelEx": microseconds(lambda: launch(*prepared)),
        "cuLaunchCooperativeKernel": microseconds(lambda: cooperative(executor._handle, *sizes, stream, state.table_address)),
        "is_capturing": microseconds(lambda: executor._is_capturing(stream, state.capturing_address)),
        "allocation": microseconds(lambda: direct._empty(shape, stride, dtype)),
        "torch.empty": microseconds(lambda: torch.empty(shape, dtype=dtype, device=x.device)),
    }
    ready, direct._ready, direct._compilable = direct._ready, {}, False  # compiled code makes no such call
    found["program(x, y) by Python"] = microseconds(lambda: program(x, y))
    run, direct.run = direct.run, lambda *_: None
    found["checks, allocation, no launch"] = microseconds(lambda: program(x, y))
    direct.run = run
    executor._launch = lambda *_: 0
    found["program(x, y) by Python without the driver's launch"] = microseconds(lambda: program(x, y))
    executor._launch = launch
    direct._ready, direct._compilable = ready, True
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.mode == "build":
        build(given.folder)
        return 0
    from bench.timing import environment

    found = measure(given.folder)
    for name, value in found.items():
        print(f"{name:44s} {value:6.2f} us", flush=True)
    if given.json is not None:
        record = {"environment": environment(given.folder), "microseconds": found}
        given.json.write_text(json.dumps({**record, "command": "python -m bench.call_cost run DIR"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
