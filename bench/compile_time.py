"""Compile time of whole models, from `nn.Module` to cubins: without anything kept, and from the cache.

    python -m bench.compile_time [CASE...] [--target sm_90a] [--torch-compile [--device cuda]] [--json FILE]
    python -m bench.compile_time CASE... --step --device cuda [--json FILE]

Each case runs in processes of its own with a folder for its cache that is empty first, in bf16 with random weights; importing
torch and kitsune_mlir, with the parts that are imported late, does not count, nor what imports leave to Python's collector.
*Wall* is what a user waits for, and depends on what else the machine does; *processor* is the time of the process and of ptxas,
on all cores together. No GPU is needed. With `--torch-compile` the first call of `torch.compile(model, backend="kitsune")` is
timed, tracing included; and, in another process, Dynamo's tracing alone, guards included, which a backend that does nothing
waits for: *beyond tracing* is what a call from the cache takes more. With `--device cuda` that is until the GPU has the result,
of which opening the device before is no part. The cases are `bench/whole_models.py`'s, EfficientNet-B0 of timm where that is
installed, and, by name, those of the benchmark. With `--step` they are those of `bench/training_cases.py`, at full size: the
first call of `kitsune_mlir.train_step` with AdamW.
FILE is written after every case.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["measured", "table", "timed"]

OF_LIBRARY = "lib_efficientnet_b0_b1"
PHASES = ("import", "plan", "lower", "codegen")


def timed(
    case: str, target: str, folder: str, through_torch: bool = False, traced_only: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """Compile a case once in this process: wall and processor seconds, and wall seconds by phase.

    Args:
        through_torch: by the first call of torch.compile.
        traced_only: until Dynamo has traced it and made its guards, and what a backend gave would be called.
        device: where the model lies; through torch.compile the call is made there.
    """
    import torch

    import kitsune_mlir
    from bench.cases import all_cases
    from bench.whole_models import MODELS

    _import_late_parts()
    torch.manual_seed(0)
    model, args = MODELS[case]() if case in MODELS else all_cases()[case].make("cpu", False)
    dtype = torch.bfloat16 if target != "host" else torch.float32
    model = model.to(device, dtype).eval()
    args = tuple(a.to(device, dtype if a.is_floating_point() else a.dtype) for a in args)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if through_torch:
            return _through_torch_compile(model, args, target, folder, traced_only)
        before, start = _processor(), time.perf_counter()
        program = kitsune_mlir.compile(model, args, target=target, options={"cache": True, "cache_dir": folder})
    wall = time.perf_counter() - start
    return {"wall": wall, "processor": _processor() - before, **program.seconds, **_launches([program])}


def _import_late_parts() -> None:
    """Import what else is imported while a model is compiled, which is not what is measured, nor is what imports leave to the
    collector of garbage."""
    import safetensors.torch  # noqa: F401
    import torch._dynamo
    import torch.export._trace

    import kitsune_mlir.cache
    import kitsune_mlir.dynamo
    import kitsune_mlir.pipeline
    import kitsune_mlir.runtime
    import kitsune_mlir.training

    for package in (kitsune_mlir.cache, kitsune_mlir.dynamo, kitsune_mlir.runtime, kitsune_mlir.training):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # what only a GPU needs
                importlib.import_module(found.name)
    with torch.no_grad():
        torch.compile(torch.nn.Linear(1, 1), backend="aot_eager")(torch.zeros(1, 1))  # it imports what it needs
    torch.compiler.reset()
    gc.collect()


def _launches(programs: Sequence[Any]) -> dict[str, int]:
    kernels = {(n, kernel["name"]) for n, program in enumerate(programs) for kernel in program.summary.get("kernels", ())}
    return {"launches": sum(program.summary["launches"] for program in programs), "kernels": len(kernels)}


def _through_torch_compile(model: Any, args: Sequence[Any], target: str, folder: str, traced_only: bool) -> dict[str, Any]:
    """As `timed`: the first call. Code for a GPU that is not here is compiled and then refused, which ends the time."""
    import torch

    from kitsune_mlir import settings
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend
    from kitsune_mlir.errors import TargetError

    there = args[0].device
    if there.type == "cpu":
        settings.choose_target = lambda *given: target
    reports, asked = [], options_of_backend(None, {"cache": True, "cache_dir": folder, "guard": False})

    def traced(gm: Any, inputs: Sequence[Any]) -> Any:
        def called(*args: Any) -> Any:
            raise _TracedError

        return called

    compiling = traced if traced_only else lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=reports.append)
    fast = torch.compile(model, backend=compiling)

    def call() -> None:
        try:
            fast(*args)
        except TargetError:
            if target == "host":
                raise
        except _TracedError:
            pass

    return _first_call(call, reports, there.type)


def _step(case: str, folder: str) -> dict[str, Any]:
    """As `timed`: the first call of a training step on the GPU."""
    import kitsune_mlir
    from bench.training import Case, adamw
    from bench.training_cases import CASES

    _import_late_parts()
    training = Case(CASES[case], "full", "bf16", "cuda")
    objective = training.objective()
    options = {"cache": True, "cache_dir": folder}
    step = kitsune_mlir.train_step(objective.model, objective.loss, adamw(objective, "cuda", fused=False), options=options)
    with training.context():
        return _first_call(lambda: step(training.args, *training.targets), step.reports, "cuda")


def _first_call(call: Callable[[], Any], reports: Sequence[Any], device: str) -> dict[str, Any]:
    """Seconds of a call, until a GPU has done it, and of the phases of what it compiled and reported."""
    import torch

    settled = torch.cuda.synchronize if device == "cuda" else lambda: None
    settled()
    before, start = _processor(), time.perf_counter()
    call()
    settled()
    found = {"wall": time.perf_counter() - start, "processor": _processor() - before}
    programs = [program for report in reports for program in report.programs]
    phases = {name: sum(program.seconds.get(name, 0.0) for program in programs) for name in PHASES}
    islands = sum(len(report.islands) for report in reports)
    return {**found, **phases, **_launches(programs), "islands": islands}


class _TracedError(Exception):
    """A graph was traced, and nothing was made of it."""


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(
    case: str, target: str = "sm_90a", through_torch: bool = False, device: str = "cpu", step: bool = False
) -> dict[str, dict[str, Any]]:
    """A case "cold" and "cached", through torch.compile also "traced", each in a new process; `step`: of a training case.

    Raises:
        subprocess.CalledProcessError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.compile_time", "--one", folder, "--target", target, "--device", device, case]
        command += ["--torch-compile"] * through_torch + ["--step"] * step
        commands = {"cold": command, "cached": command, **({"traced": [*command, "--traced"]} if through_torch else {})}
        lines = {
            name: subprocess.run(one, check=True, stdout=subprocess.PIPE, text=True).stdout for name, one in commands.items()
        }
    return {name: json.loads(line.splitlines()[-1]) for name, line in lines.items()}


def table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Seconds of all cases as Markdown."""
    head = ["case", "launches", "kernels", "cold wall", "cold processor", *PHASES, "cached wall", "cached processor"]
    traced = any("traced" in one for one in rows.values())
    head += ["beyond tracing, wall", "processor"] * traced
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for case, each in rows.items():
        cold, kept = each["cold"], each["cached"]
        seconds = [cold["wall"], cold["processor"], *(cold.get(name, 0.0) for name in PHASES), kept["wall"], kept["processor"]]
        seconds += [kept[name] - each["traced"][name] for name in ("wall", "processor")] if traced else []
        cells = [case, str(cold["launches"]), str(cold["kernels"]), *(f"{value:.1f}" for value in seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--step", action="store_true", help="the first call of a training step")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where the call is made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        case, how = arguments.cases[0], (arguments.torch_compile, arguments.traced, arguments.device)
        found = _step(case, arguments.one) if arguments.step else timed(case, arguments.target, arguments.one, *how)
        print(json.dumps(found))
        return
    from bench import host
    from bench.cases import all_cases
    from bench.whole_models import MODELS

    rows: dict[str, dict[str, dict[str, Any]]] = {}
    cores = len(os.sched_getaffinity(0))
    about = {"environment": host.environment(), "command": "python -m bench.compile_time", "target": arguments.target}
    about["through"] = f"torch.compile, on {arguments.device}" if arguments.torch_compile else "kitsune_mlir.compile"
    if arguments.step:
        if arguments.device != "cuda" or not arguments.cases:
            parser.error("--step is of training cases that are named, with --device cuda")
        about["through"] = "kitsune_mlir.train_step, with AdamW"
    if arguments.device == "cuda":
        if not (arguments.torch_compile or arguments.step):
            parser.error("--device cuda is for --torch-compile and --step: kitsune_mlir.compile calls nothing")
        from bench import timing

        about["gpu"] = timing.environment()
    for case in arguments.cases or [*(name for name in MODELS if not name.startswith("small")), OF_LIBRARY]:
        if not arguments.step and case in all_cases() and (library := all_cases()[case].missing):
            print(f"{case}: missing: {library} is not installed (extra `breadth`)", file=sys.stderr)
            continue
        rows[case] = measured(case, arguments.target, arguments.torch_compile, arguments.device, arguments.step)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps({**about, "cores": cores, "cases": rows}, indent=1) + "\n")
        print(table({case: rows[case]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(f"{cores} cores; seconds\n\n{table(rows)}")


if __name__ == "__main__":
    main()
