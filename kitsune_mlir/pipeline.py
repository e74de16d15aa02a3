"""The whole compiler on one page: from a PyTorch model to a `Program`, top to bottom.

model --import_model--> linalg on tensors --PLAN--> stage graph --LOWER--> tile program --target's code--> Program
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_mlir import ir

from kitsune_mlir.calling_convention import memory_layouts, signature_of
from kitsune_mlir.cheaper_plans import Planning, put_back, report
from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import AssemblyTimeout, PerformanceWarning, TargetError
from kitsune_mlir.frontend import ImportedModel, import_model
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.options import Options, Phases, options_of
from kitsune_mlir.passes.stages.summary import summarize
from kitsune_mlir.passmanager.manager import run_pipeline
from kitsune_mlir.runtime.explain import slow_text
from kitsune_mlir.runtime.load import make_runner
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.targets import LOWER, PLAN, _partition, gpu_code, host_code, measured
from kitsune_mlir.tuning import Tuned, TuningCache, partition, plan, progress, tune

CLEARLY_FASTER = 0.95
"""Of one launch's time that separate launches stay below where they are chosen by measurement."""


def compile(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
) -> Program:
    """Compile a model for the shapes and dtypes of example arguments.

    Args:
        model: a `torch.nn.Module` (its forward is exported; parameters stay shared with the program).
        args, kwargs: example arguments; tensors give shapes and dtypes, other values are compiled in.
        target: "host", "sm_90a", or "auto": a Hopper GPU where model and arguments are on one, else the host.
        options: an `Options`, or its fields as a mapping.

    Raises:
        FrontendError: the model cannot be imported (names the operator and the source line).
        CompileError: a pass or the code generator failed (names the op and a reproducer).
        TargetError: the target does not exist or lacks a component, which is named.
        ArgumentError: an option does not exist.

    Warns:
        PerformanceWarning: stages will be far slower than the chip needs to be; names them and says why.
    """
    chosen = options_of(options)
    machine = find_target(choose_target(model, args) if target == "auto" else target)
    phases = Phases(chosen.on_phase)
    imported = phases.run("import", lambda: import_model(model, tuple(args), dict(kwargs or {}), context=new_context()))
    program = compile_imported(imported, machine, chosen, phases)
    warn_if_slow(program.summary)
    return program


def compile_imported(imported: ImportedModel, machine: Target, options: Options, phases: Phases) -> Program:
    """The compiler behind the frontend: used by `compile` and by the Dynamo backend."""
    planning, given = Planning(options.mode), imported.module.operation.clone(ip=False)
    measures = options.tune or bool(options.tuned_for)
    while True:
        texts: dict[str, str] = {"linalg": str(imported.module)}
        summary: dict[str, Any] = {}
        try:
            layouts, runner, artifacts, problem = built(imported.module, machine, options, phases, planning, texts, summary)
            times = {} if planning.times or measures else counted_times(summary, machine)
            if planning.mode != "auto" or not times:
                break
            # The mode was chosen before engines were asked: it may be another one, now that these stages are known to be slow.
            planning = replace(planning, times=times)
            put_back(imported.module, given)
            planned(imported.module, machine, replace(options, on_remark=None), phases, planning)
            if str(imported.module) == texts["stages"]:
                break
            put_back(imported.module, given)
        except AssemblyTimeout as error:
            planning = planning.cheaper(error, summary.get("stages", ()))
            report(imported.module, error.stages, planning.replanned[-1], options.on_remark)
            put_back(imported.module, given)
    if planning.replanned:
        summary["replanned"] = list(planning.replanned)
    weights = {a.name: a.value for a in imported.arguments if a.kind != "input"}
    summary["seconds"] = {k: round(v, 3) for k, v in phases.seconds.items()}
    return Program(
        machine.chip or machine.name,
        signature_of(imported, *layouts),
        weights,
        runner,
        texts,
        summary,
        artifacts,
        phases.seconds,
        problem,
        (imported.in_spec, imported.out_spec),
    )


def warn_if_slow(summary: Mapping[str, Any], stacklevel: int = 3) -> None:
    """Warn, once a program, of stages that will be far slower than the chip needs to be."""
    if summary.get("slow"):
        warnings.warn(slow_text(summary["slow"]), PerformanceWarning, stacklevel=stacklevel)


def planned(module: ir.Module, machine: Target, options: Options, phases: Phases, planning: Planning) -> None:
    """From linalg on tensors to a scheduled stage graph."""

    def passes(names: Sequence[str]) -> None:
        run_passes(module, names, machine, options)

    form = "kitsune-form-stages"
    cut = f"{form}{{cut={{{','.join(planning.cut)}}}}}" if planning.cut else form
    before = [cut if name == form else name for name in PLAN[:_partition]]
    if options.tune or options.tuned_for:
        phases.run("plan", lambda: passes(before))
        found = phases.run("tune", lambda: tuned_stages(module, machine, options))
        tiles = {stage.name: stage.tile for stage in found if stage.tile != stage.planned}
        times = {stage.name: stage.time for stage in found if stage.time is not None}
        mode = planning.mode
        if options.tune and mode == "auto" and machine.is_gpu:
            mode = phases.run("modes", lambda: fastest_mode(module, machine, options, tiles, times))
        step = partition(tiles, mode, times, is_deterministic(options))
        phases.run("partition", lambda: passes([step, *PLAN[_partition + 1 :]]))
    else:
        step = partition({}, planning.mode, dict(planning.times), is_deterministic(options))
        phases.run("plan", lambda: passes([*before, step, *PLAN[_partition + 1 :]]))


def run_passes(module: ir.Module, names: Sequence[str], machine: Target, options: Options) -> None:
    """Run passes by name, which may have options in braces."""
    run_pipeline(
        module,
        f"builtin.module({','.join(names)})",
        target=machine.name,
        on_diagnostic=options.on_remark,
        reproducer_dir=options.reproducer_dir,
    )


def built(
    module: ir.Module,
    machine: Target,
    options: Options,
    phases: Phases,
    planning: Planning,
    texts: dict[str, str],
    summary: dict[str, Any],
):
    """Plan a module and make code of it: how its arguments lie in memory, its runner, the code's files, and why it cannot run.

    Fills in `texts` and `summary`, as far as it comes.

    Raises:
        AssemblyTimeout: a kernel's code takes ptxas too long.
    """
    name = "main"  # the frontend's function; its pipeline, and so the tile program, is main_p0
    planned(module, machine, options, phases, planning)
    texts["stages"] = str(module)
    layouts = memory_layouts(module, name)
    summary |= summarize(module.operation, machine)
    summary["compiled_for"] = machine.name
    if summary["stages"]:
        phases.run("lower", lambda: run_passes(module, LOWER, machine, options))
        texts["tiles"] = str(module)
    generate = gpu_code if machine.is_gpu else host_code
    runner, artifacts, problem = (
        phases.run("codegen", lambda: generate(module, f"{name}_p0", machine, options, texts, summary))
        if summary["stages"]
        else nothing_to_run(machine)
    )
    return layouts, runner, artifacts, problem


def counted_times(summary: Mapping[str, Any], machine: Target) -> dict[str, float]:
    """Milliseconds of the stages whose engine counted its own cycles, as if each were a program."""
    if len(summary["stages"]) < 2:
        return {}
    counted = {engine["task"] for engine in summary.get("engines", ()) if "cycles" in engine["parameters"]}
    return {
        task["task"]: 1e-3 * task["microseconds"] + 1e3 * machine.launch_seconds
        for task in summary.get("slow", ())
        if task["task"] in counted
    }


def tuned_stages(module: ir.Module, machine: Target, options: Options) -> list[Tuned]:
    """What was measured of each stage: its tiles, and how long it takes with them.

    Raises:
        TargetError: no CUDA device is usable here.
    """
    from kitsune_mlir.tuning.stage_clock import StageClock

    if options.tuned_for:
        return plan(module, machine, TuningCache(options.tuned_for, options.cache_dir))[0]
    if machine.is_gpu and not cuda_is_usable():
        raise TargetError("tuning measures on the device, and no CUDA device is usable here")
    cache = TuningCache(device_name("cuda" if machine.is_gpu else "cpu"), options.cache_dir)
    with StageClock(machine, options) as clock, progress(options.on_phase) as on_step:
        return tune(module, machine, clock.measure, cache, options.tune_seconds, on_step, clock.expect)


def fastest_mode(
    module: ir.Module, machine: Target, options: Options, tiles: dict[str, tuple[int, ...]], times: dict[str, float]
) -> str:
    """One launch or a launch for each stage: what the whole program was faster in, measured; one launch where it is close."""
    if str(module).count('"kitsune.stage"') < 2:
        return "temporal"
    steps = [partition(tiles, mode, times, is_deterministic(options)) for mode in ("temporal", "separate")]

    def timed(step: str) -> float:
        try:
            return measured(module, step, machine, options)
        except AssemblyTimeout:
            return float("inf")

    one, several = map(timed, steps)
    return "separate" if several < CLEARLY_FASTER * one else "temporal"


def is_deterministic(options: Options) -> bool:
    """Whether results must be the same bits on every run: the option, else the framework's setting."""
    import torch

    return torch.are_deterministic_algorithms_enabled() if options.deterministic is None else options.deterministic


def cuda_is_usable() -> bool:
    """Whether PyTorch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def choose_target(model: Any, args: Sequence[Any]) -> str:
    """ "sm_90a" where the model's or the arguments' tensors are on a Hopper GPU, else "host".

    Raises:
        TargetError: they are on a GPU that is no Hopper.
    """
    import torch

    tensors = [*getattr(model, "parameters", list)(), *(a for a in args if isinstance(a, torch.Tensor))]
    on_gpu = next((t.device for t in tensors if t.device.type == "cuda"), None)
    if on_gpu is None:
        return "host"
    capability = torch.cuda.get_device_capability(on_gpu)
    if capability != (9, 0):
        raise TargetError(f"{on_gpu} has compute capability {capability[0]}.{capability[1]}; GPU code needs 9.0 (Hopper)")
    return "sm_90a"


def nothing_to_run(machine: Target):
    """What a model becomes that computes nothing: it only hands arguments and constants back."""
    runner, problem = make_runner(machine.chip or machine.name, {})
    return runner, {}, problem
