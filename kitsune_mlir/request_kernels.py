"""Kernels for few and for many requests of a launch (OoO VLIW JIT, arXiv 1901.10008, section 4).

One request has all multiprocessors, so its tiles are small, and blocks share their sums. Of many requests each has a share of
the multiprocessors, where that only costs: small tiles read more, and shared ones are written and read again. So the program
is planned for some shares, too, and the plans that are predicted to be clearly faster for some number of requests become
kernels: a launch takes the one for as many as it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.generic.cost import SPREAD
from kitsune_mlir.codegen.gpu.engines.registry import choose
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.machine.slow_stages import work_of_task
from kitsune_mlir.machine.stage_cost import Cost, bulk_rate, cost_of
from kitsune_mlir.machine.target import Target

__all__ = ["Load", "kernels_by_requests", "loads_of", "shares_of"]

FASTER = 0.95
"""Of one plan's time that another one's has to stay below: each kernel is assembled, loaded and kept."""
AS_FAST = 1.02
"""Times the fastest plan's time: of several such plans the one for most requests is taken, which lasts longest."""
MANY_STAGES = 16
"""Of programs with more, shares are planned for every fourth power of two only: planning takes time."""
COPIED_SHARE = 0.5
"""Of what a product reads that threads copy operands of: one of two, mostly."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What a task of one request gives the blocks to do.

    Attributes:
        pieces: that are dealt out.
        together: to the blocks of all requests, because they wait for each other; else to those of the request.
        cost: of a piece, and of the task's bytes.
        resident: blocks that a multiprocessor has at a time.
    """

    pieces: int
    together: bool
    cost: Cost
    resident: int = 1

    def seconds(self, requests: int, machine: Target) -> float:
        """Time of the task of so many requests (`codegen.gpu.kernel.requests.RequestTable.for_each`)."""
        workers = machine.workers * self.resident
        if self.together:
            each = -(-requests * self.pieces // workers)
        else:
            blocks = max(1, workers // requests)
            each = -(-requests // (workers // blocks)) * -(-self.pieces // blocks)
        cost = self.cost
        alone = cost.seconds + (each - 1) * cost.step
        memory = max(cost.dram_bytes / machine.dram_rate, cost.l2_bytes / bulk_rate(machine))
        return max(alone, requests * memory + cost.start)


def shares_of(most: int, stages: int, machine: Target) -> list[int]:
    """Multiprocessors that a request has where there are 2, 4, 8, ... and `most` of them."""
    step, counts = (2 if stages <= MANY_STAGES else 4), list[int]()
    count = step
    while count < most:
        counts.append(count)
        count *= step
    found = {max(1, machine.workers // count): None for count in (*counts, most)}
    return [share for share in found if share < machine.workers]


def loads_of(function: ir.Operation, options: KernelOptions, machine: Target) -> list[Load]:
    """The tasks of a tile program that is planned for `options.workers` of a machine's multiprocessors.

    Raises:
        CompileError: no engine takes a task.
    """
    return [_load(choose(task, options)[0], machine) for task in ProgramView(function).tasks]


def _load(plan: Plan, machine: Target) -> Load:
    work = work_of_task(plan.task, plan)
    if plan.copied:
        work = dataclasses.replace(work, copied_bytes=COPIED_SHARE * work.read_bytes)
    return Load(plan.pieces, plan.together, cost_of(work, machine), SPREAD if work.cycles else 1)


def kernels_by_requests(plans: Sequence[Sequence[Load]], most: int, machine: Target) -> list[tuple[int, int]]:
    """Which plans become kernels: (number of the plan, fewest requests that it is for); the first plan is for one.

    Later plans are for smaller shares; none is taken after one that is behind it.
    """
    chosen = [(0, 1)]
    for requests in range(2, most + 1):
        now = chosen[-1][0]
        each = [sum(load.seconds(requests, machine) for load in loads) for loads in plans[now:]]
        times = [machine.launch_seconds + seconds for seconds in each]
        if min(times) < FASTER * times[0]:
            chosen.append((now + max(n for n, time in enumerate(times) if time <= AS_FAST * min(times)), requests))
    return chosen
