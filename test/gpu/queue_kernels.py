"""Kernels that hand tiles from block to block, as fast as they can: through rings in L2, and inside clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, cluster_rank, for_, grid_size, if_, sync_block, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import Cache, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64, select, unpack, vector
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.kernel.placement import by_multiprocessor
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, NamedBarrier, fence_async_shared, initialize, sync_cluster
from kitsune_mlir.runtime.manifest import COUNTERS, SLOT_STRIDE
from test.gpu.kit.bulk import push_span
from test.gpu.kit.ring import L2Ring

PAIRS = 66
ALONE = 120 << 10  # bytes of shared memory of which two blocks do not fit one multiprocessor
UNROLL = 8


@dataclasses.dataclass(frozen=True)
class Probe:
    """A kernel to be measured: `make` emits it, `slot_bytes` are handed over at a time, `slots` is the depth of a ring."""

    make: Callable[[Probe], Kernel]
    slot_bytes: int
    slots: int = 4
    hints: bool = True
    cluster: int = 1
    group: int = 128  # threads that move one slot's tiles

    @property
    def counters(self) -> int:
        """Counters of all pairs: two rings each."""
        return PAIRS * 2 * L2Ring.counters_of(self.slots)

    @property
    def counter_bytes(self) -> int:
        return -(-self.counters * SLOT_STRIDE // 256) * 256

    @property
    def workspace_bytes(self) -> int:
        return COUNTERS + 2 * self.counter_bytes + 256

    @property
    def cache(self) -> Cache:
        return Cache.KEEP if self.hints else Cache.DEFAULT


def _write(probe: Probe, target: Value, thread: Value, number: Value) -> None:
    """A group writes a tile: word w of 16-byte piece p is number + p + w."""

    def part(start: Value) -> None:
        for piece in range(UNROLL):
            at = start + piece * 16 * probe.group + thread * 16
            words = [number + at // 16 + word for word in range(4)]
            store(vector(words), offset(target, at), cache=probe.cache)

    for_(0, probe.slot_bytes, UNROLL * 16 * probe.group, part)


def _sum(probe: Probe, source: Value, thread: Value, total: Value) -> Value:
    """A group reads a tile; `total` plus what the thread saw."""

    def part(start: Value, total: Value) -> list[Value]:
        pieces = [
            load(offset(source, start + piece * 16 * probe.group + thread * 16), "vector<4xi32>", cache=probe.cache)
            for piece in range(UNROLL)
        ]
        for piece in pieces:
            for word in unpack(piece):
                total = total + word
        return [total]

    return for_(0, probe.slot_bytes, UNROLL * 16 * probe.group, part, [total])[0]


@dataclasses.dataclass(frozen=True)
class _Side:
    """One block of a pair: number of the pair, whether it produces, and the threads' groups."""

    pair: Value
    first: Value
    group: Value
    local: Value
    lead: Value
    meet: NamedBarrier

    @staticmethod
    def open(size: int) -> _Side:
        thread, blocks = thread_id(), grid_size()
        number, half = by_multiprocessor(block_id(), blocks), blocks // 2
        group, local = thread // size, thread % size
        return _Side(
            select(number < half, number, number - half),
            number < half,
            group,
            local,
            local == 0,
            NamedBarrier(group + 1, size),
        )


def _ring(probe: Probe, memory: Value, counters: Semaphores, number: Value) -> L2Ring:
    """Ring `number` of all: there are two a pair."""
    start = offset(memory, i64(number) * (probe.slots * probe.slot_bytes))
    return L2Ring(start, probe.slot_bytes, probe.slots, counters, number * L2Ring.counters_of(probe.slots))


def pairs(probe: Probe) -> Kernel:
    """Every pair streams tiles from one multiprocessor to the other; a group of threads has every `slots`-th tile."""
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"], probe.group * probe.slots)
    with kernel.body() as (workspace, memory, out, count):
        kernel.arena.take("alone", ALONE)
        counters = Semaphores.open(workspace, probe.counter_bytes, probe.counters, debug=False)
        side = _Side.open(probe.group)
        ring = _ring(probe, memory, counters, side.pair)

        def produce(number: Value) -> None:
            if_(side.lead, lambda: ring.acquire(number))
            side.meet.sync()
            _write(probe, ring.pointer(number), side.local, number)
            side.meet.sync()
            if_(side.lead, lambda: ring.push(number))

        def consume(number: Value, total: Value) -> list[Value]:
            if_(side.lead, lambda: ring.pop(number))
            side.meet.sync()
            total = _sum(probe, ring.pointer(number), side.local, total)
            side.meet.sync()
            if_(side.lead, lambda: ring.release(number))
            return [total]

        def consumer() -> None:
            total = for_(side.group, count, probe.slots, consume, [i32(0)])[0]
            store(total, offset(out, (side.pair * (probe.group * probe.slots) + thread_id()) * 4))

        if_(side.first, lambda: for_(side.group, count, probe.slots, produce) and None, consumer)
        counters.close(probe.group * probe.slots)
    return kernel


def there_and_back(probe: Probe) -> Kernel:
    """Every pair hands one tile there and another back, again and again: two hand-offs a round."""
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"], probe.group)
    with kernel.body() as (workspace, memory, out, count):
        kernel.arena.take("alone", ALONE)
        counters = Semaphores.open(workspace, probe.counter_bytes, probe.counters, debug=False)
        side = _Side.open(probe.group)
        there, back = (_ring(probe, memory, counters, side.pair + PAIRS * way) for way in range(2))

        def send(ring: L2Ring, number: Value) -> None:
            if_(side.lead, lambda: ring.acquire(number))
            side.meet.sync()
            _write(probe, ring.pointer(number), side.local, number)
            side.meet.sync()
            if_(side.lead, lambda: ring.push(number))

        def receive(ring: L2Ring, number: Value, total: Value) -> Value:
            if_(side.lead, lambda: ring.pop(number))
            side.meet.sync()
            total = _sum(probe, ring.pointer(number), side.local, total)
            side.meet.sync()
            if_(side.lead, lambda: ring.release(number))
            return total

        def first() -> None:
            def turn(number: Value, total: Value) -> list[Value]:
                send(there, number)
                return [receive(back, number, total)]

            total = for_(0, count, 1, turn, [i32(0)])[0]
            store(total, offset(out, (side.pair * probe.group + side.local) * 4))

        def second() -> None:
            def turn(number: Value, total: Value) -> list[Value]:
                total = receive(there, number, total)
                send(back, number)
                return [total]

            total = for_(0, count, 1, turn, [i32(0)])[0]
            store(total, offset(out, ((side.pair + PAIRS) * probe.group + side.local) * 4))

        if_(side.first, first, second)
        counters.close(probe.group)
    return kernel


def exchange(probe: Probe) -> Kernel:
    """Every block of a cluster gives its tile to all others and waits for theirs, again and again: one hand-off a round.

    Two buffers take turns: who has sent tile n has read all of n - 1.
    """
    size, slot = probe.cluster, probe.slot_bytes
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"], 256, cluster=size)
    with kernel.body() as (_, _, out, count):
        thread, rank = thread_id(), cluster_rank()
        bars = kernel.shared(kernel.arena.take("barriers", 16, 8))
        tiles = kernel.shared(kernel.arena.take("tiles", 2 * size * slot, 1024))
        full = [Barrier(offset(bars, 8 * half)) for half in range(2)]
        initialize([(barrier, 1) for barrier in full], cluster=True)

        def arm(barrier: Barrier) -> None:
            if_(thread == 0, lambda: barrier.arrive_and_expect((size - 1) * slot))

        for barrier in full:
            arm(barrier)
        sync_cluster()  # nobody sends before everybody expects

        def turn(number: Value, total: Value) -> list[Value]:
            half = number & 1
            barrier = Barrier(offset(bars, half * 8))
            buffer = offset(tiles, half * (size * slot))
            mine = offset(buffer, rank * slot)
            for start in range(0, slot, 16 * 256):
                at = thread * 16 + start
                words = [number + rank + at // 16 + word for word in range(4)]
                store(vector(words), offset(mine, at))
            fence_async_shared()
            sync_block()

            def push(other: Value) -> None:
                target = (rank + other) % size
                push_span(mine, mine, slot, barrier, target)

            if_(thread == 0, lambda: for_(1, size, 1, push) and None)
            barrier.wait((number >> 1) & 1)
            arm(barrier)
            for other in range(size):
                place = offset(buffer, (rank + other) % size * slot)
                total = total + load(offset(place, thread % (slot // 4) * 4), "i32")
            return [total]

        total = for_(0, count, 1, turn, [i32(0)])[0]
        store(total, offset(out, (block_id() * 256 + thread) * 4))
        sync_cluster()
    return kernel


PROBES: dict[str, Probe] = {
    **{f"pairs_{kb}k_{slots}": Probe(pairs, kb << 10, slots) for kb, slots in ((16, 4), (32, 4), (64, 2), (64, 4), (128, 4))},
    "pairs_64k_4_wide": Probe(pairs, 64 << 10, 4, group=256),
    "pairs_64k_4_plain": Probe(pairs, 64 << 10, 4, hints=False),
    "handoff_l2_16k": Probe(there_and_back, 16 << 10),
    "handoff_l2_64k": Probe(there_and_back, 64 << 10),
    "handoff_l2_64k_wide": Probe(there_and_back, 64 << 10, group=512),
    **{f"handoff_cluster{size}_{kb}k": Probe(exchange, kb << 10, cluster=size) for size in (2, 4, 8) for kb in (4, 8)},
}
