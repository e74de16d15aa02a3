"""Kernels for few and for many requests of a launch, of one tile program (OoO VLIW JIT, arXiv 1901.10008, section 4).

What a few requests gain from, sums whose tiles several blocks share, only costs many: they keep all blocks busy without it. So
where a plan for one request's part of the machine differs, its kernel is made, too, and a launch takes the one that is
predicted to be the faster for as many requests as it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.compile import GpuCode
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.machine.slow_stages import seconds_and_floor
from kitsune_mlir.machine.target import Target

__all__ = ["Compiled", "for_many_requests"]

Compiled = Callable[[KernelOptions, Callable[[Decision], None]], Sequence[GpuCode]]
"""The kernels of the program with some options; the second is called with who does each task."""


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
        whole, _ = seconds_and_floor(plan, machine)
        tasks.append((plan.pieces, whole / -(-plan.pieces // machine.workers)))

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
