"""What a call through torch.compile costs the processor over a call of the program, for a small model; beside Inductor.

    python -m bench.compiled_call_cost [--device cpu] [--json FILE] [--profile] [--models NAME...]

The least of many rounds counts, in turns: other work on the machine only adds. One thread; calls follow each other without
waiting for the device. `eager` is the model itself; `guards` the model captured by a backend whose function gives what it gave
at first: what every backend's call costs. On the host a call's arithmetic is part of all others.

With `--models` the calls are those of models of libraries (`bench/library_models.py`; in bf16 on a GPU), with many weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from bench import host, sizes
from bench.timing import environment
from kitsune_mlir.dynamo import kitsune

CALLS, ROUNDS = 50, 300


class Small(nn.Module):
    """Two layers and a norm: five parameters and a buffer, as a small model has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of 32 to rows of 8."""
        return self.outer(torch.relu(self.norm(self.inner(x))))


def microseconds(calls: dict[str, Callable[[], Any]], rounds: int = ROUNDS, each: int = CALLS) -> dict[str, float]:
    """The least wall time of a call of each, in turns: of so many rounds of so many calls."""
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(each):
                call()
            least[name] = min(least[name], 1e6 * (time.perf_counter() - start) / each)
    return least


def compiled(backend: Any, model: nn.Module, x: Tensor, changing: bool = False) -> Callable[[], Any]:
    """A call of the model through torch.compile.

    Args:
        changing: it is compiled for any number of rows.
    """
    options: dict[str, Any] | None = {"threads": 1, "guard": False} if backend is kitsune else None
    fast = torch.compile(sizes.apart(model), backend=backend, dynamic=changing, options=options)
    for rows in (2, 3) if changing else ():
        fast(torch.cat([x, x])[: len(x) + rows])
    fast(x)
    return lambda: fast(x)


def measure(device: str, profile: bool = False) -> dict[str, float]:
    """Microseconds of a call, each way."""
    torch.set_num_threads(1)
    model, x = Small().eval().to(device), torch.randn(4, 32, device=device)
    with torch.no_grad():
        program = kitsune_mlir.compile(model, (x,), options={"threads": 1})
        calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(x), "program": lambda: program(x)}
        # The function itself: a copy of the source that is not installed has no name that PyTorch finds it by.
        names = {"guards": repeated, "kitsune": kitsune, "Inductor": "inductor"}
        calls |= {name: compiled(backend, model, x) for name, backend in names.items()}
        calls |= {f"{name}, any rows": compiled(backend, model, x, True) for name, backend in names.items()}
        if profile:
            _profile(calls["kitsune, any rows"])
        return microseconds(calls)


def repeated(gm: Any, inputs: Any) -> Callable[..., Any]:
    """A backend whose function gives what the graph gave at first."""
    given: list[Any] = []

    def run(*args: Any) -> Any:
        if not given:
            given.append(gm(*args))
        return given[0]

    return run


def measure_model(name: str, device: str, profile: bool = False) -> dict[str, float]:
    """Microseconds of a call of a library's model, each way."""
    from bench.library_models import MODELS

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, kwargs = MODELS[name]()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = model.to(device, dtype)
    given = {key: value.to(device, dtype if value.is_floating_point() else value.dtype) for key, value in kwargs.items()}
    options = {"threads": 1, "guard": False}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(**given)}
    backends: dict[str, tuple[Any, dict[str, Any] | None]] = {
        "guards": (repeated, None), "kitsune": (kitsune, options), "Inductor": ("inductor", None)
    }  # fmt: skip
    with torch.no_grad():
        for way, (backend, asked) in backends.items():
            fast = torch.compile(apart(model, given), backend=backend, dynamic=False, options=asked)
            fast()
            calls[way] = fast
        if profile:
            _profile(calls["kitsune"], 500)
        return microseconds(calls, 20, 10)


def apart(model: nn.Module, given: dict[str, Tensor]) -> Callable[[], Any]:
    """A call with code of its own: Dynamo keeps what it compiles by code, and looks at all of that."""

    def function() -> Any:
        return model(**given)

    return types.FunctionType(function.__code__.replace(), globals(), closure=function.__closure__)


def _profile(call: Callable[[], Any], calls: int = 5000) -> None:
    import cProfile
    import pstats

    recorded = cProfile.Profile()
    recorded.enable()
    for _ in range(calls):
        call()
    recorded.disable()
    pstats.Stats(recorded).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Command line; the exit status is not 0 where a call costs more than 25 us over the program, or more than Inductor's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the time of a call goes")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="models of libraries, in place of the small one")
    given = parser.parse_args()
    about = environment() if given.device == "cuda" else host.environment()
    if given.models:
        torch.set_num_threads(1)
        each = {name: measure_model(name, given.device, given.profile) for name in given.models}
        for name, found in each.items():
            print(f"{name:24s}", ", ".join(f"{way} {value:.1f} us" for way, value in found.items()))
        if given.json is not None:
            command = "python -m bench.compiled_call_cost --models"
            given.json.write_text(json.dumps({"environment": about, "command": command, "models": each}, indent=1) + "\n")
        return int(any(found["kitsune"] > found["Inductor"] for found in each.values()))
    found = measure(given.device, given.profile)
    for name, value in found.items():
        print(f"{name:20s} {value:6.2f} us")
    over, any_rows = found["kitsune"] - found["program"], found["kitsune, any rows"] - found["program"]
    guards = f"{found['guards']:.2f} ({found['guards, any rows']:.2f})"
    print(f"over the program: {over:.2f} us ({any_rows:.2f} for any rows), of which PyTorch's {guards}")
    if given.json is not None:
        record = {"environment": about, "command": "python -m bench.compiled_call_cost", "microseconds": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(over > 25 or found["kitsune"] > found["Inductor"])


if __name__ == "__main__":
    sys.exit(main())
