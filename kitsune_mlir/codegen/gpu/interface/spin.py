"""Semaphores in global memory between the blocks of one kernel: counters that only grow within an epoch.

`post` makes everything that the block wrote visible and then adds 1; `wait_at_least` continues when the counter has
reached a target. The pattern is release/acquire at gpu scope: writers -> block barrier -> one thread's `red.release`;
one thread's `ld.acquire` -> block barrier -> readers. Data written or read by TMA crosses from one proxy to the other,
hence the fences.

Put semaphores at least 128 bytes apart (`STRIDE`): pollers of neighbours would share a cache line.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import reduce_add
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async

__all__ = ["STRIDE", "post", "wait_at_least"]

STRIDE = 128
"""Bytes from one semaphore to the next."""


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


def wait_at_least(semaphore: Value, target: Value | int) -> None:
    """Poll with acquire at gpu scope until the counter is at least `target` (signed). One thread calls it; then a barrier.

    One thread only: every acquire drops the multiprocessor's L1 cache.
    """
    # The loop is PTX, because LLVM would rotate and duplicate the poll; the braces make its label local.
    code = (
        "{ .reg .pred waiting; .reg .b32 seen; SPIN: ld.acquire.gpu.global.b32 seen, [$0]; "
        "setp.lt.s32 waiting, seen, $1; @waiting bra SPIN; }"
    )
    inline_ptx(code, [semaphore, i32(target)], memory=True)
