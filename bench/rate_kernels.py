"""Kernels that each do one thing that cost models have a rate for, again and again (`bench.rates` measures them).

All take pointers to counters, memory and notes, and a number of rounds. A block leaves notes of `NOTES` 64-bit words: when its
loop began and ended in nanoseconds, how many cycles it took, and cycles of its parts. Every one also leaves what shows that the
data came through: `bench.rates` checks it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import (
    block_id,
    for_,
    global_timer,
    grid_size,
    if_,
    sync_block,
    thread_id,
    warp_id,
)
from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, reduce_add, store
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i32, i64, select, unpack, vector
from kitsune_mlir.codegen.gpu.interface.semaphores import post, wait_at_least
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, Ring, Slot, fence_async, fence_async_shared, initialize
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["PROBES", "Probe"]

BLOCKS = 132
STRIDE = 128
"""Bytes between the counters of two blocks: a line each."""
ALONE = 120 << 10
"""Bytes of shared memory of which two blocks do not fit one multiprocessor."""
NOTES, PARTS = 8, 4
THREADS = 256
TILE = SharedTile(128, 64, 2)
"""Of 16 KB: 16 bytes for each of 256 threads, four times. As large are the pieces that bulk copies read."""
WEIGHTS = SharedTile(64, 64, 2)
SIXTY_FOURTH = 0x3C803C80
"""Two bf16 numbers: a product with 64 of them gives the operand's number back, if its numbers are equal."""
WRAP = 128
"""Numbers that are handed on count up to here, and start again: bf16 has all of them."""
READ_BYTES = 16 << 20
READ_SHAPE = (2048, 4096)  # of bf16
READERS, READ_AT_ONCE = 512, 8
STAGES = 12
WRITTEN_BYTES = 128 << 10  # by each block, again and again
WRITTEN_AT_ONCE = 8


@dataclasses.dataclass(frozen=True)
class Probe:
    """A kernel to be measured.

    Attributes:
        make: emits it.
        way: in which of its ways it works.
        rounds: of its loop.
        grids: blocks that it is launched with, one launch after the other.
        bytes: that a block moves in a round.
        pieces: blocks that meet.
        memory_bytes: that it works on.
        ones: whether these hold the number 1 in every 32 bits at first, and not 0.
    """

    make: Callable[[Probe], Kernel]
    way: str
    rounds: int
    grids: tuple[int, ...] = (BLOCKS,)
    bytes: int = 0
    pieces: int = 1
    memory_bytes: int = BLOCKS * TILE.bytes
    ones: bool = False


def _clock() -> Value:
    return inline_ptx("mov.u64 $0, %clock64;", results=["i64"], memory=True)[0]


def _noted(out: Value, emit: Callable[[], Sequence[Value]]) -> None:
    """Run a loop that returns cycles of its parts, and leave the block's notes."""
    sync_block()
    begin, first = global_timer(), _clock()
    parts = emit()
    sync_block()
    notes = [begin, global_timer(), _clock() - first, *parts]
    place = offset(out, block_id() * (8 * NOTES))

    def write() -> None:
        for number, note in enumerate(notes):
            store(note, offset(place, 8 * number))

    if_(thread_id() == 0, write)


def _counter(counters: Value, number: Value) -> Value:
    return offset(counters, number * STRIDE)


def hand_off(probe: Probe) -> Kernel:
    """Pairs of blocks hand a tile there and another back: each adds 1 to what it reads, and writes that.

    Ways: "post" moves no data. "tile" moves 16 KB by plain loads and stores. "product" reads by TMA, multiplies, and stores
    from registers; "bulk" does the same, but stores through shared memory by TMA. Parts of the notes: until the operands are in
    shared memory; the product; from there to the last store instruction (all of it, for "tile"); until it may be announced.
    """
    multiplies = probe.way in ("product", "bulk")
    tiles = TensorMap.contiguous("bf16", (BLOCKS * TILE.rows, TILE.cols), (TILE.rows, TILE.cols))
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"] + [tiles] * multiplies, THREADS)
    with kernel.body() as (counters, memory, out, count, *maps):
        take = kernel.arena.take
        take("alone", ALONE)
        full = Barrier(kernel.shared(take("barrier", 8, 8)))
        target, staging = (kernel.shared(take(name, TILE.bytes, 1024)) for name in ("tile", "staging"))
        weights = kernel.shared(take("weights", WEIGHTS.bytes, 1024))
        thread, block, half = thread_id(), block_id(), grid_size() // 2
        lead, partner, group = thread == 0, (block + half) % (2 * half), warp_id(thread, 4)
        mine, theirs = (offset(memory, i64(number) * TILE.bytes) for number in (block, partner))
        word = constant(SIXTY_FOURTH, "i32")
        for start in range(0, WEIGHTS.bytes, 16 * THREADS):
            store(vector([word] * 4), offset(weights, thread * 16 + start))
        fence_async_shared()
        initialize([(full, 1)])

        def waited(number: Value) -> Value:
            """The leader's clock when the other block's tile is there."""

            def poll() -> list[Value]:
                wait_at_least(_counter(counters, block), number + 1)
                if multiplies:
                    fence_async()
                time = _clock()
                if multiplies:
                    full.arrive_and_expect(TILE.bytes)
                    tma.load_tile(target, maps[0], full, [partner * TILE.rows, 0])
                return [time]

            return if_(lead, poll, lambda: [i64(0)], ["i64"])[0]

        def tell() -> None:
            if_(lead, lambda: post(_counter(counters, partner)))

        def moved(time: Value) -> list[Value]:
            sync_block()
            places = [thread * 16 + start for start in range(0, TILE.bytes, 16 * THREADS)]
            pieces = [load(offset(theirs, at), "vector<4xi32>") for at in places]
            for at, piece in zip(places, pieces, strict=True):
                store(vector([number + 1 for number in unpack(piece)]), offset(mine, at))
            sync_block()
            return [i64(0), i64(0), _clock() - time, i64(0)]

        def multiplied(number: Value, time: Value) -> list[Value]:
            full.wait(number & 1)
            loaded = _clock()
            a = wgmma.SharedOperand(TILE, target, row=group * 64)
            sums = wgmma.wait(0, wgmma.multiply(None, a, wgmma.SharedOperand(WEIGHTS, weights), 64))
            done = _clock()
            words = pack_values([select(sum >= float(WRAP), 0.0, sum + 1.0) for sum in sums], "bf16")
            result = mine if probe.way == "product" else staging
            for piece in range(4):
                store(vector(words[4 * piece : 4 * piece + 4]), offset(result, thread * 16 + piece * 16 * THREADS))
            stored = _clock()
            (fence_async if probe.way == "product" else fence_async_shared)()
            sync_block()
            if probe.way == "bulk":

                def write() -> None:
                    tma.store_span(mine, staging, TILE.bytes)
                    tma.commit()
                    tma.wait(0)
                    fence_async()

                if_(lead, write)
            return [loaded - time, done - loaded, stored - done, _clock() - stored]

        def turn(number: Value, *parts: Value) -> list[Value]:
            time = waited(number)
            took = [i64(0)] * PARTS
            if probe.way != "post":
                took = multiplied(number, time) if multiplies else moved(time)
            tell()
            return [sum + part for sum, part in zip(parts, took, strict=True)]

        def loop() -> list[Value]:
            if_(block < half, tell)
            return for_(0, count, 1, turn, [i64(0)] * PARTS)

        _noted(out, loop)
    return kernel


def reads(probe: Probe) -> Kernel:
    """Every block reads 16 MB of L2 from a start of its own, `probe.bytes` a round; its counter gets what it saw, added up.

    Ways: "plain", 16 bytes a load; "span" and "tile", bulk copies of 16 KB, of one run of memory or of 128 rows of a matrix.
    """
    boxes = TensorMap.contiguous("bf16", READ_SHAPE, (TILE.rows, TILE.cols))
    plain = probe.way == "plain"
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"] + [boxes] * (probe.way == "tile"), READERS if plain else 128)
    with kernel.body() as (counters, memory, out, count, *maps):
        thread, block = thread_id(), block_id()

        def seen(total: Value) -> list[Value]:
            reduce_add(_counter(counters, block), total)
            return []

        def loads() -> list[Value]:
            def part(number: Value, total: Value) -> list[Value]:
                start = (number + block * 2) * probe.bytes & (READ_BYTES - 1)
                places = [start + thread * 16 + piece * 16 * READERS for piece in range(READ_AT_ONCE)]
                for found in [load(offset(memory, at), "vector<4xi32>") for at in places]:
                    for word in unpack(found):
                        total = total + word
                return [total]

            return seen(for_(0, count, 1, part, [i32(0)])[0])

        def copies() -> list[Value]:
            across, pieces = READ_SHAPE[1] // TILE.cols, READ_BYTES // TILE.bytes

            def start(number: Value, stage: Value | int) -> None:
                barrier, place = ring.full(stage), offset(buffer, stage * TILE.bytes)
                barrier.arrive_and_expect(TILE.bytes)
                if probe.way == "span":
                    piece = (number + block * 8) % pieces
                    tma.load_span(place, offset(memory, piece * TILE.bytes), TILE.bytes, barrier)
                else:
                    piece = (number + block * across) % pieces
                    tma.load_tile(place, maps[0], barrier, [piece // across * TILE.rows, piece % across * TILE.cols])

            def step(number: Value, total: Value, *state: Value) -> list[Value]:
                slot = Slot(*state)
                ring.full(slot.stage).wait(slot.parity)
                total = total + load(offset(buffer, slot.stage * TILE.bytes), "i32")
                following = number + STAGES
                if_(following < count, lambda: start(following, slot.stage))
                return [total, *ring.next(slot).values]

            def stream() -> None:
                for stage in range(STAGES):
                    start(i32(stage), stage)
                seen(for_(0, count, 1, step, [i32(0), *ring.consumer_start().values])[0])

            if_(thread == 0, stream)
            return []

        if plain:
            kernel.arena.take("alone", ALONE)
            _noted(out, loads)
        else:
            ring = Ring(kernel.shared(kernel.arena.take("barriers", Ring.bytes(STAGES), 8)), STAGES)
            buffer = kernel.shared(kernel.arena.take("pieces", STAGES * TILE.bytes, 1024))
            initialize(ring.barriers(1, 1))
            _noted(out, copies)
    return kernel


def writes(probe: Probe) -> Kernel:
    """Every block writes 128 KB of its own, 16 bytes a store, again and again; each word is the number of the round."""
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"], THREADS)
    with kernel.body() as (_, memory, out, count):
        kernel.arena.take("alone", ALONE)
        thread, mine = thread_id(), offset(memory, i64(block_id()) * WRITTEN_BYTES)

        def part(number: Value) -> None:
            start = number * probe.bytes & (WRITTEN_BYTES - 1)
            for piece in range(WRITTEN_AT_ONCE):
                store(vector([number] * 4), offset(mine, start + thread * 16 + piece * 16 * THREADS))

        _noted(out, lambda: for_(0, count, 1, part))
    return kernel


def exchange(probe: Probe) -> Kernel:
    """`pieces` blocks write `bytes` of partial results each, meet, and each adds up an equal part of all of them.

    What a block writes waits for what it read before. Two buffers take turns: who meets for a round has read all of the last.
    """
    pieces, share = probe.pieces, probe.bytes // probe.pieces
    kernel = Kernel("probe", ["pointer"] * 3 + ["i32"], THREADS)
    with kernel.body() as (counters, memory, out, count):
        kernel.arena.take("alone", ALONE)
        thread, block = thread_id(), block_id()
        rank, group = block % pieces, block // pieces
        lead, met = thread == 0, _counter(counters, group + BLOCKS)
        zero = load(offset(met, 4), "i32")  # beside the counter: the compiler does not know that it is

        def partials(number: Value, other: Value) -> Value:
            return offset(memory, i64((number & 1) * BLOCKS + group * pieces + other) * max(16, probe.bytes))

        def write(number: Value, total: Value) -> None:
            word, target = rank + number + (total & zero), partials(number, rank)

            def part(start: Value) -> None:
                for piece in range(WRITTEN_AT_ONCE):
                    store(vector([word] * 4), offset(target, start + thread * 16 + piece * 16 * THREADS))

            for_(0, probe.bytes, WRITTEN_AT_ONCE * 16 * THREADS, part)

        def read(number: Value, total: Value) -> Value:
            at_once = max(1, WRITTEN_AT_ONCE // pieces)
            sources = [offset(partials(number, i32(other)), rank * share) for other in range(pieces)]

            def part(start: Value, total: Value) -> list[Value]:
                places = [start + thread * 16 + piece * 16 * THREADS for piece in range(at_once)]
                for found in [load(offset(source, at), "vector<4xi32>") for at in places for source in sources]:
                    for word in unpack(found):
                        total = total + word
                return [total]

            return for_(0, share, at_once * 16 * THREADS, part, [total])[0]

        def announce(number: Value) -> None:
            post(met)
            wait_at_least(met, (number + 1) * pieces)

        def turn(number: Value, total: Value) -> list[Value]:
            if probe.bytes:
                write(number, total)
            sync_block()
            if_(lead, lambda: announce(number))
            sync_block()
            return [read(number, total) if probe.bytes else total]

        def loop() -> list[Value]:
            reduce_add(_counter(counters, block), for_(0, count, 1, turn, [i32(0)])[0])
            return []

        _noted(out, loop)
    return kernel


SHARED_BYTES = (0, 32 << 10, 64 << 10, 96 << 10)
"""Partial results of a block: none, and f32 tiles of 128 x 64, 128 x 128 and 128 x 192. Two buffers of all fit L2."""
READING = {"plain": READERS * READ_AT_ONCE * 16, "span": TILE.bytes, "tile": TILE.bytes}
GRIDS = (1, BLOCKS // 4, BLOCKS // 2, BLOCKS)

PROBES: dict[str, Probe] = {
    **{f"hand_off_{way}": Probe(hand_off, way, 4000) for way in ("post", "tile", "product", "bulk")},
    **{
        f"reads_{way}": Probe(reads, way, (64 << 20) // bytes, GRIDS, bytes, memory_bytes=READ_BYTES, ones=True)
        for way, bytes in READING.items()
    },
    "writes": Probe(writes, "plain", 1024, GRIDS, WRITTEN_AT_ONCE * 16 * THREADS, memory_bytes=BLOCKS * WRITTEN_BYTES),
    **{
        f"exchange_{pieces}_{bytes >> 10}k": Probe(
            exchange, "", 1000, (BLOCKS // pieces * pieces,), bytes, pieces, 2 * BLOCKS * max(16, bytes)
        )
        for pieces in (2, 4, 8)
        for bytes in SHARED_BYTES
    },
}
