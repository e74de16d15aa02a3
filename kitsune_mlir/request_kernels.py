"""Kernels for few and for many requests of a launch, of one tile program (OoO VLIW JIT, arXiv 1901.10008, section 4).

What a few requests gain from, sums whose tiles several blocks share, only costs many: they keep all blocks busy without it. So
where a plan for one request's part of the machine differs, its kernel is made, too, and a launch takes the one that is
predicted to be the faster for as many requests as it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.compile import GpuCode
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.machine.slow_stages import seconds_and_floor
from kitsune_mlir.machine.target import Target

__all__ = ["Compiled", "for_many_requests", "seconds_of"]

COPIED_SHARE = 0.5
"""Of what a product reads that threads copy operands of: one of two, mostly. 2 to 8 requests of 256 x 1152 by 1152 x 128 in f32
took 23 to 69 us on an H200 with tiles shared by 8 blocks, and 40 without: the second is the faster from 5 on, and from 6 on
predicted to be."""

Compiled = Callable[[KernelOptions, Callable[[Decision], None]], Sequence[GpuCode]]
"""The kernels of the program with some options; the second is called with who does each task."""


def seconds_of(plan: Plan, machine: Target) -> float:
    """What a task of one request is predicted to take with all blocks."""
    return seconds_and_floor(plan, machine, COPIED_SHARE)[0]


def for_many_requests(
    kernel: GpuCode, seconds: float, compiled: Compiled, options: KernelOptions, machine: Target
) -> list[GpuCode]:
    """The kernel, and a second one where that is predicted to be faster for many requests.

    Args:
        kernel: planned for one request that has all blocks.
        seconds: that it is predicted to take for one.
        options: that it was made with; `requests` is above 1.
    """
    if all(choice.pieces == 1 for choice in kernel.engines):
        return [kernel]
    tasks: list[tuple[int, float]] = []  # tiles, and seconds of one

    def watch(decision: Decision) -> None:
        plan = decision.plan
        tasks.append((plan.pieces, seconds_of(plan, machine) / -(-plan.pieces // machine.workers)))

    share = max(1, machine.workers // options.requests)
    (other,) = compiled(dataclasses.replace(options, workers=share), watch)
    if [choice.pieces for choice in other.engines] == [choice.pieces for choice in kernel.engines]:
        return [kernel]

    def many(requests: int) -> float:
        blocks, rounds = max(1, machine.workers // requests), -(-requests // machine.workers)
        return sum(each * -(-tiles // blocks) * rounds for tiles, each in tasks)

    least = next((n for n in range(2, options.requests + 1) if many(n) < n * seconds), None)
    if least is None:
        return [kernel]
    return [kernel, dataclasses.replace(other, manifest=dataclasses.replace(other.manifest, least_requests=least))]
