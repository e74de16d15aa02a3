"""Planning a product: how two warpgroups share the tile, how the operands come in and results go out, how deep the ring is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.match import Pattern, Product, loaded, match
from kitsune_mlir.codegen.gpu.engines.mma.cost import CLUSTERS, Work, choose_way
from kitsune_mlir.codegen.gpu.engines.mma.geometry import Geometry, up
from kitsune_mlir.codegen.gpu.engines.mma.k_ranges import Range, ranges_of
from kitsune_mlir.codegen.gpu.engines.mma.multicast import Multicast, lines_of, part_of, reading_of, ways_of
from kitsune_mlir.codegen.gpu.engines.mma.operand import Box, Operand, Sum, choose_sum, merge_sums
from kitsune_mlir.codegen.gpu.engines.mma.tma_epilogue import SLICES, SLOTS, Result, results_of
from kitsune_mlir.codegen.gpu.engines.mma.views import Views, tensor_bytes, views_of
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import CONSUMERS, SHARED_REGISTERS, THREADS
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["ONES", "STORING_THREAD", "Geometry", "MmaPlan", "make_plan"]

MOST_STAGES, FLIGHT = 8, 64 << 10
"""Stages of a ring, and bytes of weights that it holds at least where these come from memory."""
STORING_THREAD = 96
"""The thread that stores and posts: in the producer's last warp."""
LONG_SUM = 8
"""Times the longest side of a result that a sum is so long that blocks which share it take its pieces in turn: gradients of
weights, which wait for operands (512 x 512 of 65,536 terms on an H200: 54.0 us, 68.1 where neighbours have one tile's pieces;
768 x 768 of 8,192 terms 23.7 and 28.4; 128 x 4,096 of 16,384 terms 43.1 and 42.4)."""
MOST_EXACT_COLUMNS = 128
"""Columns of a warpgroup whose sums are in registers twice (`mma.mainloop`)."""
EXACT_PRODUCTS = 3
"""Products of tf32 numbers for one of f32 numbers."""
WARPS = 4
"""Warps of a warpgroup."""
ONES = SharedTile(8, 64, 2)
"""Ones that the operand with the rows is multiplied by, where its sum is wanted: the narrowest product, a chunk of the sum."""


@dataclasses.dataclass(frozen=True)
class MmaPlan:
    """What the engine decided.

    Attributes:
        pattern: the body.
        geometry: the warpgroups' shares.
        sum: order of the sum.
        a, b: the operands (A's first range, B of the first product).
        ranges: where A is several tensors, or gathered: what each term of the sum is read from.
        boxes: TMA's views of A (of each range, None where threads copy it) and of each product's B; None if threads copy both
            operands into shared memory.
        why_copied: the reason for what threads copy.
        a_tile, b_tile: layout of a stage in shared memory; B follows A.
        stages: of the ring.
        results: the results that TMA stores.
        slice: columns of a result that are staged at a time.
        exact: f32 operands are multiplied as sums of two tf32 (`contraction.tf32x3`), which lie behind each other in a stage.
        split: pieces of the sum that different blocks do, or None.
        share: columns of a tile that a block adds up at a time, where there are pieces.
        multicast: the operand that blocks of a cluster have in common, or None.
        room, slot_room: bytes from a stage, and from a staged slice, to the next, if successive tasks share them
            (`mma.task_fusion`).
    """

    pattern: Pattern
    geometry: Geometry
    sum: Sum
    a: Operand
    b: Operand
    ranges: tuple[Range, ...]
    boxes: tuple[Box | None, ...] | None
    why_copied: str
    a_tile: SharedTile
    b_tile: SharedTile
    stages: int
    results: tuple[Result, ...]
    slice: int
    exact: bool = False
    split: Split | None = None
    share: int = 0
    multicast: Multicast | None = None
    room: int = 0
    slot_room: int = 0

    @property
    def operand_bytes(self) -> int:
        """A and B of a stage."""
        return self.a_tile.bytes + self.b_tile.bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return self.room or self.operand_bytes * (2 if self.exact else 1)

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a staged slice of a result."""
        return self.slot_room or self.out_tile.bytes

    @property
    def stage_barriers(self) -> int:
        """mbarriers of the ring of stages: full and empty ones, and, if `exact`, halved ones."""
        return self.stages * (3 if self.exact else 2)

    @property
    def barriers(self) -> tuple[int, ...]:
        """The ring's, one ring of staged slices for each storing warpgroup, one ring of announced tiles (`mma.store_warp`)."""
        full = (self.loaders if self.boxes else 0) + (0 if self.boxes and not self.mixed else self.copiers)
        readers = CONSUMERS * (self.multicast.blocks if self.multicast else 1)
        counts = (full,) * self.stages + (readers,) * self.stages
        if self.exact:
            counts += (self.small_part_threads[1] // 32,) * self.stages
        if self.results:
            counts += ((WARPS,) * SLOTS + (1,) * SLOTS) * self.geometry.groups
        if self.announces:
            counts += (WARPS * self.geometry.groups,) * SLOTS + (1,) * SLOTS
        return counts

    def place(self, operand: int) -> int:
        """Where in a stage an operand goes: A (0), then the products' B."""
        return self.a_tile.bytes + (operand - 1) * self.b_tile.bytes // self.geometry.products if operand else 0

    def box(self, operand: int, part: int) -> int:
        """Number of an operand's view among `boxes`; of A (0), that of range `part`."""
        return operand - 1 + max(1, len(self.ranges)) if operand else part

    def map_of(self, box: int) -> int:
        """Number of a view's tensor map among the task's."""
        return sum(view is not None for view in (self.boxes or ())[:box])

    @property
    def load_maps(self) -> int:
        """Tensor maps of operands; those of results follow."""
        return self.map_of(len(self.boxes or ()))

    @property
    def mixed(self) -> bool:
        """Whether threads copy some ranges of A, and TMA loads the rest."""
        return self.boxes is not None and None in self.boxes

    @property
    def kind(self) -> str:
        """What tensor cores multiply."""
        dtype = self.pattern.product.dtype
        return "tf32" if dtype == "f32" else dtype

    @property
    def copiers(self) -> int:
        """Threads that copy operands which TMA cannot load."""
        return 64 if self.exact or self.mixed else 96

    @property
    def first_copier(self) -> int:
        """The first of them: of the producer's first warp, or the one behind it, if that one loads by TMA."""
        return 32 if self.mixed else 0

    @property
    def loaders(self) -> int:
        """Warps that load by TMA: one for A and one for B, unless others need the second warp."""
        return 2 if self.boxes and not (self.exact or self.mixed) else 1

    @property
    def small_part_threads(self) -> tuple[int, int]:
        """The first of the threads that halve f32 operands, and their number: warps between those that load and the last, and
        that one, too, where there is more to do and nothing for it to store."""
        if not self.boxes:
            return self.copiers, 32
        return 32, 96 if (self.a.turned or self.b.turned) and not (self.results or self.pattern.task.posts) else 64

    @property
    def prefill(self) -> int:
        """Chunks of which the constant operand is loaded before the waits."""
        return min(self.stages, self.sum.chunks // (self.split.pieces if self.split else 1))

    @property
    def partial_bytes(self) -> int:
        """Accumulators of a warpgroup."""
        return self.geometry.partial_bytes + _sum_bytes(self.pattern)

    @property
    def ones(self) -> int:
        """Where in shared memory the ones are that the operand's sum is a product with, a tile for each warpgroup."""
        return self.stages * self.stage_bytes + (SLOTS * self.geometry.groups * self.slot_bytes if self.results else 0)

    @property
    def ones_bytes(self) -> int:
        """Of all of them."""
        return _ones_bytes(self.pattern)

    @property
    def shares(self) -> int:
        """Parts of a tile's columns that the blocks which share it add up, one after the other."""
        return self.geometry.width // self.share

    @property
    def out_tile(self) -> SharedTile:
        """Layout of a slice of a result in shared memory."""
        return SharedTile(64, self.slice, 2, 2 * self.slice)

    @property
    def announces(self) -> bool:
        """Whether the consumers tell the storing thread that a tile is written: there are posts, and stores of their own."""
        stores = self.pattern.task.stores
        return bool(self.pattern.task.posts) and len(self.results) < len(stores)


def make_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it is nothing for tensor cores, or too large.
    """
    if options.chip != "sm_90a":
        raise MatchFailure(f"wgmma needs sm_90a, not {options.chip}")
    mma = _decide(match(task, ("bf16", "f16", "f32")), options)
    geometry = mma.geometry
    boxes = [box for box in mma.boxes or () if box is not None]
    parameters = {
        "tile": [geometry.rows, geometry.cols, mma.sum.length],
        "instruction": f"m64n{geometry.n}k{32 // mma.sum.element_bytes} {mma.kind}{', three times' if mma.exact else ''}",
        "operands": _described(mma),
        "results": f"{len(mma.results)} of {len(task.stores)} by TMA",
        "stages": mma.stages,
    }
    if mma.ranges:
        parameters["ranges"] = "+".join(f"{part.length}{' gathered' * (part.gather is not None)}" for part in mma.ranges)
    if geometry.products > 1:
        parameters["products"] = geometry.products
    if mma.pattern.operand_sum is not None:
        parameters["operand_sum"] = True
    if mma.multicast:
        parameters["multicast"] = f"{'AB'[mma.multicast.operand]} to {mma.multicast.blocks} blocks"
    if mma.split:
        parameters["pieces"] = f"{mma.split.pieces} of each of {task.tiles - mma.split.whole} tiles"
    return Plan(
        engine=engine,
        task=task,
        shared_bytes=mma.ones + mma.ones_bytes,
        threads=THREADS,
        registers=SHARED_REGISTERS,
        barriers=mma.barriers,
        tensor_maps=(
            *(MapUse(box.window.buffer, box.map) for box in boxes),
            *(MapUse(result.window.buffer, result.map) for result in mma.results),
        ),
        async_reads=any(not box.window.constant for box in boxes),
        async_writes=bool(mma.results),
        parameters=parameters,
        split=mma.split,
        beside=mma.multicast.blocks if mma.multicast else 1,
        across=mma.multicast is not None and mma.multicast.across,
        copied=mma.boxes is None,
        private=mma,
    )


def _decide(pattern: Pattern, options: KernelOptions) -> MmaPlan:
    product, count = pattern.product, len(pattern.products)
    if product.rows > 128 or up(product.cols, 8) * count > 256:
        raise MatchFailure(f"a tile of {product.rows} x {product.cols * count}; up to 128 x 256 fit the registers")
    ranges = ranges_of(pattern, product)
    if ranges is None:
        a_window, b_window, loops = merge_sums(
            product, _window(pattern, product, product.a), _window(pattern, product, product.b)
        )
        sum = choose_sum(loops, a_window, b_window)
    else:
        a_window, b_window, sum = _ranged(pattern, product, ranges)
    if pattern.operand_sum is not None and ranges is not None:
        raise MatchFailure("a sum of an operand that is several tensors, or gathered")
    exact = product.dtype == "f32" and options.matmul_precision == "highest"
    b_windows = [b_window]
    for other in pattern.products[1:]:
        window = _window(pattern, other, other.b)
        if ranges is None:
            _, window, same = merge_sums(other, _window(pattern, other, other.a), window)
            if choose_sum(same, a_window, window) != sum:
                raise MatchFailure("several products whose sums run differently")
        b_windows.append(window)
    dtype = product.dtype if product.dtype != "f32" or exact else "tf32"
    found = views_of(pattern, (a_window, *b_windows), ranges or (), sum, dtype, exact)
    geometry, a, b = found.geometry, found.a, found.weights[0]
    if exact and geometry.n > MOST_EXACT_COLUMNS:
        raise MatchFailure(
            f"a warpgroup's {geometry.n} columns of exact f32 sums; up to {MOST_EXACT_COLUMNS} fit the registers"
        )
    if found.boxes is None and count > 1:
        raise MatchFailure(f"several products that TMA cannot load: {found.why}")
    a_tile, b_tile = found.stage_tiles(sum)
    split, multicast = _shared(pattern, geometry, sum, exact, found, ranges or (), (a_tile, b_tile), options)
    share = _share(geometry.width, split.pieces) if split else 0
    results, slice = results_of(pattern, share or geometry.width, geometry.covered_rows, geometry.covered_cols)
    left = options.shared_bytes - _staging_bytes(results, slice, geometry.groups) - _ones_bytes(pattern)
    most = max(MOST_STAGES, -(-FLIGHT // b_tile.bytes)) if found.once else MOST_STAGES
    stages = min(most, left // ((a_tile.bytes + b_tile.bytes) * (2 if exact else 1)))
    if stages < 2:
        raise MatchFailure(f"a tile of {product.rows} x {product.cols} of f32 leaves no room for two stages in shared memory")
    boxes = found.boxes
    if multicast is not None and boxes is not None:
        boxes = tuple(part_of(box, multicast.blocks) if n == multicast.operand and box else box for n, box in enumerate(boxes))
    operands = (a, b, ranges or (), boxes, found.why, a_tile, b_tile)
    return MmaPlan(pattern, geometry, sum, *operands, stages, results, slice, exact, split, share, multicast)


def _ranged(pattern: Pattern, product: Product, ranges: tuple[Range, ...]) -> tuple[Window, Window, Sum]:
    """The windows of A's first range and of B, and the order of a sum over ranges."""
    window, (loop, length) = _window(pattern, product, product.b), product.sums[0]
    if {part.window.dtype for part in ranges} != {window.dtype}:
        raise MatchFailure("a product's rows are read as another type than its columns")
    if any(part.window.stride(f"k{loop}") != 1 for part in ranges):
        raise MatchFailure("a part of a product's rows whose neighbours along the sum are none in memory")
    for part in ranges:
        odd = part.length * window.bytes % 16 or part.window.align((f"k{loop}",)) % 16
        if part.gather is not None and odd:
            raise MatchFailure("rows of a table that do not begin and end at multiples of 16 bytes")
    return (
        ranges[0].window,
        window,
        Sum((f"k{loop}", length), (), window.bytes, tuple((part.start, part.length) for part in ranges)),
    )


def _described(mma: MmaPlan) -> str:
    """How the operands come, for `explain`."""
    if mma.boxes is None:
        return f"copied by threads: {mma.why_copied}"
    if turned := [name for name, one in (("A", mma.a), ("B", mma.b)) if one.turned]:
        return f"TMA; {' and '.join(turned)} turned by threads"
    copied = sum(box is None for box in mma.boxes)
    return f"TMA; {copied} of {len(mma.ranges)} ranges copied by threads: {mma.why_copied}" if copied else "TMA"


def _shared(
    pattern: Pattern,
    geometry: Geometry,
    sum: Sum,
    exact: bool,
    found: Views,
    ranges: Sequence[Range],
    tiles: tuple[SharedTile, SharedTile],
    options: KernelOptions,
) -> tuple[Split | None, Multicast | None]:
    """The pieces that are the fastest, None where every tile is one block's; and what blocks of a cluster have in common."""
    operands = [*(ranges or (found.a,)), *found.weights]
    readings = (reading_of(found.a, tiles[0]), reading_of(found.weights[0], tiles[1]))
    work = Work(
        pattern.task.tiles,
        sum.chunks,
        geometry.covered_rows,
        geometry.covered_cols * geometry.products,
        EXACT_PRODUCTS if exact else 1,
        sum.element_bytes,
        sum.element_bytes,
        tensor_bytes(operands),
        any(
            extent % size for store in pattern.task.stores for size, extent in zip(store.sizes, store.buffer.shape, strict=True)
        ),
        lines_of(readings) if not (ranges or exact) else 0,
    )
    windows = (found.a.window, found.weights[0].window)
    ways = [] if ranges or exact else list(ways_of(pattern, found.boxes, windows, CLUSTERS, options))
    works = [dataclasses.replace(work, lines=lines_of(readings, way), cluster=way.blocks) for way in ways]
    _, chosen, pieces, whole = choose_way([work, *works], options.workers)
    multicast = ways[works.index(chosen)] if chosen in works else None
    if pieces == 1:
        return None, multicast
    sharers = (pattern.task.tiles - whole) * geometry.groups
    bytes = geometry.partial_bytes + _sum_bytes(pattern)
    widest = max(extent for store in pattern.task.stores for extent in store.buffer.shape)
    by_piece = (pattern.task.tiles - whole) * pieces <= chosen.usable(options.workers) and sum.length >= LONG_SUM * widest
    return Split(pieces, sharers * pieces * bytes, sharers, sharers * pieces, whole, spread=True, by_piece=by_piece), multicast


def _share(width: int, pieces: int) -> int:
    """Columns that a block adds up at a time of a tile's `width`: so that none has much more than the others to do."""
    shares = [share for share in SLICES if width % share == 0] or [8]
    return min(shares, key=lambda share: (-(-width // (share * pieces)) * share, -share))


def _window(pattern: Pattern, product: Product, number: int) -> Window:
    return Window.of(loaded(pattern.task, product, number), pattern.operand_sides(product.op, number))


def _ones_bytes(pattern: Pattern) -> int:
    return CONSUMERS * ONES.bytes if pattern.operand_sum is not None else 0


def _sum_bytes(pattern: Pattern) -> int:
    """Accumulators of the operand's sum of a warpgroup."""
    return 64 * ONES.rows * 4 if pattern.operand_sum is not None else 0


def _staging_bytes(results: tuple[Result, ...], slice: int, groups: int) -> int:
    return groups * SLOTS * 64 * slice * 2 if results else 0
