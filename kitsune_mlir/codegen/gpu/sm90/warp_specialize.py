"""Warpgroup roles within one task: one warpgroup moves data, two compute, and registers go where they are needed.

A kernel of 384 threads starts with 168 registers a thread (65536 / 384, in eights). A task that specialises gives most of the
producer's registers to the consumers for as long as it runs, and everybody has 168 again before the next task begins, so
tasks of different engines live in one kernel (PTX ISA, "setmaxnreg": all warps of a warpgroup execute it, and an increase waits
until the registers are free).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, set_max_registers, warp_id
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.sm90.mbarrier import NamedBarrier

__all__ = ["CONSUMERS", "PRODUCER_REGISTERS", "SHARED_REGISTERS", "THREADS", "WARPGROUP_THREADS", "Block", "specialize"]

WARPGROUP_THREADS = 128
CONSUMERS = 2
THREADS = WARPGROUP_THREADS * (1 + CONSUMERS)
SHARED_REGISTERS = 168
PRODUCER_REGISTERS = 24
FREED = NamedBarrier(15, THREADS)
"""The consumers have given their registers back; the producer waits for that."""


class Block(Protocol):
    """What is needed of the block of threads: a `context.TaskContext`, or a kernel written by hand."""

    @property
    def thread(self) -> Value: ...

    @property
    def threads(self) -> int: ...

    def sync(self) -> None: ...


def specialize(
    task: Block,
    produce: Callable[[], None],
    consume: Callable[[Value], None],
    producer_registers: int = PRODUCER_REGISTERS,
) -> None:
    """Emit a task whose warpgroup 0 runs `produce()` and whose warpgroups 1 and 2 run `consume(w)`, w = 0 or 1 (i32, uniform).

    The kernel must have exactly `THREADS` threads (`Plan.threads = THREADS`, `Plan.registers = SHARED_REGISTERS`; no other plan
    of the program may want more). `produce` runs in all 128 threads of its warpgroup: it elects one itself. Neither
    function may use the block barrier (`task.sync`, `tile.finish`, `tile.wait`): they meet through mbarriers and named
    barriers. It ends with a block barrier, so shared memory is free for the next task afterwards.

    Args:
        producer_registers: 24, 40, 56 or 72; the consumers have 240, 232, 224 or 216. What a side needs beyond its number is
            spilled, without a warning: with 24 a producer does little more than one loop of loads from two tensors.

    Raises:
        ValueError: a block of another size, or another number of registers.
    """
    if task.threads != THREADS:
        raise ValueError(f"roles need a block of {THREADS} threads, not {task.threads}")
    if producer_registers not in (24, 40, 56, 72):
        raise ValueError(f"a producer has 24, 40, 56 or 72 registers, not {producer_registers}")
    consumer_registers = (SHARED_REGISTERS * (1 + CONSUMERS) - producer_registers) // CONSUMERS // 8 * 8
    group = warp_id(task.thread, 4)

    def produce_() -> None:
        set_max_registers(producer_registers, grow=False)
        produce()
        # Warps without work would else take their registers back before the consumers have got them.
        FREED.sync()
        set_max_registers(SHARED_REGISTERS, grow=True)

    def consume_() -> None:
        set_max_registers(consumer_registers, grow=True)
        consume(group - 1)
        set_max_registers(SHARED_REGISTERS, grow=False)
        FREED.arrive()

    if_(group == 0, produce_, consume_)
    # In one place for both roles: a barrier of the whole block that each reaches by code of its own is an error to synccheck.
    task.sync()
