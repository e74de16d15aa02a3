"""Warpgroup roles within one task: one warpgroup moves data, two compute, and registers go where they are needed.

A kernel of 384 threads starts with 168 registers a thread (65536 / 384, in eights). A task that specialises gives most of the
producer's registers to the consumers for as long as it runs, and everybody has 168 again before the next task begins, so
tasks of different engines live in one kernel (PTX ISA, "setmaxnreg": all warps of a warpgroup execute it, and an increase waits
until the registers are free).
"""

from __future__ import annotations

from collections.abc import Callable

from kitsune_mlir.codegen.gpu.builder import if_, set_max_registers, warp_id
from kitsune_mlir.codegen.gpu.context import TaskContext
from kitsune_mlir.codegen.gpu.value import Value

__all__ = ["CONSUMERS", "CONSUMER_REGISTERS", "PRODUCER_REGISTERS", "THREADS", "specialize"]

GROUP = 128
CONSUMERS = 2
THREADS = GROUP * (1 + CONSUMERS)
SHARED_REGISTERS = 168
PRODUCER_REGISTERS = 24
CONSUMER_REGISTERS = 240


def specialize(task: TaskContext, produce: Callable[[], None], consume: Callable[[Value], None]) -> None:
    """Emit a task whose warpgroup 0 runs `produce()` and whose warpgroups 1 and 2 run `consume(w)`, w = 0 or 1 (i32, uniform).

    The kernel must have exactly `THREADS` threads (`Plan.threads = THREADS`, `Plan.registers = 168`; no other plan of the
    program may want more). `produce` runs in all 128 threads of its warpgroup: it elects one itself. Neither function may use
    the block barrier (`task.sync`, `tile.finish`, `tile.wait`): they meet through mbarriers and named barriers. A block
    barrier follows, so shared memory is free for the next task afterwards.
    """
    assert task.threads == THREADS, task.threads
    group = warp_id(task.thread, 4)

    def produce_() -> None:
        set_max_registers(PRODUCER_REGISTERS, grow=False)
        produce()
        set_max_registers(SHARED_REGISTERS, grow=True)

    def consume_() -> None:
        set_max_registers(CONSUMER_REGISTERS, grow=True)
        consume(group - 1)
        set_max_registers(SHARED_REGISTERS, grow=False)

    if_(group == 0, produce_, consume_)
    task.sync()
