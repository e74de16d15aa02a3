"""Synchronisation inside a block and a cluster: mbarriers with phases, rings of them, named barriers, proxy fences.

An mbarrier counts arrivals (and bytes of TMA loads); when all have come, its phase flips. A waiter names the parity of
the phase that it waits for: it continues once that phase is complete. A consumer starts with parity 0. A producer that
waits for "empty" starts with parity 1, which a fresh barrier passes at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import nvvm

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, sync_block, thread_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import offset, shared_address
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, constant, i32, select

__all__ = [
    "Barrier",
    "NamedBarrier",
    "Ring",
    "Slot",
    "fence_async",
    "fence_async_shared",
    "fence_barrier_init",
    "initialize",
    "sync_cluster",
]

_SUSPEND_NANOSECONDS = 10_000_000  # how long try_wait may sleep before it is asked again


@dataclasses.dataclass(frozen=True)
class Barrier:
    """An mbarrier: 8 bytes of shared memory at `pointer`, aligned to 8."""

    pointer: Value

    BYTES = 8

    def initialize(self, arrivals: Value | int) -> None:
        """Make it expect `arrivals` per phase. One thread; then `fence_barrier_init` and a barrier over the users."""
        nvvm.mbarrier_init(self.pointer.ir, i32(arrivals).ir)

    def invalidate(self) -> None:
        """End its use; its memory may then hold something else. One thread, when nobody uses it any more."""
        nvvm.mbarrier_inval(self.pointer.ir)

    def arrive(self) -> None:
        """Arrive once, with release of this thread's writes to shared memory."""
        nvvm.mbarrier_arrive(self.pointer.ir, results=[as_type("i64")])

    def arrive_at(self, block: Value | int) -> None:
        """Arrive once on the same barrier of block `block` of the cluster: it says that reads of shared memory are done.

        Inline PTX: the typed operation makes it `.release.cluster`, a full memory barrier each time, which such an arrival does
        not need (a product of 8,192 on an H200: 570 TFLOP/s, 700 without).
        """
        code = "{ .reg .b32 ra; mapa.shared::cluster.u32 ra, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [ra]; }"
        inline_ptx(code, [shared_address(self.pointer), i32(block)], memory=True)

    def arrive_and_expect(self, bytes: Value | int) -> None:
        """Arrive once, and let the phase also wait for `bytes` of TMA loads."""
        nvvm.mbarrier_arrive_expect_tx(self.pointer.ir, i32(bytes).ir, results=[])

    def expect(self, bytes: Value | int) -> None:
        """Let the phase wait for `bytes` more of TMA loads, without arriving.

        Inline PTX: the typed operation becomes an intrinsic that LLVM 22 does not have.
        """
        code = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
        inline_ptx(code, [shared_address(self.pointer), i32(bytes)], memory=True)

    def wait(self, parity: Value | int) -> None:
        """Wait until the phase of `parity` (0 or 1, i32) is complete."""
        ticks = constant(_SUSPEND_NANOSECONDS, "i32")
        nvvm.mbarrier_try_wait_parity(self.pointer.ir, i32(parity).ir, ticks.ir)


def initialize(barriers: Sequence[tuple[Barrier, int]], cluster: bool = False, used: Sequence[Barrier] = ()) -> None:
    """Thread 0 initialises each (barrier, arrivals); then the block, or the whole cluster, meets. All threads call this.

    Args:
        used: barriers that were in use in the same memory; a block barrier came after the last use.
    """

    def emit() -> None:
        for barrier in used:
            barrier.invalidate()
        for barrier, arrivals in barriers:
            barrier.initialize(arrivals)
        fence_barrier_init()

    if_(thread_id() == 0, emit)
    sync_cluster() if cluster else sync_block()


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where a thread is in a ring: the stage (i32, 0 to stages - 1) and the parity it waits for (i32). Carry it through loops:

    slot = Slot(*for_(0, n, 1, lambda i, *s: body(Slot(*s)).values, slot.values))
    """

    stage: Value
    parity: Value

    @property
    def values(self) -> list[Value]:
        return [self.stage, self.parity]


@dataclasses.dataclass(frozen=True)
class Ring:
    """A ring of `stages` slots in shared memory, each with a "full" and an "empty" mbarrier.

    The producer waits for empty, fills the slot, arrives on full; the consumer waits for full, reads, arrives on empty.

    Attributes:
        base: pointer to `bytes(stages)` bytes for the barriers, aligned to 8.
        stages: number of slots.
    """

    base: Value
    stages: int

    @staticmethod
    def bytes(stages: int) -> int:
        """Bytes of shared memory for the barriers."""
        return 2 * stages * Barrier.BYTES

    def full(self, stage: Value | int) -> Barrier:
        return Barrier(self._at(stage, 0))

    def empty(self, stage: Value | int) -> Barrier:
        return Barrier(self._at(stage, self.stages * Barrier.BYTES))

    def _at(self, stage: Value | int, start: int) -> Value:
        moved = offset(self.base, start)
        return offset(moved, stage * Barrier.BYTES)

    def barriers(self, full_arrivals: int, empty_arrivals: int) -> list[tuple[Barrier, int]]:
        """All barriers with their counts, for `initialize`."""
        full = [(self.full(stage), full_arrivals) for stage in range(self.stages)]
        return full + [(self.empty(stage), empty_arrivals) for stage in range(self.stages)]

    def producer_start(self) -> Slot:
        """The producer's first slot: it waits for empty with parity 1."""
        return Slot(i32(0), i32(1))

    def consumer_start(self) -> Slot:
        """The consumer's first slot: it waits for full with parity 0."""
        return Slot(i32(0), i32(0))

    def next(self, slot: Slot) -> Slot:
        """The slot after `slot`; the parity flips where the ring wraps."""
        if self.stages == 1:
            return Slot(slot.stage, slot.parity ^ 1)
        following = slot.stage + 1
        wraps = following == self.stages
        return Slot(select(wraps, i32(0), following), select(wraps, slot.parity ^ 1, slot.parity))


@dataclasses.dataclass(frozen=True)
class NamedBarrier:
    """Hardware barrier `id` over `threads` threads, a multiple of 32.

    Ids are 0 to 15 and may be run-time values; 0 is `sync_block`'s.
    """

    id: Value | int
    threads: int

    def __post_init__(self) -> None:
        if isinstance(self.id, int) and not 0 <= self.id < 16:
            raise ValueError(f"named barriers are 0 to 15, not {self.id}")
        if self.threads % 32:
            raise ValueError(f"a named barrier counts whole warps: {self.threads} threads is no multiple of 32")

    def sync(self) -> None:
        """Arrive and wait for all."""
        nvvm.barrier(barrier_id=i32(self.id).ir, number_of_threads=i32(self.threads).ir)

    def arrive(self) -> None:
        """Arrive without waiting; others `sync`."""
        nvvm.barrier_arrive(i32(self.threads).ir, barrier_id=i32(self.id).ir)


def fence_barrier_init() -> None:
    """Make initialised mbarriers visible to TMA and to the cluster."""
    nvvm.fence_mbarrier_init()


def fence_async_shared() -> None:
    """Order this thread's writes to shared memory before later TMA stores and wgmma reads (after a barrier: of others too)."""
    kind, space = (ir.Attribute.parse(text) for text in ("#nvvm.proxy_kind<async.shared>", "#nvvm.shared_space<cta>"))
    nvvm.fence_proxy(kind, space=space)


def fence_async() -> None:
    """Order accesses of the generic and the async proxy in global memory.

    Needed around TMA of data that other blocks wrote or will read. For all memory it would be a fence of the device as well.
    """
    nvvm.fence_proxy(ir.Attribute.parse("#nvvm.proxy_kind<async.global>"))


def sync_cluster() -> None:
    """Barrier over all threads of the cluster."""
    nvvm.cluster_arrive(aligned=True)
    nvvm.cluster_wait(aligned=True)
