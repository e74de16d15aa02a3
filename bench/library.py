"""Small models of libraries through torch.compile(backend="kitsune"): what is compiled, right or not, how fast on a GPU.

    python -m bench.library [NAME...] [--device cpu] [--dtype f32,bf16] [--json FILE] [--resume]

Needs the extra `breadth`. A model passes if its error against float64 is at most twice eager's own, and if as many graphs,
programs and operators left to PyTorch come out as `library_models.EXPECTED` says. Times (on a GPU) are of whole calls, of which
Dynamo's guards are a part, beside the model as PyTorch runs it. Each case has a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import host
from bench.case import DTYPES
from bench.forked import answer_of
from bench.library_models import EXPECTED, MODELS
from bench.timing import environment, time_calls

SECONDS = 600
LEAST = {"f32": 1e-5, "bf16": 1e-2}
"""Errors, ‖out - exact‖ / ‖exact‖, that are right whatever eager's own is."""


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for one in values for tensor in _tensors(one)]


def _in(dtype: torch.dtype, value: Any, device: str) -> Any:
    return value.to(device, dtype if value.is_floating_point() else value.dtype)


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    pairs = [(f.double(), e) for f, e in zip(found, exact, strict=True) if e.is_floating_point() and e.numel()]
    return max((float((f - e).norm() / e.norm().clamp(min=1e-30)) for f, e in pairs), default=0.0)


def _exact(model: nn.Module, kwargs: Mapping[str, Tensor], device: str) -> list[Tensor]:
    """What a model gives in float64; in float32 where it has an operator that PyTorch has no float64 of."""
    try:
        return _tensors(model.double()(**{key: _in(torch.float64, value, device) for key, value in kwargs.items()}))
    except RuntimeError:
        found = _tensors(model.float()(**{key: _in(torch.float32, value, device) for key, value in kwargs.items()}))
        return [tensor.double() if tensor.is_floating_point() else tensor for tensor in found]


def measure(name: str, device: str, dtype: str) -> dict[str, Any]:
    """One case: its graphs, what PyTorch runs and why, its error and eager's, seconds of the first call, milliseconds later."""
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend
    from kitsune_mlir.dynamo.report import GraphReport

    torch.manual_seed(0)
    model, given = MODELS[name]()
    wide: nn.Module = copy.deepcopy(model).to(device)
    model = model.to(device, DTYPES[dtype])
    kwargs = {key: _in(DTYPES[dtype], value, device) for key, value in given.items()}
    graphs: list[GraphReport] = []
    asked = options_of_backend(None, None)
    fast = torch.compile(model, backend=lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=graphs.append))
    with torch.no_grad():
        exact = _exact(wide, kwargs, device)
        eager = _error(_tensors(model(**kwargs)), exact)
        start = time.perf_counter()
        fast(**kwargs)
        seconds = time.perf_counter() - start
        error = _error(_tensors(fast(**kwargs)), exact)
        programs = [len(graph.programs) for graph in graphs]
        islands = [island.operator for graph in graphs for island in graph.islands]
        result: dict[str, Any] = {
            "case": f"{name}_{dtype}",
            "programs": programs,
            "stages": [len(program.summary["stages"]) for graph in graphs for program in graph.programs],
            "in_pytorch": [f"{one.operator}: {one.reason}" for graph in graphs for one in graph.islands],
            "gave_up": [graph.gave_up for graph in graphs if graph.gave_up],
            "error": error,
            "eager_error": eager,
            "right": error <= max(2 * eager, LEAST[dtype]),
            "as_expected": (programs, islands) == EXPECTED.get(name, ([1], [])),
            "first_call_seconds": round(seconds, 1),
        }
        if device == "cuda":
            calls = {"kitsune": lambda: fast(**kwargs), "eager": lambda: model(**kwargs)}
            result["milliseconds"] = {key: round(value, 4) for key, value in time_calls(calls, rounds=3).items()}
    return result


def main() -> int:
    """Command line; the exit status is the number of cases that are not right, or not compiled as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out cases that the file has")
    given = parser.parse_args()
    known = json.loads(given.json.read_text())["results"] if given.resume and given.json.exists() else []
    results = {one["case"]: one for one in known if "problem" not in one}
    for name in given.names or MODELS:
        for dtype in given.dtype.split(","):
            case = f"{name}_{dtype}"
            if case not in results:
                work = lambda name=name, dtype=dtype: measure(name, given.device, dtype)  # noqa: E731
                results[case] = {"case": case, **answer_of(work, case, SECONDS)}
                print(json.dumps(results[case]), flush=True)
            if given.json is not None:
                about = environment() if given.device == "cuda" else host.environment()
                record = {"environment": about, "command": "python -m bench.library", "results": [*results.values()]}
                given.json.write_text(json.dumps(record, indent=1) + "\n")
    bad = [case for case, one in results.items() if not (one.get("right") and one.get("as_expected"))]
    print(f"{len(results) - len(bad)} of {len(results)} models right and compiled as expected", *bad, sep="\n  ")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
