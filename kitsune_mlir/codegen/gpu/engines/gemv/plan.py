"""Planning products of few rows: what a stage of the ring holds, how deep the ring is, where the activations stay.

A tile has all rows and some columns of the product. The block walks it in *passes* of a few columns over the whole sum; a
stage of the ring has a *chunk* of the sum for all columns of a pass, of every product, and of the activations. A chunk is some
*panels*, each with 128 bytes of every column's weights, as TMA writes them (`machine.shared_tile.SharedTile`). Few large boxes:
TMA starts one copy about every 30 ns, whatever its size (measured on an H200).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.match import Pattern, match
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window, tensor_map_of
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.shared_tile import PANEL_BYTES

__all__ = ["CONSUMERS", "Geometry", "GemvPlan", "Source", "make_plan", "share_ring"]

DTYPES = ("bf16", "f16", "f32")
"""Element types of the operands; sums are f32."""
MOST_ROWS = 64
CONSUMERS = 8
"""Warps that multiply; two more load."""
THREADS = 32 * (CONSUMERS + 2)
REGISTERS = 168
MOST_BOX = 256
"""Elements of a box along one dimension (`sm90.tensor_map`)."""
PANELS = (8, 4, 2)
"""Panels of a chunk, from the best on: long runs of DRAM."""
BOX_COLS = (32, 16, 8)
"""Columns of the product that one copy brings: the most that divide pass and tile, so that no weight is read twice."""
SUM_REGISTERS = 64
"""Most registers of a thread for the sums of a pass."""
ENOUGH_BYTES = 64 << 10
"""Of weights under way: what keeps a multiprocessor's part of DRAM busy, and some more."""
WINDOW_BYTES, FIRST_WINDOW_BYTES = 96 << 10, 64 << 10
"""Of weights under way at most, and of a tile's first ones, which come while others hand on what the tile waits for: more come
no sooner, and make these wait (measured on an H200)."""
LEAST_STAGES, MOST_STAGES = 3, 16
ROW_PARTS = (1, 2, 4)
"""Parts of the rows, from the best on: more mean less registers for a pass of equal size, and more reads of shared memory."""
MOST_ROWS_A_WARP = 32
SUM_ROWS = 16
"""Rows whose partial sums are exchanged at a time."""
USUAL_LINES = 32
"""Lines of a pass if nothing asks for more."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a task.

    Attributes:
        rows, cols: of the tile.
        depth: length of the sum.
        products: number of products that share the input.
        bytes: of an element.
        pass_cols: columns of a pass, of each product.
        panels: of a chunk.
        row_parts: parts into which warps on tensor cores divide the rows.
        stages: of the ring.
        slot_bytes: shared memory of a stage, or more: successive tasks share one ring.
    """

    rows: int
    cols: int
    depth: int
    products: int
    bytes: int
    pass_cols: int
    panels: int
    row_parts: int = 1
    stages: int = 0
    slot_bytes: int = 0

    @property
    def tensor_cores(self) -> bool:
        """Whether elements are 16-bit floats, which tensor cores multiply exactly."""
        return self.bytes == 2

    @property
    def panel(self) -> int:
        """Elements of the sum in a panel."""
        return PANEL_BYTES // self.bytes

    @property
    def chunk(self) -> int:
        """Elements of the sum in a stage."""
        return self.panels * self.panel

    @property
    def lines(self) -> int:
        """Lines of weights in a panel: the columns of a pass, of one product after the other."""
        return self.products * self.pass_cols

    @property
    def box_cols(self) -> int:
        """Columns of a product that one copy brings."""
        return next((cols for cols in BOX_COLS if self.pass_cols % cols == 0 and self.cols % cols == 0), BOX_COLS[-1])

    @property
    def passes(self) -> int:
        """Passes of a tile."""
        return -(-self.cols // self.pass_cols)

    @property
    def chunks(self) -> int:
        """Chunks of a pass."""
        return -(-self.depth // self.chunk)

    @property
    def weights_bytes(self) -> int:
        """Shared memory of a stage's weights."""
        return self.panels * self.lines * PANEL_BYTES

    @property
    def activations_panel(self) -> int:
        """Bytes of a panel of activations in a stage: whole eights of rows, or one row, whose panels then are neighbours."""
        return PANEL_BYTES if self.rows == 1 else _up(self.rows, 8) * PANEL_BYTES

    @property
    def input_panels(self) -> int:
        """Panels of activations that one copy brings."""
        most = MOST_BOX // self.panel if self.rows == 1 else 1
        return next(count for count in range(most, 0, -1) if self.panels % count == 0)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: whole patterns of the swizzle."""
        return _up(self.weights_bytes + self.panels * self.activations_panel, 8 * PANEL_BYTES)

    @property
    def deep(self) -> bool:
        """Whether enough weights are under way in the ring."""
        return self.stages * self.weights_bytes >= ENOUGH_BYTES

    @property
    def window(self) -> int:
        """Stages whose weights may be under way at a time."""
        return self._window(WINDOW_BYTES)

    @property
    def first_window(self) -> int:
        """The same for the first stages of a tile, as many as the ring has."""
        return self._window(FIRST_WINDOW_BYTES)

    def _window(self, bytes: int) -> int:
        return min(self.stages, max(2, -(-bytes // self.weights_bytes)))

    @property
    def sum_parts(self) -> int:
        """Parts into which warps on tensor cores divide each chunk of the sum."""
        return CONSUMERS // self.row_parts

    @property
    def warp_blocks(self) -> int:
        """Blocks of 8 rows that a warp on tensor cores has."""
        return -(-self.rows // (8 * self.row_parts))

    @property
    def sums(self) -> int:
        """Registers of a multiplying thread for the sums of a pass."""
        return 4 * self.warp_blocks * self.lines // 16 if self.tensor_cores else self.lines // CONSUMERS * self.rows

    @property
    def copies(self) -> int:
        """Partial sums of one element that warps hand to each other: on tensor cores each has a part of every chunk."""
        return self.sum_parts if self.tensor_cores else 1

    @property
    def sum_rows(self) -> int:
        """Rows whose partial sums are in shared memory at a time."""
        return min(SUM_ROWS, _up(self.rows, 8))

    @property
    def sum_pitch(self) -> int:
        """f32 elements from a row of partial sums to the next: 8 more than a multiple of 32, against bank conflicts."""
        return _up(self.lines, 32) + 8

    @property
    def sum_bytes(self) -> int:
        """Shared memory of the partial sums."""
        return self.copies * self.sum_rows * self.sum_pitch * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of everything."""
        return self.stages * self.slot_bytes + self.sum_bytes


@dataclasses.dataclass(frozen=True)
class Source:
    """An operand as TMA sees it.

    Attributes:
        window: where it is.
        map: a box is a part of a panel.
        dims: the map's dimensions, outermost first; the last two are the operand's own side and the sum.
    """

    window: Window
    map: TensorMap
    dims: tuple[Dim, ...]

    def places(self, tile: TileContext, moved: Mapping[str, Value]) -> list[Value]:
        """Coordinates of a box; `moved` is how far it is from the tile's start, by side, "" for the sum."""
        places = [tile.index(dim.start) for dim in self.dims]
        places[-1] = places[-1] + moved[""]
        if COL in moved:
            places[-2] = places[-2] + moved[COL]
        return places


@dataclasses.dataclass(frozen=True)
class GemvPlan:
    """What the engine decided.

    Attributes:
        pattern: the body.
        geometry: sizes.
        input: the activations.
        weights: of each product.
    """

    pattern: Pattern
    geometry: Geometry
    input: Source
    weights: tuple[Source, ...]

    @property
    def weights_wait(self) -> bool:
        """Whether weights are made by other tasks, so that even they are loaded after the waits."""
        return any(not source.window.constant for source in self.weights)


def make_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it is no product of few rows, or one whose operands TMA cannot read.
    """
    pattern = match(task, DTYPES, one_sum=True)
    product = pattern.product
    if product.rows > MOST_ROWS:
        raise MatchFailure(f"a tile of {product.rows} rows; up to {MOST_ROWS} are done")
    geometry = _choose(pattern, options)
    swizzle = 0 if product.rows == 1 else PANEL_BYTES
    input = _source(pattern, 0, product.a, ROW, product.rows, geometry.panel * geometry.input_panels, swizzle)
    weights = tuple(
        _source(pattern, number, one.b, COL, geometry.box_cols, geometry.panel) for number, one in enumerate(pattern.products)
    )
    gemv = GemvPlan(pattern, geometry, input, weights)
    plan = Plan(
        engine=engine,
        task=task,
        threads=THREADS,
        registers=REGISTERS,
        tensor_maps=tuple(MapUse(source.window.buffer, source.map) for source in (*weights, input)),
        async_reads=any(not source.window.constant for source in (input, *weights)),
    )
    return _with_ring(plan, gemv)


def _with_ring(plan: Plan, gemv: GemvPlan) -> Plan:
    geometry = gemv.geometry
    return dataclasses.replace(
        plan,
        shared_bytes=geometry.shared_bytes,
        barriers=(1,) * geometry.stages + (CONSUMERS,) * geometry.stages + (1,) * geometry.stages,
        parameters={
            "tile": [geometry.rows, geometry.cols, geometry.depth],
            "products": geometry.products,
            "pass": [geometry.lines, geometry.chunk],
            "stages": geometry.stages,
            "instruction": f"m16n8k16 {gemv.pattern.product.dtype}" if geometry.tensor_cores else "fma f32",
        },
        private=gemv,
    )


def share_ring(plans: Sequence[Plan], options: KernelOptions) -> list[Plan] | None:
    """The plans of successive tasks with one ring for all of them; None if it would not be deep enough for one of them."""
    geometries = [plan.private.geometry for plan in plans]
    slot = max(geometry.stage_bytes for geometry in geometries)
    stages = min(MOST_STAGES, (options.shared_bytes - max(geometry.sum_bytes for geometry in geometries)) // slot)
    shared = [dataclasses.replace(geometry, stages=stages, slot_bytes=slot) for geometry in geometries]
    if stages < LEAST_STAGES or any(not geometry.deep for geometry in shared):
        return None
    return [
        _with_ring(plan, dataclasses.replace(plan.private, geometry=geometry))
        for plan, geometry in zip(plans, shared, strict=True)
    ]


def _source(
    pattern: Pattern, number: int, operand: int, side: str, rows: int, columns: int, swizzle: int = PANEL_BYTES
) -> Source:
    """An operand of a product, if TMA can read boxes of `rows` along its side and `columns` along the sum."""
    product = pattern.products[number]
    inner, depth = f"k{product.sums[0][0]}", product.sums[0][1]
    load = pattern.task.load_of(product.op.operands[operand])
    assert load is not None
    window = Window.of(load, pattern.operand_sides(product.op, operand))
    found = tensor_map_of(window, {side: rows, inner: columns}, swizzle, PANEL_BYTES)
    if isinstance(found, str):
        raise MatchFailure(found)
    along = found[1][-1]
    if along.size != along.extent and depth % columns:
        raise MatchFailure("the sum is over a part of the rows in memory that does not end with 128 bytes")
    if depth * window.bytes % 16:
        raise MatchFailure(f"a sum of {depth * window.bytes} bytes, no multiple of 16 bytes")
    return Source(window, *found)


def _choose(pattern: Pattern, options: KernelOptions) -> Geometry:
    """The best geometry that fits."""
    product, products = pattern.product, len(pattern.products)
    size = {"f32": 4}.get(product.dtype, 2)
    block = 16 if size == 2 else 8
    geometries = []
    ways = itertools.product(range(block, _up(product.cols, block) + 1, block), PANELS, ROW_PARTS if size == 2 else (1,))
    for pass_cols, panels, parts in ways:
        start = Geometry(product.rows, product.cols, product.sums[0][1], products, size, pass_cols, panels, parts)
        if start.tensor_cores and (start.rows > parts * MOST_ROWS_A_WARP or (parts > 1 and start.rows <= 8 * (parts - 1))):
            continue
        stages = min(MOST_STAGES, (options.shared_bytes - start.sum_bytes) // start.stage_bytes)
        whole = panels * 2 >= start.sum_parts if start.tensor_cores else panels >= 4
        if stages >= LEAST_STAGES and whole and (start.sums <= SUM_REGISTERS or pass_cols == block):
            geometries.append(dataclasses.replace(start, stages=stages, slot_bytes=start.stage_bytes))
    if not geometries:
        raise MatchFailure(f"{products} products of {product.rows} rows leave no room for a ring of {LEAST_STAGES} stages")
    return min(geometries, key=_badness)


def _badness(geometry: Geometry) -> tuple:
    """Order of preference: a ring that is deep enough; activations read from L2 seldom; long runs; passes of usual size."""
    reads = geometry.rows * geometry.passes / (geometry.cols * geometry.products)
    usual = abs(geometry.lines - USUAL_LINES)
    return not geometry.deep, max(reads, rates.GEMV_FREE_READS), geometry.row_parts, -geometry.panels, usual


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
