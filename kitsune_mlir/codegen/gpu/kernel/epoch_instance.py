"""What a block of an epoch kernel reads of an instance, waits for and decides (`kernel/epochs.py`)."""

from __future__ import annotations

import dataclasses

from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_block, sync_warp, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, load, load_acquire, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, cast, i32, i64, wrap
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async
from kitsune_mlir.runtime.epoch_manifest import RECORD

__all__ = ["InstanceWords", "high", "low"]


@dataclasses.dataclass(frozen=True)
class InstanceWords:
    """The record of the instance that a block works on.

    Attributes:
        records: all records, in global memory.
        record: a copy of its own one, in shared memory.
        record_bytes: from one record to the next.
        upstream: pairs of counters and posts.
        shared: four bytes of shared memory, for a decision.
        counters: those of the launch.
        fences: whether bodies read or write by asynchronous copies.
        loops: as of `runtime.epoch_manifest.EpochManifest`.
    """

    records: Value
    record: Value
    record_bytes: int
    upstream: Value
    shared: Value
    counters: Semaphores
    fences: bool
    loops: bool

    def field(self, name: str, record: Value | None = None) -> Value:
        """A word of the record, from shared memory; or of another one in global memory."""
        type_, place = RECORD[name], list(RECORD.names or ()).index(name)
        start = sum(RECORD[place].itemsize for place in range(place))
        kind = f"i{8 * type_.itemsize}"
        return load(offset(self.record, start), kind) if record is None else load(offset(record, start), kind, constant=True)

    def wait_upstream(self, waits: Value) -> None:
        """Wait for the ends of what an instance depends on: a lane each."""
        first = self.field("upstream")

        def poll(number: Value) -> None:
            pair = load(offset(self.upstream, i64(first + number) * 8), "i64", constant=True)
            self.counters.poll(low(pair), high(pair), i32(-1))

        thread = thread_id()
        if_(thread.below(32), lambda: for_(thread, waits, 32, poll) and None)
        sync_warp()
        sync_block()
        if self.fences:
            fence_async()

    def decided(self, first: Value, address: Value, number: Value) -> Value:
        """What is decided of an instance (i32): 1, it is done, or 2. Its first ticket decides, and others wait for that, so all
        its pieces do the same, whoever changes the condition meanwhile. What is not done has ended at once, and so have the
        instances behind it that end with it: these find that they are decided when they have waited for it."""
        counters, slot = self.counters, self.field("decision")

        def end() -> None:
            place, rest = self.record_bytes, self.field("predicate_bytes") >> 8

            def words(behind: Value, name: str) -> Value:
                return self.field(name, offset(self.records, i64(number + behind) * place))

            # Who sees that the last one before it has ended sees all decisions, too.
            for_(1, rest + 1, 1, lambda behind: counters.post(words(behind, "decision"), 2) and None)
            for_(0, rest + 1, 1, lambda behind: counters.post(words(behind, "done"), words(behind, "target")) and None)

        def decide() -> None:
            live = self.predicate(address)
            counters.post(slot, if_(live != 0, lambda: i32(1), lambda: i32(2), ["i32"])[0])
            if_(live == 0, end)

        def look() -> None:
            if_(first & (load_acquire(counters.address(slot)) == 0), decide)
            counters.poll(slot, 1, i32(-1))
            store(load_acquire(counters.address(slot)), self.shared)

        if_(thread_id() == 0, look)
        sync_warp()
        sync_block()
        if self.fences:
            fence_async()
        return load(self.shared, "i32")

    def predicate(self, address: Value) -> Value:
        """Whether (i32) what a record's predicate shows differs from zero. Whoever wrote it has ended."""
        pointer = wrap(llvm.inttoptr(as_type(GLOBAL), address.ir))
        size = self.field("predicate_bytes") & 255 if self.loops else self.field("predicate_bytes")

        def byte() -> Value:
            return cast(load(pointer, "i8"), "i32", signed=False)

        def words() -> Value:
            first = load(pointer, "i32")
            return if_(size == 8, lambda: first | load(offset(pointer, 4), "i32"), lambda: first, ["i32"])[0]

        return if_(size == 1, byte, words, ["i32"])[0]

    def skip(self, ticket: Value) -> None:
        """Nothing is to be done for an instance: its first ticket says that it has ended."""

        def end() -> None:
            self.counters.post(self.field("done"), self.field("target"))

        if_((thread_id() == 0) & (ticket == self.field("first_ticket")), end)


def low(words: Value) -> Value:
    """The lower i32 of an i64."""
    return cast(words, "i32")


def high(words: Value) -> Value:
    """The upper i32 of an i64."""
    return cast(words >> 32, "i32")
