"""What a tile program becomes on each target, and how long it takes there."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch_mlir import ir

from kitsune_mlir.errors import ArgumentError, TargetError
from kitsune_mlir.machine.slow_stages import slow_task
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.diagnostics import place_of
from kitsune_mlir.passmanager.manager import run_pipeline
from kitsune_mlir.passmanager.reproducer import reproduced
from kitsune_mlir.runtime.program import Runner
from kitsune_mlir.runtime.timer import milliseconds
from kitsune_mlir.tuning import PARTITION, tensor_types

__all__ = ["LOWER", "PLAN", "gpu_code", "host_code", "measured", "partitioned_code", "precisions"]

# passes/registry.py lists the passes in order, each a file of its name in passes/:
#   PLAN    linalg on tensors -> stage graph with its schedule (normalize, form-stages, ..., synchronize)
#   LOWER   stage graph -> tile program, and the proof that it cannot deadlock (materialize, check-progress)
_at = PIPELINE.index("kitsune-materialize")


PLAN, LOWER = PIPELINE[:_at], PIPELINE[_at:]


_partition = PLAN.index(PARTITION)


def measured(module: ir.Module, partitioning: str, machine: Target, options: Options, enough: float = float("inf")) -> float:
    """Milliseconds of what a module that has been through `kitsune-form-stages` becomes, partitioned as the text says.

    Raises:
        TargetError: the program cannot run here.
    """
    runner, _, problem = partitioned_code(module, partitioning, machine, options)
    if runner is None:
        raise TargetError(problem)
    return milliseconds(runner, *tensor_types(module), enough)


def partitioned_code(module: ir.Module, partitioning: str, machine: Target, options: Options):
    """What a module that has been through `kitsune-form-stages` becomes, partitioned as the text says; it stays as it is."""
    generate = gpu_code if machine.is_gpu else host_code
    with module.context:
        copy = ir.Module.parse(str(module), module.context)
    names = [partitioning, *PIPELINE[_partition + 1 :]]
    run_pipeline(copy, f"builtin.module({','.join(names)})", target=machine.name, reproducer_dir=False)
    return generate(copy, "main_p0", machine, options, {}, {"stages": []})


def host_code(module: ir.Module, name: str, machine: Target, options: Options, texts: dict[str, str], summary: dict):
    """Tile program -> LLVM -> object code for this processor."""
    from kitsune_mlir.codegen.host.compile import compile_host
    from kitsune_mlir.runtime.host_runner import HostRunner

    with reproduced(module, "kitsune-to-host", machine.name, options.reproducer_dir):
        code = compile_host(module, name)
    texts["llvm"] = code.llvm_ir
    runner: Runner = HostRunner(code, options.threads)
    return runner, HostRunner.artifacts(code), ""


def gpu_code(module: ir.Module, name: str, machine: Target, options: Options, texts: dict[str, str], summary: dict):
    """Tile program -> gpu and nvvm dialects -> LLVM -> PTX -> cubin. Needs no GPU; running does."""
    from kitsune_mlir.codegen.gpu.compile import compile_launches
    from kitsune_mlir.runtime.cuda_runner import CudaRunner

    chosen, limit = precisions(options), options.ptxas_seconds
    if limit is not None and limit <= 0:
        raise ArgumentError(f"option 'ptxas_seconds' is a number of seconds above 0, or None for no limit, not {limit}")
    slow: list[dict[str, Any]] = []

    def watch(decision: Any) -> None:
        if (found := slow_task(decision.plan, decision.declined, machine)) is not None:
            file, line, _ = place_of(found.location)
            slow.append({**found.figures, "source": f"{file}:{line}" if line else ""})

    chosen_pass = f"kitsune-to-gpu{{chip={machine.chip}{' debug=true' if options.debug else ''}}}"
    with reproduced(module, chosen_pass, machine.name, options.reproducer_dir):
        kernels = compile_launches(
            *(module, name, machine),
            **{"debug": options.debug, "timestamps": options.timestamps, "ptxas_seconds": limit, "watch": watch, **chosen},
        )
    summary |= chosen
    for level in ("gpu", "llvm", "ptx"):
        forms = [getattr(code, "ptx" if level == "ptx" else f"{level}_ir") for code in kernels]
        texts[level] = forms[0] if len(forms) == 1 else "\n".join(f"// launch {n}\n{text}" for n, text in enumerate(forms))
    summary["kernels"] = [{"threads": code.manifest.threads, **asdict(code.resources)} for code in kernels]
    summary["launches"] = len(kernels)
    summary["engines"] = [asdict(choice) for code in kernels for choice in code.engines]
    summary["slow"] = slow
    artifacts = CudaRunner.artifacts([(code.manifest, code.cubin, code.ptx) for code in kernels])
    try:
        return CudaRunner.from_artifacts(artifacts), artifacts, ""
    except TargetError as error:
        return None, artifacts, str(error)


def precisions(options: Options) -> dict[str, str]:
    """How f32 products and convolutions are done: what the options say, else the framework's settings."""
    import torch

    convolutions = "high" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "highest"
    return {
        "matmul_precision": options.matmul_precision or torch.get_float32_matmul_precision(),
        "convolution_precision": options.convolution_precision or convolutions,
    }
