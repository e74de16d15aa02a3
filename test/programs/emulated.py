"""A function compiled for the GPU, its kernel run thread by thread on the processor (`test.emulators.vector`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_mlir import ir

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Executor, build
from kitsune_mlir.codegen.gpu.lower import each_launch
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.runtime.program import Program
from test.emulators.vector import VectorBlock, run_kernel, run_requests
from test.gpu.unassembled import unassembled

__all__ = ["built", "compiled", "emulated", "emulated_launches", "emulated_requests", "engines", "words_of"]


def compiled(function: Callable[..., Any], args: Sequence[Tensor], **options: Any) -> Program:
    """The program for sm_90a, not assembled; in one launch."""
    with unassembled():
        return kitsune_mlir.compile(Function(function), args, target="sm_90a", options={"schedule": "temporal", **options})


def engines(program: Program) -> list[str]:
    """Who does each stage."""
    return [engine["engine"] for engine in program.summary["engines"]]


def words_of(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def emulated(
    program: Program,
    args: Sequence[Tensor],
    like: Sequence[Tensor],
    blocks: int = 3,
    block: type[VectorBlock] = VectorBlock,
    **options: Any,
) -> list[Tensor]:
    """The results of a program without weights that is one kernel; `like` has their shapes and types.

    Options are those of `KernelOptions`.
    """
    with new_context(), ir.Location.unknown():
        emitted = built(program, KernelOptions(workers=blocks, **options))
        results = [np.zeros_like(words_of(one)) for one in like]
        run_kernel(emitted.module.operation, emitted.manifest, [words_of(a) for a in args], results, blocks, block)
    return [torch.from_numpy(found).view(one.dtype) for found, one in zip(results, like, strict=True)]


def emulated_launches(
    program: Program, args: Sequence[Tensor], like: Sequence[Tensor], blocks: int = 3, **options: Any
) -> list[Tensor]:
    """As `emulated`, of a program that is several kernels, one after the other. Results and the arena hold NaN before."""
    results = [np.full_like(words_of(one), -1 if one.dtype == torch.bfloat16 else np.nan) for one in like]
    arenas: list[np.ndarray] = []

    def run(part: ir.Operation) -> str:
        name = ir.StringAttr(part.attributes["sym_name"]).value
        made = build(ProgramView(part), name, KernelOptions(workers=blocks, **options))
        if not arenas:
            arenas.append(np.full(made.manifest.arena_bytes, 0xFF, np.uint8))
        run_kernel(made.module.operation, made.manifest, [words_of(a) for a in args], results, blocks, arena=arenas[0])
        return name

    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        assert len(each_launch(function, run)) > 1
    return [torch.from_numpy(found).view(one.dtype) for found, one in zip(results, like, strict=True)]


def emulated_requests(
    program: Program,
    requests: Sequence[Sequence[Tensor]],
    like: Sequence[Tensor],
    limit: int,
    blocks: int = 3,
    block: type[VectorBlock] = VectorBlock,
    **options: Any,
) -> list[list[Tensor]]:
    """The results of each request, of a kernel that does up to `limit` of them; else as `emulated`, but that arguments are
    weights and inputs."""
    with new_context(), ir.Location.unknown():
        emitted = built(program, KernelOptions(workers=blocks, requests=limit, **options))
        found = [([words_of(a) for a in args], [np.zeros_like(words_of(one)) for one in like]) for args in requests]
        run_requests(emitted.module.operation, emitted.manifest, found, blocks, block)
    return [[torch.from_numpy(r).view(one.dtype) for r, one in zip(results, like, strict=True)] for _, results in found]


def built(program: Program, options: KernelOptions) -> Executor:
    module = ir.Module.parse(program.ir("tiles"))
    function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
    return build(ProgramView(function), "kernel", options)
