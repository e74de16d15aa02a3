"""The whole compiler on one page: from a PyTorch model to a `Program`, top to bottom.

model --import_model--> linalg on tensors --plan--> stage graph --lower--> tile program --generate--> code --> Program

Each arrow is a function that can be called alone; what it gives can be looked at (`targets.py`):

    imported = import_model(model, args, context=new_context())
    code = generate(lower(plan(imported, find_target("sm_90a"))))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.builtin import ModuleOp

from kitsune_mlir import tuning
from kitsune_mlir.cache.compiled import kept_or_compiled
from kitsune_mlir.calling_convention import memory_layouts, signature_of
from kitsune_mlir.cheaper_plans import SPILLED, Planning, report
from kitsune_mlir.dialects.structure import text_of
from kitsune_mlir.dialects.unchanged import lasting
from kitsune_mlir.errors import ArgumentError, AssemblyTimeout, BrokenOffer, TargetError
from kitsune_mlir.frontend import ImportedModel, export_model, opened
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.options import Options, Phases, options_of
from kitsune_mlir.passes.form_stages import FormStages
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.request_kernels import Load, kernels_by_requests, loads_of, shares_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.settings import choose_target, is_deterministic
from kitsune_mlir.targets import (
    FORM,
    SCHEDULE,
    Code,
    Stages,
    TileProgram,
    generate,
    kernel_options,
    lower,
    measured,
    run_passes,
    with_requests,
)

__all__ = ["Options", "compile", "compile_imported", "generate", "lower", "plan", "program_of"]

CLEARLY_FASTER = 0.95
"""Of one launch's time that separate launches stay below where they are chosen by measurement."""


def compile(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
) -> Program:
    """Compile a model for the shapes and dtypes of example arguments.

    Args:
        model: a `torch.nn.Module` (its forward is exported; parameters stay shared with the program), a function of tensors, an
            `ExportedProgram`, or the path of a file that holds one (docs/sources.md).
        args, kwargs: example arguments; tensors give shapes and dtypes, other values are compiled in. What was exported has its
            own.
        target: "host", "sm_90a", or "auto": a Hopper GPU where model and arguments are on one, else the host.
        options: an `Options`, or its fields as a mapping.

    Raises:
        FrontendError: the model cannot be imported (names the operator and the source line).
        CompileError: a pass or the code generator failed (names the op and a reproducer).
        TargetError: the target does not exist or lacks a component, which is named.
        ArgumentError: an option does not exist, or model or arguments are of no kind that is taken.
        OSError: a file cannot be opened.

    Warns:
        PerformanceWarning: stages will be far slower than the chip needs to be; names them and says why.
    """
    chosen = options_of(options)
    phases = Phases(chosen.on_phase)
    model, args, kwargs = phases.run("import", opened, model, args, kwargs)
    machine = find_target(choose_target(model, args) if target == "auto" else target)
    known = isinstance(model, ImportedModel)
    return kept_or_compiled(
        lambda: model if known else export_model(model, args, kwargs), machine, chosen, compile_imported, phases
    )


def compile_imported(imported: ImportedModel, machine: Target, options: Options, phases: Phases) -> Program:
    """The compiler behind the frontend."""
    with lasting():
        return _compiled(imported, machine, options, phases)


def _compiled(imported: ImportedModel, machine: Target, options: Options, phases: Phases) -> Program:
    planning, formed, made = Planning(options.mode), {}, {}
    stages = plan(imported, machine, options, planning, phases, formed)
    best: Code | None = None
    while True:
        tiles = phases.run("lower", lower, stages)
        summary, where = stages.summary, ()
        held = summary["stages"]
        try:
            code = phases.run("codegen", generate, tiles, None, planning.accepted(held), made)
        except (AssemblyTimeout, BrokenOffer) as error:
            is_broken = isinstance(error, BrokenOffer)
            other = planning.without(error, held) if is_broken else planning.cheaper(error, held, summary["mode"])
            where = error.stages
        else:
            best = code if best is None or spilled_bytes(code) <= spilled_bytes(best) else best
            other = planning.lighter(code.summary.get("kernels", ()), held, machine)
        if other is not None:
            for sentence in other.replanned[len(planning.replanned) :]:
                report(tiles.module, where, sentence, options.on_remark)
            changed = (other.mode, other.cut) != (planning.mode, planning.cut)
            planning = other
            stages = plan(imported, machine, options, planning, phases, formed) if changed else stages
            continue
        known = planning.mode != "auto" or planning.times or options.tune or options.tuned_for
        if known or not (times := counted_times(code)):
            break
        # The mode was chosen before engines were asked: it may be another one, now that these stages are known to be slow.
        planning, remarks, listener = replace(planning, times=times), [], options.on_remark
        heard = replace(options, on_remark=remarks.append if listener else None)
        again = plan(imported, machine, heard, planning, phases, formed)
        if text_of(again.module) == text_of(stages.module):
            break
        if listener is not None:
            for remark in remarks:
                listener(remark)
        stages = replace(again, options=options)
    code = best or code
    if options.requests > 1 and len(code.kernels) == 1:
        code = for_requests(imported, code, machine, options, planning, phases)
    return program_of(imported, code, phases, planning.replanned)


def for_requests(
    imported: ImportedModel, code: Code, machine: Target, options: Options, planning: Planning, phases: Phases
) -> Code:
    """A program's code with kernels of other plans, for as many requests of a launch as they are predicted to be faster for."""
    quiet, other_plan = replace(options, on_remark=None, tune=False, tuned_for=""), Planning(planning.mode)
    whole, layouts = [code.tiles], memory_layouts(code.tiles.stages.module, "main")
    for workers in shares_of(options.requests, len(code.tiles.stages.summary["stages"]), machine):
        stages = plan(imported, machine.share(workers), quiet, other_plan, phases)
        if memory_layouts(stages.module, "main") == layouts and stages.summary["launches"] == 1:
            whole.append(phases.run("lower", lower, stages))

    def loads(tiles: TileProgram) -> list[Load]:
        assert tiles.program is not None
        with tiles.module.context, ir.Location.unknown():
            return loads_of(tiles.program, kernel_options(tiles.stages.machine, options), machine)

    others: list[tuple[Code, int]] = []
    for number, least in kernels_by_requests([loads(tiles) for tiles in whole], options.requests, machine)[1:]:
        try:
            other = phases.run("codegen", generate, whole[number])
        except AssemblyTimeout:
            continue
        if len(other.kernels) == 1 and spilled_bytes(other) <= max(SPILLED, spilled_bytes(code)):
            others.append((other, least))
    return with_requests(code, others)


def plan(
    imported: ImportedModel,
    machine: Target,
    options: Options | None = None,
    planning: Planning | None = None,
    phases: Phases | None = None,
    formed: _Formed | None = None,
) -> Stages:
    """Linalg on tensors -> scheduled stage graph. `lower` and `generate` come after it, and `program_of`.

    Args:
        imported: the model, as `frontend.import_model` gives it; it stays as it is.
        planning: what earlier attempts have taught.
        phases: where time is noted.
        formed: kept for other plans of this model for this machine and these options (`_formed`).

    Raises:
        ArgumentError: option `passes` names a pass that does not run.
        CompileError: a pass failed.
        TargetError: tuning needs a device, and none is usable here.
    """
    options, phases = options or Options(), phases or Phases()
    planning = planning or Planning(options.mode)
    if unknown := options.passes.keys() - set(PIPELINE):
        raise ArgumentError(f"option 'passes' names {', '.join(sorted(unknown))}; passes are {', '.join(PIPELINE)}")
    if options.tune or options.tuned_for:
        module = _formed(imported, machine, options, planning.cut, phases, {})
        found = phases.run("tune", tuned_stages, module, machine, options)
        tiles = {stage.name: stage.tile for stage in found if stage.tile != stage.planned}
        times = {stage.name: stage.time for stage in found if stage.time is not None}
        mode = planning.mode
        if options.tune and mode == "auto" and machine.is_gpu:
            mode = phases.run("modes", fastest_mode, module, machine, options, tiles, times)
        step = tuning.partition(tiles, mode, times, is_deterministic(options))
        phases.run("partition", run_passes, module, [step, *SCHEDULE], machine, options)
    else:
        step = tuning.partition({}, planning.mode, planning.times, is_deterministic(options))
        module = _formed(imported, machine, options, planning.cut, phases, {} if formed is None else formed)
        phases.run("plan", run_passes, module, [step, *SCHEDULE], machine, options)
    return Stages(module, machine, options)


_Formed = dict[tuple[str, ...] | None, ModuleOp]
"""Stages that are not yet scheduled, by what is cut; under None what they were formed of."""


def _formed(
    imported: ImportedModel, machine: Target, options: Options, cut: tuple[str, ...], phases: Phases, formed: _Formed
) -> ModuleOp:
    """A model's stages, not yet scheduled, with some cut; the caller's own.

    What comes before stages are formed takes half of the time of that, and is the same for all cuts.
    """
    if cut not in formed:
        at = next(number for number, one in enumerate(FORM) if isinstance(one, FormStages))
        if None not in formed:
            formed[None] = imported.module.operation.clone(ip=False)
            phases.run("plan", run_passes, formed[None], FORM[:at], machine, options)
        module = formed[None].operation.clone(ip=False)
        phases.run("plan", run_passes, module, [replace(FORM[at], cut=cut), *FORM[at + 1 :]], machine, options)
        formed[cut] = module
    return formed[cut].operation.clone(ip=False)


def program_of(imported: ImportedModel, code: Code, phases: Phases | None = None, replanned: Sequence[str] = ()) -> Program:
    """The program that calls a model's code.

    Args:
        phases: how long the compiler took.
        replanned: a sentence for each plan that was given up.
    """
    stages, seconds = code.tiles.stages, (phases or Phases()).seconds
    summary = {**stages.summary, **code.summary, "seconds": {name: round(value, 3) for name, value in seconds.items()}}
    if replanned:
        summary["replanned"] = list(replanned)
    texts = {"linalg": text_of(imported.module), "stages": text_of(stages.module)}
    if code.tiles.computes:
        texts |= {"tiles": text_of(code.tiles.module), **code.forms}
    return Program(
        code.machine.chip or code.machine.name,
        signature_of(imported, *memory_layouts(stages.module, "main"), code.tiles.program),
        imported.supplied,
        code.runner,
        texts,
        summary,
        code.artifacts,
        seconds,
        code.problem,
        (imported.in_spec, imported.out_spec),
    )


def spilled_bytes(code: Code) -> int:
    """What all kernels write to local memory, a thread, because registers ran out."""
    return sum(kernel["spill_store_bytes"] for kernel in code.summary.get("kernels", ()))


def counted_times(code: Code) -> dict[str, float]:
    """Milliseconds of the stages whose engine counted its own cycles, as if each were a program."""
    summary = code.summary
    if len(code.tiles.stages.summary["stages"]) < 2:
        return {}
    counted = {engine["task"] for engine in summary.get("engines", ()) if engine["cycles"]}
    return {
        task["task"]: 1e-3 * task["microseconds"] + 1e3 * code.machine.launch_seconds
        for task in summary.get("slow", ())
        if task["task"] in counted
    }


def tuned_stages(module: ModuleOp, machine: Target, options: Options) -> list[tuning.Tuned]:
    """What was measured of each stage: its tiles, and how long it takes with them.

    Raises:
        TargetError: no CUDA device is usable here.
    """
    from kitsune_mlir.tuning.stage_clock import StageClock

    if options.tuned_for:
        return tuning.plan(module, machine, tuning.TuningCache(options.tuned_for, options.cache_dir))[0]
    if machine.is_gpu and not cuda_is_usable():
        raise TargetError("tuning measures on the device, and no CUDA device is usable here")
    cache = tuning.TuningCache(device_name("cuda" if machine.is_gpu else "cpu"), options.cache_dir)
    with StageClock(machine, options) as clock, tuning.progress(options.on_phase) as on_step:
        return tuning.tune(module, machine, clock.measure, cache, options.tune_seconds, on_step, clock.expect)


def fastest_mode(
    module: ModuleOp, machine: Target, options: Options, tiles: dict[str, tuple[int, ...]], times: dict[str, float]
) -> str:
    """One launch or a launch for each stage: what the whole program was faster in, measured; one launch where it is close."""
    if str(module).count('"kitsune.stage"') < 2:
        return "temporal"
    steps = [tuning.partition(tiles, mode, times, is_deterministic(options)) for mode in ("temporal", "separate")]

    def timed(step: PartitionStreams) -> float:
        try:
            return measured(module, step, machine, options)
        except AssemblyTimeout:
            return float("inf")

    one, several = map(timed, steps)
    return "separate" if several < CLEARLY_FASTER * one else "temporal"


def cuda_is_usable() -> bool:
    """Whether PyTorch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()
