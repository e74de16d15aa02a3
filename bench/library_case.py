"""A model of a library through torch.compile: how it is compiled, its error, its times with and without the guard."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.breadth.library.made import Called
from bench.case import DTYPES
from bench.errors import is_right, relative_error, tensors_of
from bench.library_models import MODELS, expected
from bench.peers import make_peers
from bench.timing import graphed, sample_calls, summary
from bench.work_counted import work_of

__all__ = ["measure"]

GUARDED = "kitsune, guard"


def _in(dtype: torch.dtype, value: Any, device: str) -> Any:
    return value.to(device, dtype if value.is_floating_point() else value.dtype)


def _exact(model: nn.Module, kwargs: Mapping[str, Tensor], device: str) -> list[Tensor]:
    """What a model gives in float64; in float32 where it has an operator that PyTorch has no float64 of."""
    try:
        return tensors_of(model.double()(**{key: _in(torch.float64, value, device) for key, value in kwargs.items()}))
    except RuntimeError:
        found = tensors_of(model.float()(**{key: _in(torch.float32, value, device) for key, value in kwargs.items()}))
        return [tensor.double() if tensor.is_floating_point() else tensor for tensor in found]


def measure(
    name: str,
    device: str,
    dtype: str,
    peers: tuple[str, ...] = (),
    mode: str | None = None,
    guard: bool = False,
    prepare: bool = False,
    prepared: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """One case: its graphs, what PyTorch runs and why, its error and eager's, seconds of the first call, milliseconds later.

    Args:
        mode: torch.compile's.
        guard: whether it is also compiled with the option `guard`, whose choices are made just before calls are timed.
        prepare: time nothing, as the caches are all that is wanted.
        prepared: called before anything is timed.
    """
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend
    from kitsune_mlir.dynamo.report import GraphReport
    from kitsune_mlir.dynamo.timed_choice import choices_wait

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32: else cuDNN's choices decide how far eager is from float64
    model, given = MODELS[name]()
    wide: nn.Module = copy.deepcopy(model).to(device)
    model = model.to(device, DTYPES[dtype])
    kwargs = {key: _in(DTYPES[dtype], value, device) for key, value in given.items()}
    others, missing = made_peers(model, kwargs, peers) if peers else ({}, {})  # which makes Dynamo forget what it compiled

    def compiled(guarded: bool) -> tuple[Callable[[], Any], list[list[GraphReport]]]:
        graphs: list[list[GraphReport]] = []  # of each of Dynamo's, for one size or several
        asked = options_of_backend(mode, {"guard": guarded})

        def backend(gm: Any, inputs: Any) -> Any:
            graphs.append([])
            return compiled_graph(gm, inputs, *asked, keep=graphs[-1].append)

        fast = torch.compile(model, backend=backend)
        return lambda: fast(**kwargs), graphs

    with torch.no_grad():
        exact = _exact(wide, kwargs, device)
        eager = relative_error(tensors_of(model(**kwargs)), exact)
        call, every = compiled(False)
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        error = relative_error(tensors_of(call()), exact)
        graphs = [one[0] for one in every if one]
        programs = [len(graph.programs) for graph in graphs]
        islands = [island.operator for graph in graphs for island in graph.islands]
        whole, rest = work_of(lambda: model(**kwargs)), work_of(call)
        result: dict[str, Any] = {
            "case": f"{name}_{dtype}",
            "programs": programs,
            "stages": [len(program.summary["stages"]) for graph in graphs for program in graph.programs],
            "in_pytorch": [f"{one.operator}: {one.reason}" for graph in graphs for one in graph.islands],
            "gave_up": [graph.gave_up for graph in graphs if graph.gave_up],
            "work": {
                "operators": [rest.operators, whole.operators],
                "operations": [rest.operations, whole.operations],
                "bytes": [rest.bytes, whole.bytes],
            },
            "error": error,
            "eager_error": eager,
            "right": is_right(error, eager, dtype),
            "as_expected": (programs, islands) == expected(name, dtype),
            "first_call_seconds": round(seconds, 1),
        }
        if peers:
            calls, chosen = {"kitsune": call, **others}, list[list[GraphReport]]()
            _capture("kitsune", calls, missing)
            if guard:
                calls[GUARDED], chosen = compiled(True)
                with choices_wait():
                    calls[GUARDED]()
            torch.cuda.synchronize()
            if prepare:
                return result | {"missing": missing}
            prepared()
            if guard:
                calls[GUARDED]()
                _capture(GUARDED, calls, missing)
                timed = [one for reports in chosen for report in reports for one in report.timed]
                result["timed"] = [str(one) for one in timed]
                result["chosen"] = [[*one.milliseconds, one.in_pytorch] for one in timed if one.milliseconds]
            result["milliseconds"] = _times(calls)
            result["missing"] = missing
    return result


def _capture(name: str, calls: dict[str, Callable[[], Any]], missing: dict[str, str]) -> None:
    """Add the call in a CUDA graph, or why there is none."""
    try:
        calls[f"{name}, graph"] = graphed(calls[name])
    except RuntimeError as error:  # an island that cannot be captured
        missing[f"{name}, graph"] = str(error).splitlines()[0]


def _times(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds: of CUDA graphs the device's own time, of others until the device is done with what is submitted."""
    found: dict[str, float] = {}
    for queued in (False, True):
        some = {name: call for name, call in calls.items() if name.endswith("graph") is queued}
        samples = sample_calls(some, rounds=3, queued=queued) if some else {}
        found |= {name: round(summary(values)["median"], 4) for name, values in samples.items()}
    return {name: found[name] for name in calls}


def made_peers(
    model: nn.Module, kwargs: Mapping[str, Any], peers: tuple[str, ...]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """`bench.peers.make_peers` of a model that is called by names."""
    return make_peers(Called(model, tuple(kwargs), {}), tuple(kwargs.values()), peers)
