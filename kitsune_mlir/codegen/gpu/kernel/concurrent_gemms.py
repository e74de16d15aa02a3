"""Products that run beside each other, such as those of q, k and v: the multiprocessors that each of them can count on.

Successive products of one input of which none waits for another are one pool of tiles. If each of them divided its sums
among all multiprocessors, there would be as many rounds of short pieces as there are products. So the one with the most tiles
is planned for its part of the multiprocessors, and the others for what it leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["options_of"]


def options_of(tasks: Sequence[TaskView], options: KernelOptions) -> list[KernelOptions]:
    """The options that each task is planned with."""
    own = [options] * len(tasks)
    for run in _runs(tasks):
        left, tiles = options.workers, sum(task.tiles for task in run)
        if len(run) == 1 or tiles > left:
            continue
        for task in sorted(run, key=lambda task: -task.tiles):
            share = left * task.tiles // tiles
            own[task.number] = dataclasses.replace(options, workers=share)
            left, tiles = left - share // task.tiles * task.tiles, tiles - task.tiles
    return own


def _runs(tasks: Sequence[TaskView]) -> list[list[TaskView]]:
    """Tasks in groups that run beside each other."""
    runs: list[list[TaskView]] = []
    for task in tasks:
        if runs and _joins(runs[-1], task):
            runs[-1].append(task)
        else:
            runs.append([task])
    return runs


def _joins(run: Sequence[TaskView], task: TaskView) -> bool:
    if task.requested_engine != run[0].requested_engine or not traits_of(task.requested_engine).concurrent:
        return False
    first = {load.buffer.memory for load in run[0].loads}
    if not first & {load.buffer.memory for load in task.loads}:
        return False
    return all(wait.task is not None and wait.task < run[0].number for wait in task.waits)
