"""Planning a product: how two warpgroups share the tile, how the operands come in and results go out, how deep the ring is."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.engine import Limits, MapUse, Plan
from kitsune_mlir.codegen.gpu.mma_cost import Work, choose_pieces
from kitsune_mlir.codegen.gpu.mma_match import COL, ROW, Mismatch, Pattern, Product, loaded, match
from kitsune_mlir.codegen.gpu.mma_operand import Box, Operand, Sum, box_of, choose_sum, merge_sums
from kitsune_mlir.codegen.gpu.mma_result import SLICES, SLOTS, Result, results_of
from kitsune_mlir.codegen.gpu.mma_window import Window
from kitsune_mlir.codegen.gpu.roles import CONSUMERS, SHARED_REGISTERS, THREADS
from kitsune_mlir.codegen.gpu.split import Split
from kitsune_mlir.codegen.gpu.tasks import TaskView
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["STORING_THREAD", "Geometry", "MmaPlan", "make_plan"]

MOST_STAGES = 8
STORING_THREAD = 96
"""The thread that stores and posts: in the producer's last warp."""
MOST_EXACT_COLUMNS = 128
"""Columns of a warpgroup whose sums are in registers twice (`mma_ring`)."""
EXACT_PRODUCTS = 3
"""Products of tf32 numbers for one of f32 numbers."""
WARPS = 4
"""Warps of a warpgroup."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How two warpgroups share a tile: 64 rows each, or, up to 64 rows, half of the columns each.

    Attributes:
        rows, cols: of the tile.
        by_rows: the warpgroups have different rows (else columns).
        groups: warpgroups with work of their own; with 1 the second repeats what the first does, and stores nothing.
        a_rows, b_rows: rows and columns that a stage holds.
        part: columns from one warpgroup's first to the other's; 0 if they have the same.
        n: columns that one warpgroup multiplies, of all products of a tile.
        products: of one A, whose columns lie behind each other.
    """

    rows: int
    cols: int
    by_rows: bool
    groups: int
    a_rows: int
    b_rows: int
    part: int
    n: int
    products: int = 1

    @staticmethod
    def of(rows: int, cols: int, b_transposed: bool, products: int = 1) -> Geometry:
        """Share a tile of up to 128 x 256.

        Raises:
            Mismatch: several products whose columns can not lie behind each other.
        """
        unit = 64 if b_transposed else 8
        if products > 1:
            if rows <= 64 or b_transposed:
                raise Mismatch(f"{products} products of {rows} rows; several need more than 64, and memory along the sum")
            n = products * _up(cols, 8)
            return Geometry(rows, cols, True, 2, 128, n, 0, n, products)
        if rows > 64:
            return Geometry(rows, cols, True, 2, 128, _up(cols, unit), 0, _up(cols, 8))
        part = _up(-(-cols // 2), unit)
        if cols <= part:
            return Geometry(rows, cols, False, 1, 64, _up(cols, unit), 0, _up(cols, 8))
        return Geometry(rows, cols, False, 2, 64, 2 * part, part, part)

    @property
    def covered_rows(self) -> int:
        """Rows that are computed: what is beyond `rows` is not stored."""
        return self.a_rows

    @property
    def covered_cols(self) -> int:
        """Columns of each product that are computed."""
        return self.part * (self.groups - 1) + self.width

    @property
    def partial_bytes(self) -> int:
        """Accumulators of a warpgroup."""
        return 64 * self.n * 4

    @property
    def width(self) -> int:
        """Columns of one product that a warpgroup has."""
        return self.n // self.products


@dataclasses.dataclass(frozen=True)
class MmaPlan:
    """What the engine decided.

    Attributes:
        pattern: the body.
        geometry: the warpgroups' shares.
        sum: order of the sum.
        a, b: the operands (B of the first product).
        boxes: TMA's views of A and of each product's B; None if threads copy both into shared memory.
        why_copied: the reason for that.
        a_tile, b_tile: layout of a stage in shared memory; B follows A.
        stages: of the ring.
        results: the results that TMA stores.
        slice: columns of a result that are staged at a time.
        exact: f32 operands are multiplied as sums of two tf32 (`mma_halves`), which lie behind each other in a stage.
        split: pieces of the sum that different blocks do, or None.
        share: columns of a tile that a block adds up at a time, where there are pieces.
    """

    pattern: Pattern
    geometry: Geometry
    sum: Sum
    a: Operand
    b: Operand
    boxes: tuple[Box, ...] | None
    why_copied: str
    a_tile: SharedTile
    b_tile: SharedTile
    stages: int
    results: tuple[Result, ...]
    slice: int
    exact: bool = False
    split: Split | None = None
    share: int = 0

    @property
    def operand_bytes(self) -> int:
        """A and B of a stage."""
        return self.a_tile.bytes + self.b_tile.bytes

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return self.operand_bytes * (2 if self.exact else 1)

    @property
    def stage_barriers(self) -> int:
        """mbarriers of the ring of stages: full and empty ones, and, if `exact`, halved ones."""
        return self.stages * (3 if self.exact else 2)

    def place(self, box: int) -> int:
        """Where in a stage a box goes: A, then the products' B."""
        return self.a_tile.bytes + (box - 1) * self.b_tile.bytes // self.geometry.products if box else 0

    @property
    def kind(self) -> str:
        """What tensor cores multiply."""
        dtype = self.pattern.product.dtype
        return "tf32" if dtype == "f32" else dtype

    @property
    def copiers(self) -> int:
        """Threads that copy operands which TMA cannot load: the first warps of the producer."""
        return 64 if self.exact else 96

    @property
    def halvers(self) -> tuple[int, int]:
        """The first of the threads that halve f32 operands, and their number: warps between those that load and the last."""
        return (32, 64) if self.boxes else (self.copiers, 32)

    @property
    def prefill(self) -> int:
        """Chunks of which the constant operand is loaded before the waits."""
        return min(self.stages, self.sum.chunks // (self.split.pieces if self.split else 1))

    @property
    def partial_bytes(self) -> int:
        """Accumulators of a warpgroup."""
        return self.geometry.partial_bytes

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


def make_plan(engine: str, task: TaskView, limits: Limits) -> Plan:
    """Plan a task.

    Raises:
        Mismatch: it is nothing for tensor cores, or too large.
    """
    if limits.chip != "sm_90a":
        raise Mismatch(f"wgmma needs sm_90a, not {limits.chip}")
    mma = _decide(match(task, ("bf16", "f16", "f32")), limits)
    geometry = mma.geometry
    boxes = mma.boxes or ()
    parameters = {
        "tile": [geometry.rows, geometry.cols, mma.sum.length],
        "instruction": f"m64n{geometry.n}k{32 // mma.sum.element_bytes} {mma.kind}{', three times' if mma.exact else ''}",
        "operands": "TMA" if boxes else f"copied by threads: {mma.why_copied}",
        "results": f"{len(mma.results)} of {len(task.stores)} by TMA",
        "stages": mma.stages,
    }
    if geometry.products > 1:
        parameters["products"] = geometry.products
    if mma.split:
        parameters["pieces"] = f"{mma.split.pieces} of each of {task.tiles - mma.split.whole} tiles"
    return Plan(
        engine=engine,
        task=task,
        shared_bytes=mma.stages * mma.stage_bytes + _staging_bytes(mma.results, mma.slice, geometry.groups),
        threads=THREADS,
        registers=SHARED_REGISTERS,
        barriers=_barriers(mma),
        tensor_maps=(
            *(MapUse(box.window.buffer, box.map) for box in boxes),
            *(MapUse(result.window.buffer, result.map) for result in mma.results),
        ),
        async_reads=any(not box.window.constant for box in boxes),
        async_writes=bool(mma.results),
        parameters=parameters,
        split=mma.split,
        private=mma,
    )


def _decide(pattern: Pattern, limits: Limits) -> MmaPlan:
    product, count = pattern.product, len(pattern.products)
    if product.rows > 128 or _up(product.cols, 8) * count > 256:
        raise Mismatch(f"a tile of {product.rows} x {product.cols * count}; up to 128 x 256 fit the registers")
    a_window, b_window, loops = merge_sums(product, _window(pattern, product, product.a), _window(pattern, product, product.b))
    sum = choose_sum(loops, a_window, b_window)
    a, b = _operand(a_window, ROW, product.rows, sum), _operand(b_window, COL, product.cols, sum)
    geometry = Geometry.of(product.rows, product.cols, b.transposed, count)
    exact = product.dtype == "f32" and limits.matmul_precision == "highest"
    if exact and geometry.n > MOST_EXACT_COLUMNS:
        raise Mismatch(f"a warpgroup's {geometry.n} columns of exact f32 sums; up to {MOST_EXACT_COLUMNS} fit the registers")
    dtype = product.dtype if product.dtype != "f32" or exact else "tf32"
    operands = [(a, geometry.a_rows), (b, geometry.b_rows // count)]
    for other in pattern.products[1:]:
        _, window, same = merge_sums(other, _window(pattern, other, other.a), _window(pattern, other, other.b))
        if choose_sum(same, a_window, window) != sum:
            raise Mismatch("several products whose sums run differently")
        operands.append((_operand(window, COL, product.cols, sum), geometry.b_rows // count))
    found = [box_of(operand, sum, rows, dtype) for operand, rows in operands]
    why = next((box for box in found if isinstance(box, str)), "")
    boxes = None if why else tuple(box for box in found if isinstance(box, Box))
    if boxes is None and count > 1:
        raise Mismatch(f"several products that TMA cannot load: {why}")
    a_tile, b_tile = _stage_tile(a, geometry.a_rows, sum), _stage_tile(b, geometry.b_rows, sum)
    split = _split(pattern, geometry, sum, exact, limits)
    share = _share(geometry.width, split.pieces) if split else 0
    results, slice = results_of(pattern, share or geometry.width, geometry.covered_rows, geometry.covered_cols)
    left = limits.shared_bytes - _staging_bytes(results, slice, geometry.groups)
    stages = min(MOST_STAGES, left // ((a_tile.bytes + b_tile.bytes) * (2 if exact else 1)))
    if stages < 2:
        raise Mismatch(f"a tile of {product.rows} x {product.cols} of f32 leaves no room for two stages in shared memory")
    return MmaPlan(pattern, geometry, sum, a, b, boxes, why, a_tile, b_tile, stages, results, slice, exact, split, share)


def _split(pattern: Pattern, geometry: Geometry, sum: Sum, exact: bool, limits: Limits) -> Split | None:
    """The pieces that are the fastest; None where every tile is one block's."""
    work = Work(
        pattern.task.tiles,
        sum.chunks,
        geometry.covered_rows,
        geometry.covered_cols * geometry.products,
        EXACT_PRODUCTS if exact else 1,
        sum.element_bytes,
    )
    pieces, whole = choose_pieces(work, limits.workers)
    if pieces == 1:
        return None
    sharers = (pattern.task.tiles - whole) * geometry.groups
    return Split(pieces, sharers * pieces * geometry.partial_bytes, sharers, sharers * pieces, whole, spread=True)


def _share(width: int, pieces: int) -> int:
    """Columns that a block adds up at a time of a tile's `width`: so that none has much more than the others to do."""
    shares = [share for share in SLICES if width % share == 0] or [8]
    return min(shares, key=lambda share: (-(-width // (share * pieces)) * share, -share))


def _window(pattern: Pattern, product: Product, number: int) -> Window:
    return Window.of(loaded(pattern.task, product, number), pattern.operand_sides(product.op, number))


def _staging_bytes(results: tuple[Result, ...], slice: int, groups: int) -> int:
    return groups * SLOTS * 64 * slice * 2 if results else 0


def _barriers(mma: MmaPlan) -> tuple[int, ...]:
    """The ring's, one ring of staged slices for each storing warpgroup, one ring of announced tiles (`mma_store`)."""
    full = 1 if mma.boxes else mma.copiers
    counts = (full,) * mma.stages + (CONSUMERS,) * mma.stages
    if mma.exact:
        counts += (mma.halvers[1] // 32,) * mma.stages
    if mma.results:
        counts += ((WARPS,) * SLOTS + (1,) * SLOTS) * mma.geometry.groups
    if mma.announces:
        counts += (WARPS * mma.geometry.groups,) * SLOTS + (1,) * SLOTS
    return counts


def _operand(window: Window, side: str, size: int, sum: Sum) -> Operand:
    """Transposed if memory runs along `side`, and not along the sum; tensor cores read only 16-bit elements so."""
    transposed = window.bytes == 2 and window.stride(side) == 1 and window.stride(sum.inner[0]) != 1
    return Operand(window, side, size, transposed)


def _stage_tile(operand: Operand, rows: int, sum: Sum) -> SharedTile:
    size = sum.element_bytes
    return SharedTile(sum.chunk, rows, size) if operand.transposed else SharedTile(rows, sum.chunk, size)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
