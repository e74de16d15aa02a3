"""Models compiled part of the way, or planned for one machine and run on another."""

from __future__ import annotations

from typing import Any

from torch import nn

from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import options_of
from kitsune_mlir.pipeline import generate, lower, plan, program_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.targets import Code

__all__ = ["planned", "planned_for_gpu"]


def planned(model: nn.Module, *args: Any, target: str = "sm_90a", **options: Any) -> Program:
    """A model compiled up to its tile program: it has no code, and cannot be called."""
    imported = import_model(model, args, context=new_context())
    tiles = lower(plan(imported, find_target(target), options_of(options)))
    return program_of(imported, Code(tiles, tiles.stages.machine, {}, {}, None, "not generated"))


def planned_for_gpu(model: nn.Module, *args: Any, **options: Any) -> Program:
    """A model planned for the GPU, with the host's code."""
    imported = import_model(model, args, context=new_context())
    tiles = lower(plan(imported, find_target("sm_90a"), options_of(options)))
    return program_of(imported, generate(tiles, find_target("host")))
