"""Successive products that one role after the other goes through without meeting: the next one's operands come meanwhile.

Between two tasks a block would meet, make new mbarriers and start roles again, and only then ask whether the next task's rows
are there: two microseconds, while the last tile's results are still on their way. Here the loading warps, the consumers and the
storing thread each go on to the next task as soon as they are done with their part of this one. All tasks share a ring.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.engine import Limits, Plan
from kitsune_mlir.codegen.gpu.mma_plan import MOST_STAGES, MmaPlan
from kitsune_mlir.codegen.gpu.mma_result import SLOTS

__all__ = ["join_plans"]

MOST_TASKS = 4
"""More make much code for one body, which equal stages cannot share."""
LEAST_STAGES = 4


def join_plans(plans: Sequence[Plan], limits: Limits) -> list[Plan] | None:
    """The plans of successive tasks with a ring, and places for results, that are large enough for each of them.

    None where they are too many, or where some task's barriers would be others: operands that threads copy or halve, or results
    that are not stored by TMA.
    """
    every: list[MmaPlan] = [plan.private for plan in plans]
    if len(plans) > MOST_TASKS or any(mma.loaders < 2 or not mma.results or mma.announces for mma in every):
        return None
    groups = {mma.geometry.groups for mma in every}
    if len(groups) > 1:
        return None
    room, slot = max(mma.operand_bytes for mma in every), max(mma.out_tile.bytes for mma in every)
    staging = groups.pop() * SLOTS * slot
    stages = min(MOST_STAGES, (limits.shared_bytes - staging) // room)
    if stages < LEAST_STAGES:
        return None
    joined = []
    for plan, mma in zip(plans, every, strict=True):
        private = dataclasses.replace(mma, stages=stages, room=room, slot_room=slot)
        joined.append(
            dataclasses.replace(
                plan,
                shared_bytes=stages * room + staging,
                barriers=private.barriers,
                parameters={**plan.parameters, "stages": stages, "joined": len(plans)},
                private=private,
            )
        )
    return joined
