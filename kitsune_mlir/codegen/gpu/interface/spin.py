"""Semaphores in global memory between the blocks of one kernel: counters that only grow within an epoch.

`post` makes everything that the block wrote visible and then adds 1; `wait_at_least` continues when the counter has
reached a target. The pattern is release/acquire at gpu scope: writers -> block barrier -> one thread's `red.release`;
one thread's `ld.acquire` -> block barrier -> readers. Data written or read by TMA crosses from one proxy to the other,
hence the fences.

Put semaphores at least 128 bytes apart (`STRIDE`): pollers of neighbours would share a cache line.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, global_timer, if_, trap, while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import load_acquire, offset, reduce_add, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async

__all__ = ["STRIDE", "Watchdog", "post", "wait_at_least"]

STRIDE = 128
"""Bytes from one semaphore to the next."""


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """Debug mode of `wait_at_least`: give up after `nanoseconds`, say where, and trap.

    Attributes:
        buffer: pointer to `BYTES` bytes, zeroed, in host memory that is mapped: after a trap, device memory cannot be
            read any more. The thread that gives up first writes six i32 there, named by `FIELDS`.
        nanoseconds: of the device's clock.
        task: number of the waiting task, for the record.
    """

    buffer: Value
    nanoseconds: int = 2_000_000_000
    task: Value | int = 0

    BYTES = 24
    FIELDS = ("gave_up", "block", "task", "semaphore", "target", "seen")


def post(semaphore: Value, amount: Value | int = 1, async_writes: bool = False) -> None:
    """Add `amount` with release at gpu scope. One thread calls it, after a barrier over the threads that wrote.

    Args:
        semaphore: pointer to an i32 in global memory.
        async_writes: the data was written by TMA, or will be read by TMA: fence the async proxy first. TMA stores of
            this thread must be complete (`tma.wait(0)`, not `read=True`).
    """
    if async_writes:
        fence_async()
    reduce_add(semaphore, i32(amount), release=True)


def wait_at_least(
    semaphore: Value,
    target: Value | int,
    async_reads: bool = False,
    watchdog: Watchdog | None = None,
    index: Value | int = 0,
) -> None:
    """Poll with acquire at gpu scope until the counter is at least `target` (signed). One thread calls it; then a barrier.

    One thread only: every acquire drops the multiprocessor's L1 cache.

    Args:
        async_reads: what was waited for will be read by TMA.
        watchdog: bound the wait; `index` then names the semaphore in the record.
    """
    target = i32(target)
    if watchdog is None:
        # The loop is PTX, because LLVM would rotate and duplicate the poll; the braces make its label local.
        code = (
            "{ .reg .pred waiting; .reg .b32 seen; SPIN: ld.acquire.gpu.global.b32 seen, [$0]; "
            "setp.lt.s32 waiting, seen, $1; @waiting bra SPIN; }"
        )
        inline_ptx(code, "l,r,~{memory}", [semaphore, target])
    else:
        _wait_bounded(semaphore, target, watchdog, index)
    if async_reads:
        fence_async()


def _wait_bounded(semaphore: Value, target: Value, watchdog: Watchdog, index: Value | int) -> None:
    start = global_timer()

    def waiting(seen: Value, elapsed: Value) -> Value:
        return (seen < target) & (elapsed < watchdog.nanoseconds)

    def poll(seen: Value, elapsed: Value) -> list[Value]:
        return [load_acquire(semaphore), global_timer() - start]

    seen, _ = while_([load_acquire(semaphore), i64(0)], waiting, poll)

    def record() -> None:
        fields = [block_id(), i32(watchdog.task), i32(index), target, seen]
        for position, value in enumerate(fields):
            store(value, offset(watchdog.buffer, 4 * (position + 1)))
        inline_ptx("fence.acq_rel.sys;", "~{memory}")

    def give_up() -> None:
        first = inline_ptx(
            "atom.relaxed.sys.global.exch.b32 $0, [$1], $2;", "=r,l,r,~{memory}", [watchdog.buffer, i32(1)], ["i32"]
        )[0]
        # Who is not first leaves the first one time to write its record before everything stops.
        if_(first == 0, record, lambda: inline_ptx("nanosleep.u32 1000000;", ""))
        trap()

    if_(seen < target, give_up)
