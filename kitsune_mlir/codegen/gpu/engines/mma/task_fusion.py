"""Successive products that one role after the other goes through without meeting: the next one's operands come meanwhile.

Between two tasks a block would meet, make new mbarriers and start roles again, and only then ask whether the next task's rows
are there: two microseconds, while the last tile's results are still on their way. Here the loading warps, the consumers and the
storing thread each go on to the next task as soon as they are done with their part of this one. All tasks share a ring.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.engines.mma.cost import HELD_BYTES
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.tma_epilogue import SLOTS
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan

__all__ = ["join_plans"]

MOST_TASKS = 4
"""More make much code for one body, which equal stages cannot share."""
LEAST_STAGES, LOST_STAGES, LONG = 4, 1, 96
"""A ring for all has as many stages, and where a block goes through more than `LONG` chunks in a task, or operands come from
memory, at most so many fewer than the task would have alone. 96 columns behind 192 had 5 stages instead of 7, and both products
took 87 us instead of 80 (768 x 2048 x 8192 and back, on an H200); 1536 x 1024 x 4096 and back lost nothing. The last product of
a Llama layer of 128 tokens had 4 stages instead of 7, and the layer took 151 us instead of 147."""


def join_plans(plans: Sequence[Plan], options: KernelOptions) -> list[Plan] | None:
    """The plans of successive tasks with a ring, places for results, and ones for sums of operands, that do for each of them.

    None where they are too many, or where some task's barriers would be others (operands that threads copy or halve, results
    that are not stored by TMA).
    """
    every: list[MmaPlan] = [plan.private for plan in plans]
    if len(plans) > MOST_TASKS or any(mma.loaders < 2 or not mma.results or mma.announces for mma in every):
        return None
    groups = {mma.geometry.groups for mma in every}
    if len(groups) > 1:
        return None
    room, slot = max(mma.operand_bytes for mma in every), max(mma.out_tile.bytes for mma in every)
    beside = groups.pop() * SLOTS * slot + max(mma.ones_bytes for mma in every)
    stages = min(max(mma.stages for mma in every), (options.shared_bytes - beside) // room)
    long = [plan.private for plan in plans if _chunks(plan, options) > LONG or _bytes(plan.private) > HELD_BYTES]
    if stages < LEAST_STAGES or any(stages < mma.stages - LOST_STAGES for mma in long):
        return None
    joined = []
    for plan, mma in zip(plans, every, strict=True):
        private = dataclasses.replace(mma, stages=stages, room=room, slot_room=slot)
        joined.append(
            dataclasses.replace(
                plan,
                shared_bytes=stages * room + beside,
                barriers=private.barriers,
                parameters={**plan.parameters, "stages": stages, "joined": len(plans)},
                joined=True,
                private=private,
            )
        )
    return joined


def _bytes(mma: MmaPlan) -> int:
    """Bytes of the tensors that a task's operands are parts of."""
    windows = [box.window for box in mma.boxes or () if box is not None]
    return sum(window.bytes * math.prod(dim.extent for dim in window.dims) for window in windows)


def _chunks(plan: Plan, options: KernelOptions) -> int:
    """Chunks that a block goes through in a task."""
    mma: MmaPlan = plan.private
    return -(-plan.pieces // options.workers) * mma.sum.chunks // (mma.split.pieces if mma.split else 1)
