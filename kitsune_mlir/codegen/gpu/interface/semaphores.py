"""How blocks hand data to each other: counters in the workspace, polled with acquire and bumped with release.

Two arrays of counters take turns (`runtime/manifest.py`): a run counts in the array that the block's parity word names, clears
the other, and flips the word at its end. Every block has a parity word of its own, so the blocks need not agree on anything.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, for_, grid_size, if_, sync_block, thread_id, while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh, inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import atomic, load, load_acquire, offset, reduce_add, store, store_release
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i32, i64
from kitsune_mlir.runtime.manifest import COUNTERS, REPORT_BYTES, SLOT_STRIDE

__all__ = ["Semaphores", "post", "wait_at_least"]

POLL_LIMIT = 1 << 22
"""Polls before a debug build gives up: some seconds."""


@dataclasses.dataclass(frozen=True)
class Semaphores:
    """The semaphore counters of the running kernel. Make it with `open`, at the kernel's start.

    Attributes:
        workspace: pointer to the workspace.
        parity: i32, 0 or 1: the array of this run.
        current: pointer to the array of this run.
        bytes: size of one array.
        slots: number of counters.
        debug: whether polls are bounded.
    """

    workspace: Value
    parity: Value
    current: Value
    bytes: int
    slots: int
    debug: bool

    @staticmethod
    def open(workspace: Value, bytes: int, slots: int, debug: bool) -> Semaphores:
        """Read the block's parity word. Nothing waits for it before its first use. Without counters there is none."""
        if not slots:
            return Semaphores(workspace, i32(0), workspace, 0, 0, debug)
        parity = load(offset(workspace, block_id() * 4), "i32")
        base = offset(workspace, COUNTERS)
        current = offset(base, parity * bytes)
        return Semaphores(workspace, parity, current, bytes, slots, debug)

    def close(self, threads: int, full: bool = False) -> None:
        """Clear the other array and flip the parity word, at the kernel's end. All threads call it.

        Args:
            full: the kernel has no register for the parity from its start to here: it is read again, which takes half a
                microsecond.
        """
        if not self.slots:
            return
        parity = load(offset(self.workspace, fresh(block_id()) * 4), "i32") if full else self.parity
        other = offset(offset(self.workspace, COUNTERS), (1 - parity) * self.bytes)
        start, step = block_id() * threads + thread_id(), grid_size() * threads
        for_(start, self.slots, step, lambda slot: store(i32(0), offset(other, slot * SLOT_STRIDE)))
        sync_block()  # everybody has read the word
        # Computed again, because an address that lives from the kernel's start to here is spilled by kernels full of registers.
        word = offset(self.workspace, fresh(block_id()) * 4)
        if_(thread_id() == 0, lambda: store(1 - parity, word))

    def address(self, slot: Value) -> Value:
        """Pointer to the counter of `slot` (i32)."""
        return offset(self.current, cast(slot, "i64", signed=False) * SLOT_STRIDE)

    def poll(self, slot: Value, count: Value | int, task: Value | int) -> None:
        """The calling thread waits until `slot` has `count` posts; what was written before these is then visible to it."""
        address = self.address(slot)
        if not self.debug:
            wait_at_least(address, count)
            return
        # When one wait gives up, all that are not satisfied are reported, one a block: the first of them in the program's order
        # is what others hang on. Then nobody waits any more, so that the kernel ends and the host can read the report.
        stopped = self._report()
        while_(
            [i32(0)],
            lambda tries: _all(load_acquire(address) < count, tries < POLL_LIMIT, load_acquire(stopped) == 0),
            lambda tries: tries + 1,
        )
        seen = load_acquire(address)
        if_(seen < count, lambda: self._give_up(task, slot, seen, count))

    def _report(self) -> Value:
        return offset(self.workspace, COUNTERS + 2 * self.bytes)

    def _give_up(self, task: Value | int, slot: Value, seen: Value, wanted: Value | int) -> None:
        """Write the block's report, unless another of its threads already has, and stop all waits."""
        report = offset(self._report(), i64(block_id() + 1) * REPORT_BYTES)
        taken = atomic("exch", report, i32(1))

        def write() -> None:
            for index, word in enumerate((i32(task), slot, seen, i32(wanted))):
                store(word, offset(report, 4 + 4 * index))
            store_release(i32(1), self._report())

        if_(taken == 0, write)

    def post(self, slot: Value, amount: Value | int = 1) -> None:
        """Add to `slot`, after everything that the calling thread wrote or saw written."""
        post(self.address(slot), amount)


def post(counter: Value, amount: Value | int = 1) -> None:
    """Add to an i32 in global memory with release at gpu scope, by one thread, after a barrier over the threads that wrote.

    What TMA wrote must be complete (`tma.wait(0)`, not `read=True`), and a `fence_async` come before.
    """
    reduce_add(counter, i32(amount), release=True)


def wait_at_least(counter: Value, target: Value | int) -> None:
    """Poll with acquire at gpu scope until the counter is at least `target` (signed). One thread calls it; then a barrier.

    One thread only: every acquire drops the multiprocessor's L1 cache.
    """
    # The loop is PTX, because LLVM would rotate and duplicate the poll; the braces make its label local.
    code = (
        "{ .reg .pred waiting; .reg .b32 seen; SPIN: ld.acquire.gpu.global.b32 seen, [$0]; "
        "setp.lt.s32 waiting, seen, $1; @waiting bra SPIN; }"
    )
    inline_ptx(code, [counter, i32(target)], memory=True)


def _all(first: Value, *rest: Value) -> Value:
    for condition in rest:
        first = first & condition
    return first
