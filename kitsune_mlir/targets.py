"""From a stage graph to code that runs: `Stages`, `TileProgram` and `Code` are what `compile` has in its hands on the way."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.builtin import ModuleOp

from kitsune_mlir.cache.store import store_of
from kitsune_mlir.codegen.gpu.compile import GpuCode, Made, compile_launches, joined, with_one_arena
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.codegen.gpu.kernel.length import limited
from kitsune_mlir.codegen.host.compile import compile_host
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import BrokenOffer, TargetError
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.slow_stages import seconds_and_floor, slow_task
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passes.finalize_nvvm import FinalizeNvvm
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.passes.registry import PASSES, PIPELINE
from kitsune_mlir.passes.stages.summary import summarize
from kitsune_mlir.passes.to_gpu import ToGpu
from kitsune_mlir.passes.to_host import ToHost
from kitsune_mlir.passmanager.diagnostics import place_of
from kitsune_mlir.passmanager.manager import PassPipelineError, run_pipeline
from kitsune_mlir.passmanager.options import make_pass
from kitsune_mlir.passmanager.reproducer import reproduced
from kitsune_mlir.runtime.program import Runner
from kitsune_mlir.runtime.runners import make_runner
from kitsune_mlir.runtime.timer import milliseconds
from kitsune_mlir.settings import precisions
from kitsune_mlir.tuning import tensor_types

__all__ = [
    "FORM",
    "LOWER",
    "SCHEDULE",
    "Code",
    "Stages",
    "TileProgram",
    "generate",
    "kernel_options",
    "lower",
    "measured",
    "partitioned_code",
    "run_passes",
    "with_requests",
]

# passes/registry.py lists the passes in order, each a file of its name in passes/. Here they are by what they make:
#   FORM      linalg on tensors -> stage graph (channels-last, normalize, ..., form-stages)
#             partition-streams: engines, tiles, who runs what; with what was measured, so it is made anew each time
#   SCHEDULE  buffers and policies of its edges (place-buffers, synchronize)
#   LOWER     stage graph -> tile program, and the proof that it cannot deadlock (materialize, check-progress)
_made = [PASSES[name]() for name in PIPELINE]
_partition, _materialize = PIPELINE.index(PartitionStreams.name), PIPELINE.index("kitsune-materialize")
FORM, SCHEDULE, LOWER = _made[:_partition], _made[_partition + 1 : _materialize], _made[_materialize:]

WORTH_ANOTHER_PLAN = 1.6 * rates.CHAIN_HAND_OFF
"""Seconds above its floor from which on a stage of a broken offer is planned again: its parts are a hand-off apart. Two of
5.7 and 6.0 us, planned again, took 1.3 and 0.6 us longer on an H200; those of 6.6 to 9.7 us were predicted to gain 1 to 13."""

FAR_FROM_OFFER = 2
"""Times its floor that such a stage is predicted to take: engines of tensor cores come nearer."""

PROGRAM = "main_p0"
"""The tile program: the first, and only, pipeline of the frontend's function."""


@dataclasses.dataclass(frozen=True)
class Stages:
    """A model planned for a machine.

    Attributes:
        module: a stage graph with its schedule; one without stages where the model only hands arguments and constants back.
        machine: what it is planned for.
        options: what the user chose.
    """

    module: ModuleOp
    machine: Target
    options: Options

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """Stages, edges, buffers and traffic in figures (`Program.explain`)."""
        return summarize(self.module.operation, self.machine) | {"compiled_for": self.machine.name}


@dataclasses.dataclass(frozen=True)
class TileProgram:
    """A planned model as tasks over tiles; `module` (docs/tile-program.md) is proved to end."""

    module: ModuleOp
    stages: Stages

    @property
    def computes(self) -> bool:
        """Whether there is a tile program: not for a model that only hands arguments and constants back."""
        return self.program is not None

    @property
    def program(self) -> ir.Operation | None:
        """The tile program's function."""
        return next(iter(program_functions(self.module.operation)), None)


@dataclasses.dataclass(frozen=True)
class Code:
    """What a tile program became on a machine.

    Attributes:
        tiles: the tile program.
        machine: what the code is for.
        forms: the code as text by level: "llvm", for a GPU "gpu" and "ptx".
        artifacts: the files of the code.
        runner: runs it; None where this machine cannot.
        problem: why it cannot.
        summary: kernels, engines and slow stages, for `Program.explain`.
        kernels: a GPU's.
    """

    tiles: TileProgram
    machine: Target
    forms: Mapping[str, str]
    artifacts: Mapping[str, bytes]
    runner: Runner | None
    problem: str = ""
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kernels: tuple[GpuCode, ...] = ()


def run_passes(module: ModuleOp, passes: Sequence[Pass], machine: Target, options: Options) -> None:
    """Run passes for a machine, with what the user's options say of each.

    What they leave is verified once. Where that, or a pass, fails, all run again on a copy, verified after each: so the error
    names the pass that went wrong, and has its input.
    """
    chosen = [make_pass(type(p), options.passes.get(p.name, ""), **{**vars(p), "target": machine.name}) for p in passes]
    saved = module.operation.clone(ip=False)
    try:
        run_pipeline(
            module.operation,
            chosen,
            target=machine.name,
            verify_each=False,
            verify_last=True,
            on_diagnostic=options.on_remark,
            reproducer_dir=False,
        )
    except PassPipelineError:
        run_pipeline(
            saved.operation,
            chosen,
            target=machine.name,
            on_diagnostic=lambda _: None,
            reproducer_dir=options.reproducer_dir,
        )
        raise


def lower(stages: Stages) -> TileProgram:
    """Stage graph -> tile program.

    Raises:
        CompileError: a pass failed.
    """
    module = stages.module.operation.clone(ip=False)
    run_passes(module, LOWER, stages.machine, stages.options)
    return TileProgram(module, stages)


def generate(
    tiles: TileProgram, machine: Target | None = None, settled: Container[str] | None = None, made: Made | None = None
) -> Code:
    """Tile program -> code. Needs no GPU; running does.

    Args:
        machine: what the code is for; None is what the tile program is planned for. Any machine can run any tile program.
        settled: stages whose broken offers are accepted; None is all.
        made: kernels of earlier plans of the same program (`compile_launches`).

    Raises:
        CompileError: the code generator failed (names task, engine and a reproducer).
        BrokenOffer: an engine declined what it had offered to do, and without it the stage is slow.
        AssemblyTimeout: a kernel's code takes ptxas too long.
        ArgumentError: an option of the kernel has no such value.
    """
    machine = machine or tiles.stages.machine
    if not tiles.computes:
        return Code(tiles, machine, {}, {}, *make_runner(machine.chip or machine.name, {}))
    return _gpu_code(tiles, machine, settled, made) if machine.is_gpu else _host_code(tiles, machine)


def partitioned_code(module: ir.Module, partitioning: PartitionStreams, machine: Target, options: Options) -> Code:
    """Code of a module that has been through `kitsune-form-stages`, planned by that pass; the module stays as it is."""
    quiet = dataclasses.replace(options, on_remark=None, reproducer_dir=False)
    copy = module.operation.clone(ip=False)
    run_passes(copy, [partitioning, *SCHEDULE], machine, quiet)
    return generate(lower(Stages(copy, machine, quiet)))


def measured(
    module: ir.Module, partitioning: PartitionStreams, machine: Target, options: Options, enough: float = float("inf")
) -> float:
    """Milliseconds of `partitioned_code`.

    Raises:
        TargetError: the program cannot run here.
    """
    code = partitioned_code(module, partitioning, machine, options)
    if code.runner is None:
        raise TargetError(code.problem)
    return milliseconds(code.runner, *tensor_types(module), enough)


def _host_code(tiles: TileProgram, machine: Target) -> Code:
    """LLVM -> object code for this processor."""
    from kitsune_mlir.runtime.host_runner import HostRunner

    options = tiles.stages.options
    with reproduced(tiles.module, [ToHost()], machine.name, options.reproducer_dir):
        code = compile_host(tiles.module, PROGRAM)
    return Code(tiles, machine, {"llvm": code.llvm_ir}, HostRunner.artifacts(code), HostRunner(code, options.threads))


def _gpu_code(tiles: TileProgram, machine: Target, settled: Container[str] | None, made: Made | None) -> Code:
    """gpu and nvvm dialects -> LLVM -> PTX -> cubin."""
    options = limited(kernel_options(machine, tiles.stages.options), len(tiles.stages.summary["stages"]))
    slow: list[dict[str, Any]] = []
    broken_offers: list[BrokenOffer] = []
    # What is made of other launches the next plan has again.
    go_on = made is not None and tiles.stages.summary["mode"] == "separate"

    def watch(decision: Decision) -> None:
        task = decision.plan.task
        broken = next((d for d in decision.declined if d.engine == task.requested_engine), None)
        if broken is not None and settled is not None and task.name not in settled:
            seconds, floor = seconds_and_floor(decision.plan, machine)
            if seconds > floor + WORTH_ANOTHER_PLAN and seconds > FAR_FROM_OFFER * floor:
                broken_offers.append(BrokenOffer(task.name, broken.engine, broken.reason))
                if not go_on:
                    raise broken_offers[0]
        found = slow_task(decision.plan, decision.declined, machine)
        if found is None:
            return
        file, line, _ = place_of(found.location)
        slow.append({**found.figures, "source": f"{file}:{line}" if line else ""})

    passes = [ToGpu(**dataclasses.asdict(options)), FinalizeNvvm()]
    with reproduced(tiles.module, passes, machine.name, tiles.stages.options.reproducer_dir):
        chosen = tiles.stages.options
        store = store_of(chosen.cache, chosen.cache_dir)
        kernels = compile_launches(tiles.module, PROGRAM, options, watch, store, made)
    if broken_offers:
        first, *others = broken_offers
        raise BrokenOffer(first.stages[0], first.engine, first.reason, others)
    return _code_of(tiles, machine, kernels, len(kernels), slow)


def with_requests(code: Code, others: Sequence[tuple[Code, int]]) -> Code:
    """A program's code with kernels for more requests: of each other code the one kernel, and the fewest that it is for."""
    if not others:
        return code
    kernels = [code.kernels[0]]
    for other, least in others:
        (kernel,) = other.kernels
        kernels.append(dataclasses.replace(kernel, manifest=dataclasses.replace(kernel.manifest, least_requests=least)))
    return _code_of(code.tiles, code.machine, with_one_arena(kernels), 1, code.summary["slow"])


def _code_of(
    tiles: TileProgram, machine: Target, kernels: Sequence[GpuCode], launches: int, slow: Sequence[Mapping[str, Any]]
) -> Code:
    """The code of a program's kernels, of which a call launches the first `launches`, or one of several for requests."""
    from kitsune_mlir.runtime.cuda_runner import CudaRunner

    options = kernel_options(machine, tiles.stages.options)
    forms = {"gpu": [k.gpu_ir for k in kernels], "llvm": [k.llvm_ir for k in kernels], "ptx": [k.ptx for k in kernels]}
    artifacts = CudaRunner.artifacts([(code.manifest, code.cubin, code.ptx) for code in kernels])
    arena = kernels[0].manifest.arena_bytes
    arena = arena if arena > 1 else 0  # an argument of one byte stands for none (`passes/materialize.py`)
    summary = {
        "matmul_precision": options.matmul_precision,
        "convolution_precision": options.convolution_precision,
        "kernels": [
            {
                "threads": code.manifest.threads,
                **dataclasses.asdict(code.resources),
                "tasks": [choice.task for choice in code.engines],
                **(_for_requests(code) if options.requests > 1 else {}),
            }
            for code in kernels
        ],
        "launches": launches,
        "arena_bytes": arena + sum(code.manifest.partial_bytes for code in kernels[:launches]),
        "engines": [dataclasses.asdict(choice) for code in kernels[:launches] for choice in code.engines],
        "slow": list(slow),
    }
    texts = {level: joined(form) for level, form in forms.items()}
    return Code(tiles, machine, texts, artifacts, *make_runner(machine.chip, artifacts), summary, tuple(kernels))


def _for_requests(code: GpuCode) -> dict[str, Any]:
    """What a kernel for several requests is like."""
    tiles = [f"{choice.tiles} of {choice.parameters.get('tile')}, {choice.pieces} pieces each" for choice in code.engines]
    return {"least_requests": code.manifest.least_requests, "tiles": tiles}


def kernel_options(machine: Target, options: Options) -> KernelOptions:
    """How kernels for a machine are made: what `kitsune-to-gpu` needs to know of the user's options.

    Raises:
        ArgumentError: an option has no such value.
    """
    return KernelOptions(
        chip=machine.chip,
        workers=machine.workers,
        debug=options.debug,
        timestamps=options.timestamps,
        ptxas_seconds=options.ptxas_seconds,
        requests=options.requests,
        **precisions(options),
    )
