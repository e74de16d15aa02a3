"""What a tile of a stage costs on a described machine: work in plain numbers goes in, seconds and bytes come out. No IR.

A multiprocessor does a tile in four parts:

    start    from the end of its waits to the first operands
    busy     products, other arithmetic and loads side by side: the slowest of them
    finish   from the last sum to the last byte of the results in memory
    post     until a tile that waits for this one knows

A block that goes on to the next tile of the same task overlaps them: then a tile takes `busy` and `turn`. The engines differ in
what they overlap, so each has its own rates (`rates.ENGINES`), fitted to tiles of the zoo. They are not those by which engines
choose tiles: `mma`'s are fitted apart from `mma.cost`, and differ (docs/rates.md). Other machines have their own rates and
clocks (`kitsune_mlir.machine.target`), and the same `rates.ENGINES` scaled by them.
"""

from __future__ import annotations

import dataclasses
import math

from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target, find_target

__all__ = ["Cost", "Work", "bulk_rate", "cost_of", "stage_seconds"]


@dataclasses.dataclass(frozen=True)
class Work:
    """One stage cut into tiles; everything but `tiles` and `distinct_bytes` is of one tile.

    Attributes:
        engine: which engine does it.
        tiles: how many there are.
        tensor_ops: operations of products, two for each multiply-add.
        vector_ops: other operations on elements, weighted by what they cost beside an addition.
        compared: the same of networks that sort: what a stage takes, but needs not.
        read_bytes, write_bytes: asked for and written, atomic updates included.
        atomic_bytes: of these, updated by atomics.
        distinct_bytes: read by all tiles together, each byte once: what must come from memory at least.
        levels: reductions one after the other.
        element_bytes: of the operands of products, or of the narrowest tensor.
        rows, cols, terms: of the largest product; zeros without one.
        layers: products one after the other.
        pieces: blocks that share a tile.
        steps: hand-offs between these, one after the other (a recurrent layer's). step_seconds: that each step takes, its
            products included.
        gathered_bytes: of `read_bytes`, in single elements or rows named by indices.
        copied_bytes: of `read_bytes`, operands of products that threads copy because no bulk copy can.
        cycles: that a tile takes, where its engine has counted them itself; nothing else is looked at then.
    """

    engine: str
    tiles: int
    tensor_ops: float = 0.0
    vector_ops: float = 0.0
    compared: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    atomic_bytes: float = 0.0
    distinct_bytes: float = 0.0
    levels: int = 0
    element_bytes: int = 2
    rows: int = 0
    cols: int = 0
    terms: int = 0
    layers: int = 0
    pieces: int = 1
    steps: int = 0
    step_seconds: float = 0.0
    gathered_bytes: float = 0.0
    copied_bytes: float = 0.0
    cycles: float = 0.0


REFERENCE = find_target("h200")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What `cost_of` finds; times are seconds of one tile (or piece of one) on one multiprocessor that it has for itself.

    Attributes:
        start, finish, turn: see the module. `poll`: what a wait takes that is met already.
        tensor, vector, load, store: seconds of each kind of work alone. `mixed`: see `EngineRates`.
        fixed: latencies inside the tile that nothing overlaps.
        post: until a waiting tile knows.
        dram_bytes: of all tiles, to and from memory, if nothing was in L2 before and everything stays there once read.
        l2_bytes: of all tiles, between L2 and the multiprocessors.
        tensor_ops, vector_ops: of all tiles.
        overlaps: share of the stores that the block's next tile hides.
    """

    start: float
    finish: float
    turn: float
    poll: float
    post: float
    tensor: float
    vector: float
    mixed: float
    load: float
    store: float
    fixed: float
    dram_bytes: float
    l2_bytes: float
    tensor_ops: float
    vector_ops: float
    overlaps: float

    def busy(self, crowd: int = 1) -> float:
        """From the first operands to the last sum, with so many blocks on the multiprocessor, which share its pipes."""
        arithmetic = max(self.tensor, self.vector) + self.mixed * min(self.tensor, self.vector)
        return max(arithmetic * max(1.0, crowd * rates.BLOCK_SHARE), self.load) + self.fixed

    @property
    def seconds(self) -> float:
        """One tile alone, from the end of its waits to its results in memory."""
        return self.start + self.busy() + self.store + self.finish

    @property
    def step(self) -> float:
        """What each further tile of a block adds."""
        return self.turn + self.busy() + (1 - self.overlaps) * (self.store + self.finish)


def cost_of(work: Work, target: Target, own: rates.EngineRates | None = None) -> Cost:
    """The cost of one tile (of one piece, where several blocks share it) of a stage on a GPU.

    Args:
        own: how the engine works; None is as `rates.ENGINES` says.
    """
    engine = traits_of(work.engine)
    own = own or engine.rates
    clock = target.vector_rate / target.workers / (REFERENCE.vector_rate / REFERENCE.workers)
    tensor_rate = own.tensor * target.matrix_rate / target.workers * (2 / max(2, work.element_bytes))
    if work.element_bytes == 4:
        tensor_rate *= own.f32_tensor / engine.f32_products
    vector_rate = own.vector * target.vector_rate / 2 / target.workers  # a fused multiply-add counts as two in the target
    caches = target.cache_rate / target.part / REFERENCE.cache_rate
    fixed = (work.levels * own.level + work.steps * work.step_seconds) / clock
    if work.gathered_bytes:
        fixed += own.gather / clock
    if work.pieces > 1:  # sums of all pieces are written, and read again: by the last one, or by each a part of its own
        partial = 4.0 * max(1, work.rows) * max(1, work.cols)
        read = 2 if engine.spreads_sums else work.pieces
        fixed += rates.MEET + read * partial / (rates.PARTIAL_RATE * caches)
    if engine.beside_columns is not None and work.cols > engine.beside_columns:
        fixed += (work.gathered_bytes / rates.GATHERED_RATE + work.atomic_bytes / rates.ADDED_RATE) / clock
    load = (work.read_bytes - work.copied_bytes) / (own.load_rate * caches) + work.copied_bytes / (rates.COPY_RATE * clock)
    if work.element_bytes == 4 and work.tensor_ops and own.halving_rate:
        load = max(load, work.read_bytes / (own.halving_rate * clock))
    cost = Cost(
        start=own.start / clock,
        finish=own.finish / clock,
        turn=own.turn / clock,
        poll=own.poll / clock,
        post=rates.POST / clock,
        tensor=0.0 if work.steps else work.tensor_ops / work.pieces / tensor_rate,
        vector=(work.vector_ops + work.compared) / work.pieces / vector_rate,
        mixed=own.mixed,
        load=load / work.pieces,
        store=work.write_bytes / work.pieces / (own.store_rate * caches),
        fixed=fixed,
        dram_bytes=work.distinct_bytes + work.tiles * work.write_bytes,
        l2_bytes=work.tiles * (work.read_bytes + work.write_bytes),
        tensor_ops=work.tiles * work.tensor_ops,
        vector_ops=work.tiles * work.vector_ops,
        overlaps=own.overlaps,
    )
    if work.cycles:
        return dataclasses.replace(cost, fixed=work.cycles / (rates.CLOCK * clock), tensor=0.0, vector=0.0, load=0.0, store=0.0)
    return cost


def stage_seconds(work: Work, target: Target, workers: int | None = None, dram_share: float = 1.0) -> float:
    """Time of a whole stage that starts at once on `workers` multiprocessors (all, if not said).

    Args:
        dram_share: of the bandwidth of the machine's memory, what this stage is given.
    """
    cost = cost_of(work, target)
    count = workers or target.workers
    tiles = math.ceil(work.tiles * work.pieces / count)
    alone = cost.seconds + (tiles - 1) * cost.step
    streaming = cost.dram_bytes / (target.dram_rate * dram_share)
    caching = cost.l2_bytes / bulk_rate(target)
    return max(alone, streaming + cost.start, caching + cost.start)


def bulk_rate(target: Target) -> float:
    """Bytes a second that bulk copies bring from L2 to all multiprocessors together."""
    return target.bulk_rate or rates.BULK_RATE * target.cache_rate
