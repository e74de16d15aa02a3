"""What a call through torch.compile costs the processor over a call of the program, for a small model; beside Inductor.

    python -m bench.compiled_call_cost [--device cpu] [--json FILE] [--profile]

The least of many rounds counts, in turns: other work on the machine only adds. One thread; calls follow each other without
waiting for the device. `eager` is the model itself, `Dynamo` the model captured and run by PyTorch (backend "eager"): what that
costs over `eager` are PyTorch's guards.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from bench import host
from bench.timing import environment

CALLS, ROUNDS = 50, 300


class Small(nn.Module):
    """Two layers and a norm: five parameters and a buffer, as a small model has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of 32 to rows of 8."""
        return self.outer(torch.relu(self.norm(self.inner(x))))


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least wall time of a call of each, in turns."""
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], 1e6 * (time.perf_counter() - start) / CALLS)
    return least


def compiled(backend: str, model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """A call of the model through torch.compile, as a function of its own that Dynamo knows nothing else of."""

    def function(x: Tensor) -> Tensor:
        return model(x)

    options: dict[str, Any] | None = {"threads": 1, "guard": False} if backend == "kitsune" else None
    fast = torch.compile(function, backend=backend, dynamic=False, options=options)
    fast(x)
    return lambda: fast(x)


def measure(device: str, profile: bool = False) -> dict[str, float]:
    """Microseconds of a call, each way."""
    torch.set_num_threads(1)
    model, x = Small().eval().to(device), torch.randn(4, 32, device=device)
    with torch.no_grad():
        program = kitsune_mlir.compile(model, (x,), options={"threads": 1})
        calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(x), "program": lambda: program(x)}
        names = {"Dynamo": "eager", "kitsune": "kitsune", "Inductor": "inductor"}
        calls |= {name: compiled(backend, model, x) for name, backend in names.items()}
        if profile:
            _profile(calls["kitsune"])
        return microseconds(calls)


def _profile(call: Callable[[], Any]) -> None:
    import cProfile
    import pstats

    recorded = cProfile.Profile()
    recorded.enable()
    for _ in range(5000):
        call()
    recorded.disable()
    pstats.Stats(recorded).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Command line; the exit status is not 0 where a call costs more than 25 us over the program, or more than Inductor's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the time of a call goes")
    given = parser.parse_args()
    found = measure(given.device, given.profile)
    for name, value in found.items():
        print(f"{name:10s} {value:6.2f} us")
    over = found["kitsune"] - found["program"]
    print(f"over the program: {over:.2f} us, of which Dynamo's {found['Dynamo'] - found['eager']:.2f} us")
    if given.json is not None:
        about = environment() if given.device == "cuda" else host.environment()
        record = {"environment": about, "command": "python -m bench.compiled_call_cost", "microseconds": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(over > 25 or found["kitsune"] > found["Inductor"])


if __name__ == "__main__":
    sys.exit(main())
