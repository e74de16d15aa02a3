"""Waits for a semaphore that give up: what a wait that nobody answers leaves behind, for kernels written by hand."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, global_timer, if_, while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import load_acquire, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64

__all__ = ["Watchdog"]

ACQ_REL = "6 : i64"


@dataclasses.dataclass(frozen=True)
class Watchdog:
    """Gives up a wait after `nanoseconds`, says where, and traps.

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

    def wait_at_least(self, semaphore: Value, target: Value | int, index: Value | int = 0) -> None:
        """`interface.semaphores.wait_at_least`, bounded; `index` names the semaphore in the record."""
        target, start = i32(target), global_timer()

        def waiting(seen: Value, elapsed: Value) -> Value:
            return (seen < target) & (elapsed < self.nanoseconds)

        def poll(seen: Value, elapsed: Value) -> list[Value]:
            return [load_acquire(semaphore), global_timer() - start]

        seen, _ = while_([load_acquire(semaphore), i64(0)], waiting, poll)

        def record() -> None:
            fields = [block_id(), i32(self.task), i32(index), target, seen]
            for position, value in enumerate(fields):
                store(value, offset(self.buffer, 4 * (position + 1)))
            llvm.fence(ir.Attribute.parse(ACQ_REL))

        def give_up() -> None:
            code = "atom.relaxed.sys.global.exch.b32 $0, [$1], $2;"
            first = inline_ptx(code, [self.buffer, i32(1)], ["i32"], memory=True)[0]
            # Who is not first leaves the first one time to write its record before everything stops.
            if_(first == 0, record, lambda: nvvm.nanosleep(i32(1_000_000).ir))
            llvm.intr_trap()

        if_(seen < target, give_up)
