"""What a tile of a stage costs on a described machine: work in plain numbers goes in, seconds and bytes come out. No IR.

A multiprocessor does a tile in four parts:

    start    from the end of its waits to the first operands
    busy     products, other arithmetic and loads side by side: the slowest of them
    finish   from the last sum to the last byte of the results in memory
    post     until a tile that waits for this one knows

A block that goes on to the next tile of the same task overlaps them: then a tile takes `busy` and `turn`. The engines differ in
what they overlap, so each has its own constants (`ENGINES`). They were fitted to the tile times of the zoo on an H200
(bench/results/simulate-h200.json); other machines have their own rates and clocks (`kitsune_mlir.machine.target`), and the same
constants scaled by them.
"""

from __future__ import annotations

import dataclasses
import math

from kitsune_mlir.machine.target import Target, find_target

__all__ = ["ENGINES", "Constants", "Cost", "Work", "bulk_rate", "cost_of", "stage_seconds"]


@dataclasses.dataclass(frozen=True)
class Work:
    """One stage cut into tiles; everything but `tiles` and `distinct_bytes` is of one tile.

    Attributes:
        engine: which engine does it.
        tiles: how many there are.
        tensor_ops: operations of products, two for each multiply-add.
        vector_ops: other operations on elements, weighted by what they cost beside an addition.
        read_bytes, write_bytes: asked for and written, atomic updates included.
        atomic_bytes: of these, updated by atomics.
        distinct_bytes: read by all tiles together, each byte once: what must come from memory at least.
        levels: reductions one after the other.
        element_bytes: of the operands of products, or of the narrowest tensor.
        rows, cols, terms: of the largest product; zeros without one.
        layers: products one after the other.
        pieces: blocks that share a tile.
        gathered_bytes: of `read_bytes`, in single elements or rows named by indices.
        copied_bytes: of `read_bytes`, operands of products that threads copy because no bulk copy can.
        cycles: that a tile takes, where its engine has counted them itself; nothing else is looked at then.
    """

    engine: str
    tiles: int
    tensor_ops: float = 0.0
    vector_ops: float = 0.0
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
    gathered_bytes: float = 0.0
    copied_bytes: float = 0.0
    cycles: float = 0.0


@dataclasses.dataclass(frozen=True)
class Constants:
    """How an engine works, on the machine that the constants were fitted on.

    Attributes:
        start, finish, turn: seconds, see above; `finish` beside what the stores take.
        poll: seconds that a wait takes which is met already.
        tensor: share of the multiprocessor's rate of products that it reaches.
        vector: the same for other arithmetic.
        mixed: share of the smaller one of these two that does not run beside the larger one.
        load_rate: bytes a second that it takes from L2 into one multiprocessor.
        store_rate: the same from registers to L2.
        level: seconds that each reduction adds to a tile.
        overlaps: share of the stores and of `finish` that the block's next tile hides.
    """

    start: float
    finish: float
    turn: float
    poll: float
    tensor: float
    vector: float
    mixed: float
    load_rate: float
    store_rate: float
    level: float = 0.0
    overlaps: float = 0.0


US = 1e-6
_STORE = 3.6e4 / US
ENGINES: dict[str, Constants] = {
    "mma": Constants(1.3 * US, 0.6 * US, 0.6 * US, 0.0, 0.97, 0.5, 0.3, 1.75e11, _STORE, 0.0, 0.7),
    "conv": Constants(1.8 * US, 0.6 * US, 0.6 * US, 0.0, 0.8, 0.5, 0.3, 1.75e11, _STORE, 0.0, 0.7),
    "chain": Constants(2.0 * US, 0.6 * US, 0.3 * US, 0.0, 1.06, 0.9, 0.2, 1.2e11, 3.6e10, 0.4 * US, 0.5),
    "gemv": Constants(1.2 * US, 0.8 * US, 0.3 * US, 0.0, 0.3, 0.5, 0.0, 6.0e10, 3.6e10, 0.0, 0.5),
    "attention": Constants(2.0 * US, 1.0 * US, 0.6 * US, 0.0, 0.7, 0.4, 0.3, 1.2e11, 3.6e10, 0.3 * US, 0.5),
    "pairs": Constants(1.5 * US, 0.6 * US, 0.5 * US, 0.7 * US, 0.3, 0.5, 0.3, 7.0e10, 3.6e10, 0.0),
    "simt": Constants(1.1 * US, 0.4 * US, 0.5 * US, 0.7 * US, 0.1, 0.9, 0.0, 4.5e10, 5.0e10, 0.2 * US),
    "depthwise": Constants(1.1 * US, 0.4 * US, 0.5 * US, 0.7 * US, 0.03, 0.9, 0.0, 6.0e10, 5.0e10),
    "scatter": Constants(1.2 * US, 0.6 * US, 0.4 * US, 0.7 * US, 0.1, 0.8, 0.0, 4.5e10, 3.0e10, 0.0),
    "ordered": Constants(4.0 * US, 1.0 * US, 2.0 * US, 0.7 * US, 0.1, 0.8, 0.0, 4.5e10, 3.0e10, 0.0),
    "generic": Constants(1.0 * US, 0.4 * US, 0.3 * US, 0.7 * US, 0.0025, 0.06, 1.0, 2.0e10, 2.0e10, 0.5 * US),
}
"""By the engine's name. `mma`'s rates are those of `mma.cost`."""

REFERENCE = find_target("h200")
CLOCK = 1.9e9
"""Cycles a second of the reference, at which an engine's own cycles are counted."""
POST = 0.7e-6
"""Seconds from a post to the end of a wait for it, through L2."""
GATHER = 1.0e-6
"""Seconds that a tile takes longer whose addresses are read from memory first."""
COPY_RATE = 3.4e9
"""Bytes a second of a product's operands that threads copy, element by element, where no bulk copy can."""
ALONE = 0.5
"""Share of a multiprocessor's pipes that one block keeps busy: so many blocks side by side do not slow each other down."""
PARTIAL_RATE = 5.2e4 / US
MEET = 1.5 * US
SHARING = ("mma", "conv")
"""Engines of which all pieces of a tile add up a part of its columns (`codegen/gpu/contraction/split_k.py`)."""
NARROW = 256
GATHERED_RATE, ADDED_RATE = 4.0e10, 1.2e10
"""Columns up to which a chain's gathers and additions run beside its products; bytes a second of those of wider chains, whose
registers are full."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What `cost_of` finds; times are seconds of one tile (or piece of one) on one multiprocessor that it has for itself.

    Attributes:
        start, finish, turn: see the module. `poll`: what a wait takes that is met already.
        tensor, vector, load, store: seconds of each kind of work alone. `mixed`: see `Constants`.
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
        return max(arithmetic * max(1.0, crowd * ALONE), self.load) + self.fixed

    @property
    def seconds(self) -> float:
        """One tile alone, from the end of its waits to its results in memory."""
        return self.start + self.busy() + self.store + self.finish

    @property
    def step(self) -> float:
        """What each further tile of a block adds."""
        return self.turn + self.busy() + (1 - self.overlaps) * (self.store + self.finish)


def cost_of(work: Work, target: Target) -> Cost:
    """The cost of one tile (of one piece, where several blocks share it) of a stage on a GPU."""
    own = ENGINES.get(work.engine, ENGINES["generic"])
    clock = target.vector_rate / target.workers / (REFERENCE.vector_rate / REFERENCE.workers)
    tensor_rate = own.tensor * target.matrix_rate / target.workers * (2 / max(2, work.element_bytes))
    if work.engine in ("mma", "conv") and work.element_bytes == 4:
        tensor_rate /= 3  # each f32 product is three of tf32 numbers
    vector_rate = own.vector * target.vector_rate / 2 / target.workers  # a fused multiply-add counts as two in the target
    caches = target.cache_rate / REFERENCE.cache_rate
    fixed = work.levels * own.level / clock
    if work.gathered_bytes:
        fixed += GATHER / clock
    if work.pieces > 1:  # sums of all pieces are written, and read again: by the last one, or by each a part of its own
        partial = 4.0 * max(1, work.rows) * max(1, work.cols)
        read = 2 if work.engine in SHARING else work.pieces
        fixed += MEET + read * partial / (PARTIAL_RATE * caches)
    if work.engine == "chain" and work.cols > NARROW:
        fixed += (work.gathered_bytes / GATHERED_RATE + work.atomic_bytes / ADDED_RATE) / clock
    load = (work.read_bytes - work.copied_bytes) / (own.load_rate * caches) + work.copied_bytes / (COPY_RATE * clock)
    cost = Cost(
        start=own.start / clock,
        finish=own.finish / clock,
        turn=own.turn / clock,
        poll=own.poll / clock,
        post=POST / clock,
        tensor=work.tensor_ops / work.pieces / tensor_rate,
        vector=work.vector_ops / work.pieces / vector_rate,
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
        return dataclasses.replace(cost, fixed=work.cycles / (CLOCK * clock), tensor=0.0, vector=0.0, load=0.0, store=0.0)
    return cost


def stage_seconds(
    work: Work, target: Target, workers: int | None = None, dram_share: float = 1.0, l2_share: float = 1.0
) -> float:
    """Time of a whole stage that starts at once on `workers` multiprocessors (all, if not said).

    Args:
        dram_share, l2_share: of the machine's bandwidth that this stage is given.
    """
    cost = cost_of(work, target)
    count = workers or target.workers
    tiles = math.ceil(work.tiles * work.pieces / count)
    alone = cost.seconds + (tiles - 1) * cost.step
    streaming = cost.dram_bytes / (target.dram_rate * dram_share)
    caching = cost.l2_bytes / (bulk_rate(target) * l2_share)
    return max(alone, streaming + cost.start, caching + cost.start)


def bulk_rate(target: Target) -> float:
    """Bytes a second that bulk copies bring from L2 to all multiprocessors together."""
    return target.bulk_rate or 1.5 * target.cache_rate
