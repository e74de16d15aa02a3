"""Models compiled part of the way, or planned for one machine and run on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from torch import nn
from torch_mlir import ir

from kitsune_mlir import pipeline
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Phases, options_of
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline
from kitsune_mlir.pipeline import generate, lower, plan, program_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.targets import Code

__all__ = ["compiled_with_host_code", "module_after", "planned", "planned_for_gpu"]

_ALIVE: list[ir.Module] = []  # what plans and patterns refer to lives as long as its module


def module_after(
    model: nn.Module | Callable[..., Any], *args: Any, passes: Sequence[str] = PIPELINE, target: str = "sm_90a"
) -> ir.Module:
    """A model's module after some passes of the pipeline; it lives on."""
    module = import_model(model, args, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(passes)})", target=target)
    _ALIVE.append(module)
    return module


def planned(model: nn.Module, *args: Any, target: str = "sm_90a", **options: Any) -> Program:
    """A model compiled up to its tile program: it has no code, and cannot be called."""
    imported = import_model(model, args, context=new_context())
    tiles = lower(plan(imported, find_target(target), options_of(options)))
    return program_of(imported, Code(tiles, tiles.stages.machine, {}, {}, None, "not generated"))


def planned_for_gpu(model: nn.Module | Callable[..., Any], *args: Any, **options: Any) -> Program:
    """A model planned for the GPU, with the host's code."""
    imported = import_model(model, args, context=new_context())
    tiles = lower(plan(imported, find_target("sm_90a"), options_of(options)))
    return program_of(imported, generate(tiles, find_target("host")))


def compiled_with_host_code(model: nn.Module, *args: Any, target: str = "sm_90a", **options: Any) -> tuple[Program, Program]:
    """A model compiled for a GPU, and the same plan, the last one that was made, with the host's code."""
    imported, chosen = import_model(model, args, context=new_context()), options_of(options)
    made = []
    with mock.patch.object(pipeline, "lower", lambda stages: made.append(lower(stages)) or made[-1]):
        program = pipeline.compile_imported(imported, find_target(target), chosen, Phases())
    return program, program_of(imported, generate(made[-1], find_target("host")))
