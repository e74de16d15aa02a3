"""All tasks of a program planned for one kernel: the hungriest says how many threads the others may have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kitsune_mlir.codegen.gpu.engines.registry import choose
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.footprint import REGISTER_FILE
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.schedule import Schedule, make_schedule
from kitsune_mlir.dialects.tile_reader import ProgramView

__all__ = ["planned"]


def planned(
    program: ProgramView, options: KernelOptions, placement: AllBlocks, engines: Mapping[str, Engine], join: bool
) -> tuple[KernelOptions, Schedule]:
    """The schedule, and the options that it was made with.

    Args:
        join: as of `make_schedule`.

    Raises:
        CompileError: no engine takes some task.
    """

    def schedule(options: KernelOptions) -> Schedule:
        return make_schedule(program, options, placement, engines, lambda task, own: choose(task, own, engines), join)

    made = schedule(options)
    # A task that wants many registers limits the threads of all: the others plan again with that in mind.
    most = min((REGISTER_FILE // plan.registers // 32 * 32 for plan in made.plans), default=options.threads)
    if any(plan.threads > most for plan in made.plans):
        options = dataclasses.replace(options, threads=most)
        made = schedule(options)
    return options, made
