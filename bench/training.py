"""Training steps beside PyTorch's: forward and backward, and whole steps with AdamW; gradients and updates against float64.

    python -m bench.training [NAME...] [--device cpu] [--dtype bf16] [--size full] [--what gradients,step] [--peers graph]
                             [--json FILE] [--resume] [--jobs N] [--seconds 600] [--passes NAME:OPTIONS]

Names: `bench/training_cases.py` (the extra `breadth` has the libraries). `gradients` is torch.compile of model and loss, and
backward(); `step` is `kitsune_mlir.train_step`, beside eager's backward() and fused AdamW, and torch.compile of the loss and of
the optimizer's step. A case is right if its error against float64 (the largest of all gradients; of the step, that of what
one step adds to all weights) is at most twice eager's own.

Of each peer: milliseconds (interleaved), seconds until its first call was done, launches, and bytes of memory: `torch_bytes`
at most as PyTorch counts them, the first call's measurements included, `step_bytes` the same of later calls, `driver_bytes` as
the driver does (with arenas, packed weights and graph pools). Weights and the optimizer's state are part of all. Each case has
a process of its own, and `--jobs` of them prepare side by side: then the driver's bytes, which are those of the whole GPU, are
left out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import importlib.util
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import host
from bench.case import DTYPES
from bench.errors import is_right
from bench.forked import answer_of, in_turns
from bench.library import device_here, environment_of
from bench.peers import COMPILED, PEERS, parse
from bench.records import Record
from bench.timing import graphed, launches, time_calls
from bench.training_cases import CASES, Objective, TrainingCase
from kitsune_mlir.dynamo.report import GraphReport

KINDS = ("gradients", "step")
SECONDS = 600
RATE = 1e-3
"""Of learning: AdamW's first step moves each weight by about as much."""

Call = Callable[[], Any]


class Case:
    """A model at its starting point, its arguments and its targets.

    Args:
        dtype: of weights and activations, or of activations alone (`TrainingCase.autocast`).
    """

    def __init__(self, case: TrainingCase, size: str, dtype: str, device: str):
        torch.manual_seed(0)
        model, args = case.make(size, device)
        self.device, self.case = device, case
        self.autocast = DTYPES[dtype] if case.autocast and dtype != "f32" else None
        kind = torch.float32 if case.autocast else DTYPES[dtype]
        self.model = model.to(kind).train()
        for parameter in self.model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        if case.autocast:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.args = tuple(arg.to(kind) if arg.is_floating_point() else arg for arg in args)
        self.targets = self._targets()

    def _targets(self) -> tuple[Tensor, ...]:
        objective = self.objective()
        with torch.no_grad():
            found = objective.trained(objective.model(*self.args))
        if self.case.words:
            shape, count = found[0].shape[:-1], found[0].shape[-1]
            return (torch.randint(count, shape, device=self.device),)
        return tuple(torch.randn_like(one) for one in found)

    def objective(self, kind: torch.dtype | None = None) -> Objective:
        """The loss, with a copy of the model of its own."""
        model = copy.deepcopy(self.model)
        return Objective(model if kind is None else model.to(kind), self.case.words, self.case.results)

    def given(self, kind: torch.dtype | None = None) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Arguments and targets."""
        return widened(self.args, kind), widened(self.targets, kind)

    @contextlib.contextmanager
    def context(self, kind: torch.dtype | None = None) -> Iterator[None]:
        """In which models are called, or models of `kind`."""
        with torch.enable_grad(), torch.autocast(self.device, self.autocast, enabled=bool(self.autocast) and kind is None):
            yield


def widened(tensors: tuple[Tensor, ...], kind: torch.dtype | None) -> tuple[Tensor, ...]:
    """Tensors with numbers of `kind`, where it is given; integers stay."""
    return tuple(t.to(kind) if kind is not None and t.is_floating_point() else t for t in tensors)


def parameters_of(objective: nn.Module) -> list[nn.Parameter]:
    """Those that are trained."""
    return [p for p in objective.parameters() if p.requires_grad]


def with_gradients(case: Case, objective: nn.Module, function: Callable[..., Tensor], kind: torch.dtype | None) -> Call:
    """A call of forward and backward, which leaves gradients in `grad`."""
    parameters, given = parameters_of(objective), case.given(kind)

    def call() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        with case.context(kind):
            loss = function(*given)
        loss.backward()
        return loss.detach()

    return call


def stepping(call: Call, step: Call) -> Call:
    """A whole step of gradients and an update."""

    def both() -> Any:
        loss = call()
        step()
        return loss

    return both


def adamw(objective: nn.Module, device: str, fused: bool) -> torch.optim.Optimizer:
    """The optimizer; on a GPU it can be captured."""
    on_gpu = device == "cuda"
    return torch.optim.AdamW(parameters_of(objective), RATE, capturable=on_gpu, fused=True if fused and on_gpu else None)


def made(
    case: Case,
    what: str,
    peer: str,
    reports: list[GraphReport],
    kind: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Objective, Call]:
    """A model and a call that trains it.

    Args:
        kind: of all numbers, instead of the case's.
        options: of "kitsune"'s compiler.
        peer: "eager", a key of `COMPILED`, or "kitsune".
        reports: what became of each graph of "kitsune" is added.
    """
    objective = case.objective(kind)
    if peer == "kitsune" and what == "step":
        import kitsune_mlir

        args, targets = case.given(kind)
        step = kitsune_mlir.train_step(
            objective.model, objective.loss, adamw(objective, case.device, fused=False), options=options or {}
        )
        step.reports = reports

        def call() -> Any:
            with case.context():
                return step(args, *targets)

        return objective, call
    function: Any = objective
    if peer == "kitsune":
        from kitsune_mlir.dynamo.backend import compiled_graph
        from kitsune_mlir.dynamo.graph_options import options_of_backend

        asked = options_of_backend(None, {"guard": False, **(options or {})})
        function = torch.compile(objective, backend=lambda gm, x: compiled_graph(gm, x, *asked, keep=reports.append))
    elif peer != "eager":
        function = torch.compile(objective, mode=COMPILED[peer], dynamic=False)
    call = with_gradients(case, objective, function, kind)
    if what == "gradients":
        return objective, call
    optimizer = adamw(objective, case.device, fused=peer == "eager")
    update = optimizer.step if peer == "eager" else torch.compile(optimizer.step, mode=COMPILED[peer], dynamic=False)
    return objective, stepping(call, update)


def learned(case: Case, what: str, objective: Objective) -> list[Tensor]:
    """What one call has given, in float64: the gradients of all parameters, or what the step added to them, as one tensor."""
    if what == "gradients":
        return [torch.zeros_like(p) if p.grad is None else p.grad.double() for p in parameters_of(objective)]
    pairs = zip(parameters_of(objective), parameters_of(case.model), strict=True)
    return [torch.cat([(after.detach().double() - before.detach().double()).flatten() for after, before in pairs])]


def error_of(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest ‖found - exact‖ / ‖exact‖; of what is all but zero beside the others, relative to 1e-6 of the largest."""
    most = max((float(e.norm()) for e in exact), default=0.0)
    pairs = zip(found, exact, strict=True)
    return max((float((f.double() - e).norm() / max(float(e.norm()), 1e-6 * most, 1e-30)) for f, e in pairs), default=0.0)


class Memory:
    """Bytes that are taken while it is entered: at most, as PyTorch counts them, and in the end, as the driver does.

    `before` is what PyTorch had taken then.
    """

    def __init__(self, device: str):
        self.on_gpu, self.found, self.before = device == "cuda", dict[str, int](), 0

    def __enter__(self) -> Memory:
        if self.on_gpu:
            self._clear()
            torch.cuda.reset_peak_memory_stats()
            self.before, self._free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        return self

    def __exit__(self, *error: object) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - self.before
            self.found = {"torch_bytes": peak, "driver_bytes": self._free - torch.cuda.mem_get_info()[0]}

    def _clear(self) -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def measure(
    name: str,
    what: str,
    device: str,
    dtype: str,
    size: str,
    peers: tuple[str, ...] = (),
    passes: Mapping[str, str] | None = None,
    prepared: Callable[[], None] = lambda: None,
    alone: bool = True,
) -> dict[str, Any]:
    """One case: what became of its graphs, its error and eager's, and of each peer seconds, memory, launches and times.

    Args:
        alone: whether nothing else takes memory of the GPU meanwhile.
    """
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # f32 is f32
    torch._dynamo.reset()
    case = Case(CASES[name], size, dtype, device)
    reports: list[GraphReport] = []
    objective, call = made(case, what, "eager", reports, torch.float64)
    call()
    exact = learned(case, what, objective)
    del objective, call
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    about: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}

    def attempt(peer: str, make: Callable[[], None]) -> None:
        """A peer that fails costs only itself."""
        try:
            make()
        except Exception as error:
            if peer in ("kitsune", "eager"):
                raise
            missing[peer] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"

    def plain(peer: str) -> None:
        with Memory(device) as first:
            objective, call = made(case, what, peer, reports, options={"passes": passes or {}})
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
        errors[peer] = error_of(learned(case, what, objective), exact)
        with Memory(device) as later:
            call()
            call()
        calls[peer] = call
        about[peer] = {"first_call_seconds": round(seconds, 1), **_sum(first.found, later.found)}
        if device == "cuda":
            about[peer]["step_bytes"] = later.found["torch_bytes"] + later.before - first.before
            about[peer]["launches"] = launches(call)

    def captured(peer: str, graph: str) -> None:
        with Memory(device) as pool:
            calls[graph] = graphed(calls[peer])
        about[graph] = _sum({key: about[peer][key] for key in ("torch_bytes", "driver_bytes")}, pool.found)

    for peer in ["kitsune", *dict.fromkeys(["eager", *(peer.removesuffix(", graph") for peer in peers)])]:
        attempt(peer, functools.partial(plain, peer))
        graph = f"{peer}, graph"
        if device == "cuda" and peer in calls and (peer == "kitsune" or graph in peers):
            attempt(graph, functools.partial(captured, peer, graph))
    if not alone:
        for one in about.values():
            one.pop("driver_bytes", None)
    programs = [program.summary for report in reports for program in report.programs]
    result: dict[str, Any] = {
        "case": f"{name}_{what}_{dtype}",
        "size": size,
        **({"passes": dict(passes)} if passes else {}),
        "programs": [len(report.programs) for report in reports],
        "stages": [len(one["stages"]) for one in programs],
        "launches": [one.get("launches", 1) for one in programs],
        "slow": [task for one in programs for task in one.get("slow", ())],
        "in_pytorch": [f"{one.operator}: {one.reason}" for report in reports for one in report.islands],
        "gave_up": [report.gave_up for report in reports if report.gave_up],
        "compile_seconds": [one.get("seconds") for one in programs],
        "error": errors["kitsune"],
        "eager_error": errors["eager"],
        "right": is_right(errors["kitsune"], errors["eager"], dtype),
        "peers": about,
        "missing": missing,
    }
    if peers:
        wanted = {key: call for key, call in calls.items() if key in peers or key.startswith("kitsune")}
        prepared()
        timed = time_calls(wanted, rounds=3) if device == "cuda" else _medians(host.milliseconds(wanted, 1.0))
        result["milliseconds"] = {key: round(value, 4) for key, value in timed.items()}
        best = min((value for key, value in timed.items() if not key.startswith("kitsune")), default=None)
        if best is not None:
            result["speedup"] = round(best / min(value for key, value in timed.items() if key.startswith("kitsune")), 3)
    return result


def _sum(first: dict[str, Any], second: dict[str, int]) -> dict[str, Any]:
    """Memory of what was made one after the other: the driver's adds up, PyTorch's is the larger one."""
    both = dict(first)
    if second:
        both["torch_bytes"] = max(first.get("torch_bytes", 0), second["torch_bytes"])
        both["driver_bytes"] = first.get("driver_bytes", 0) + second["driver_bytes"]
    return both


def _medians(times: dict[str, dict[str, float]]) -> dict[str, float]:
    return {key: value["median"] for key, value in times.items()}


def main() -> int:
    """Command line; the exit status is the number of cases that are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(CASES))
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--what", default=",".join(KINDS), help="gradients, step, or both")
    parser.add_argument("--peers", default="none", help="what is timed beside it: see bench.peers")
    parser.add_argument("--jobs", type=int, default=1, help="cases that prepare side by side; each is timed alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out cases that the file has")
    parser.add_argument(
        "--passes", action="append", default=[], metavar="NAME:OPTIONS", help="e.g. kitsune-form-stages:cut=products:11"
    )
    given = parser.parse_args()
    if unknown := [*set(given.names) - {*CASES}, *set(given.what.split(",")) - {*KINDS}]:
        parser.error(f"there is no {unknown[0]}")
    given.device = given.device or answer_of(device_here, "device", SECONDS)["device"]
    record = Record.open(given.json, given.resume)
    passes = dict(one.split(":", 1) for one in given.passes)
    peers = tuple(peer for peer in parse(given.peers) if peer in PEERS)
    works: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {}
    for name in given.names or CASES:
        library = CASES[name].library
        if library and importlib.util.find_spec(library) is None:
            print(f"{name}: missing: {library} is not installed (extra `breadth`)")
            continue
        for what in given.what.split(","):
            case = f"{name}_{what}_{given.dtype}"
            if "error" not in record.cases.get(case, {}):
                works[case] = functools.partial(
                    measure, name, what, given.device, given.dtype, given.size, peers, passes, alone=given.jobs == 1
                )
    if works:
        about = answer_of(functools.partial(environment_of, given.device, given.json), "environment", SECONDS)
        asked = [f"--{key} {shlex.quote(str(getattr(given, key)))}" for key in ("device", "dtype", "what", "peers", "jobs")]
        command = shlex.join(["python", "-m", "bench.training", *given.names]) + " " + " ".join(asked)
        record.begin({"environment": about, "command": command, "size": given.size})
        in_turns(works, record, given.seconds, given.jobs)
    bad = [case for case, one in record.cases.items() if not one.get("right")]
    print(f"{len(record.cases) - len(bad)} of {len(record.cases)} right", *bad, sep="\n  ")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
