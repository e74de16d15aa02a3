"""Small models of libraries through torch.compile(backend="kitsune"): what is compiled, right or not, how fast on a GPU.

    python -m bench.library [NAME...] [--device cpu] [--dtype f32,bf16] [--peers graph] [--json FILE] [--resume] [--guard]
                            [--jobs N]

Needs the extra `breadth`. A model passes if its error against float64 is at most twice eager's own, and if as many graphs,
programs and operators left to PyTorch come out as `library_models.expected` says. Times (on a GPU) are of whole calls, of which
Dynamo's guards are a part, and of the compiled function in a CUDA graph, beside PyTorch's. Each case has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import host
from bench.breadth.library.made import Called, imported
from bench.case import DTYPES
from bench.forked import answer_of, in_turns
from bench.library_models import MODELS, expected
from bench.peers import make_peers, parse
from bench.records import Record
from bench.timing import environment, graphed, time_calls

SECONDS = 600
LIBRARIES = ("transformers", "torchvision", "timm", "torch_geometric.nn", "diffusers")
"""Imported once for all cases, where there are more than `FEW`."""
FEW = 3
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


def measure(
    name: str,
    device: str,
    dtype: str,
    peers: tuple[str, ...] = (),
    mode: str | None = None,
    guard: bool = False,
    prepared: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """One case: its graphs, what PyTorch runs and why, its error and eager's, seconds of the first call, milliseconds later.

    Args:
        mode: torch.compile's. guard: whether what PyTorch runs faster is left to it.
        prepared: called before anything is timed.
    """
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend
    from kitsune_mlir.dynamo.report import GraphReport

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32: else cuDNN's choices decide how far eager is from float64
    model, given = MODELS[name]()
    wide: nn.Module = copy.deepcopy(model).to(device)
    model = model.to(device, DTYPES[dtype])
    kwargs = {key: _in(DTYPES[dtype], value, device) for key, value in given.items()}
    others, missing = made_peers(model, kwargs, peers) if peers else ({}, {})  # which makes Dynamo forget what it compiled
    graphs: list[GraphReport] = []
    asked = options_of_backend(mode, {"guard": guard})
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
            "as_expected": (programs, islands) == expected(name, dtype),
            "timed": [str(timed) for graph in graphs for timed in graph.timed],
            "first_call_seconds": round(seconds, 1),
        }
        if peers:
            calls: dict[str, Callable[[], Any]] = {"kitsune": lambda: fast(**kwargs), **others}
            try:
                calls["kitsune, graph"] = graphed(calls["kitsune"])
            except RuntimeError as error:  # an island that cannot be captured
                missing["kitsune, graph"] = str(error).splitlines()[0]
            torch.cuda.synchronize()
            prepared()
            result["milliseconds"] = {key: round(value, 4) for key, value in time_calls(calls, rounds=3).items()}
            result["missing"] = missing
    return result


def made_peers(
    model: nn.Module, kwargs: Mapping[str, Any], peers: tuple[str, ...]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """`bench.peers.make_peers` of a model that is called by names."""
    return make_peers(Called(model, tuple(kwargs), {}), tuple(kwargs.values()), peers)


def device_here() -> dict[str, Any]:
    """{"device": "cuda"} or {"device": "cpu"}; for a process of its own."""
    return {"device": "cuda" if torch.cuda.is_available() else "cpu"}


def environment_of(device: str, path: Path | None) -> dict[str, Any]:
    """What a record in a file says of the machine; for a process of its own."""
    return host.environment() if device != "cuda" else environment(path.parent if path else None)


def main() -> int:
    """Command line; the exit status is the number of cases that are not right, or not compiled as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--peers", default="none", help="what is timed beside it on a GPU: see bench.peers")
    parser.add_argument("--mode", help="of torch.compile")
    parser.add_argument("--guard", action=argparse.BooleanOptionalAction, default=False, help="keep PyTorch where it is faster")
    parser.add_argument("--jobs", type=int, default=1, help="cases that prepare side by side; each is timed alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out cases that the file has")
    given = parser.parse_args()
    # Each in a process of its own: children of a process that asked CUDA for anything cannot use it.
    given.device = given.device or answer_of(device_here, "device", SECONDS)["device"]
    record = Record.open(given.json, given.resume)
    peers = parse(given.peers)
    chosen = [(name, dtype) for name in given.names or MODELS for dtype in given.dtype.split(",")]
    chosen = [(name, dtype) for name, dtype in chosen if "error" not in record.cases.get(f"{name}_{dtype}", {})]
    if chosen:
        about = answer_of(functools.partial(environment_of, given.device, given.json), "environment", SECONDS)
        record.begin({"environment": about, "command": "python -m bench.library", "mode": given.mode, "guard": given.guard})
    if given.device == "cpu" and len(chosen) > FEW:  # some of them ask CUDA, which children could not use then
        for library in LIBRARIES:
            with contextlib.suppress(ImportError):
                imported(library)

    works = {
        f"{name}_{dtype}": functools.partial(measure, name, given.device, dtype, peers, given.mode, given.guard)
        for name, dtype in chosen
    }
    in_turns(works, record, given.seconds, given.jobs)
    bad = [case for case, one in record.cases.items() if not (one.get("right") and one.get("as_expected"))]
    print(f"{len(record.cases) - len(bad)} of {len(record.cases)} right and compiled as expected", *bad, sep="\n  ")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
