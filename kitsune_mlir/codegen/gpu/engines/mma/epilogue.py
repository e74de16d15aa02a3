"""From accumulators to memory: the element-wise steps of a body, evaluated in registers, and what consumers do to store.

Results that TMA stores are staged in shared memory, slice by slice, for the storing thread (`mma.store_warp`); others are
stored here. A thread holds pairs of neighbouring columns in two rows, 8 apart (`sm90.wgmma`). Each pair is worked
on from the accumulators to the store before the next, so that few registers are live; what depends only on the column, or only
on the row, is computed once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step
from kitsune_mlir.codegen.gpu.contraction.evaluate import Evaluator, Sides
from kitsune_mlir.codegen.gpu.contraction.gather import extract_pair, tables_of, walked_loop
from kitsune_mlir.codegen.gpu.emit.approx_math import approximations_for
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, if_all, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import load as read
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, i32, i64, select, unpack
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.store_warp import StoreRing
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90.ldmatrix import stage_accumulator
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Slot, fence_async, fence_async_shared
from kitsune_mlir.dialects.products import body_of
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["Epilogue"]

PRELOADED = 48
"""Registers for what is loaded before the accumulators are complete."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two elements that a thread holds: columns `col` and `col` + 1 of a row.

    Attributes:
        half: 0 or 1: which of the thread's rows of an 8-column block.
        block: number of the 8-column block.
        row, col: in the tile, i32, brought inside of it where the layout sticks out.
        row_inside, cols_inside: whether the row and each of the columns exist; None: they always do.
    """

    half: int
    block: int
    row: Value
    col: Value
    row_inside: Value | None
    cols_inside: tuple[Value, Value] | None


class Epilogue(Evaluator[Pair]):
    """Evaluates and stores a tile, pair by pair.

    Args:
        plan: what was decided.
        tile: the tile.
        group: index of the warpgroup among the consumers.
        share: which part of the columns is evaluated, of those that blocks divide among each other; None: all of them.
    """

    def __init__(self, plan: MmaPlan, tile: TileContext, group: Value, share: Value | None = None):
        quick = approximations_for(store.buffer.element for store in plan.pattern.task.stores)
        super().__init__(plan.pattern, tile, [product.op for product in plan.pattern.products], quick)
        self.plan, self.group = plan, group
        self.accumulators: list[Value] = []
        geometry = plan.geometry
        self.thread = tile.task.thread % 128
        local, lane = self.thread, tile.task.thread % 32
        self.row = local // 32 * 16 + lane // 4
        if geometry.by_rows:
            self.row = self.row + group * 64
        self.col = lane % 4 * 2
        if geometry.part:
            self.col = self.col + group * geometry.part
        self.width = geometry.width if share is None else plan.share
        if share is not None:
            self.col = self.col + share * plan.share
        self.words: dict[tuple, dict[tuple[int | None, int], Value]] = {}  # pairs by half and 8-column block
        self.addresses: dict[tuple, Value] = {}
        self.windows: dict[tuple, Window] = {}
        self.tables = tables_of(plan.pattern.task)

    def preload(self) -> None:
        """Start to load pairs that the steps read (a bias, a residual): they come while the last products are made."""
        left = PRELOADED
        uses = [(step.op, number) for step in dict.fromkeys(self.body.steps.values()) for number in step.operands]
        for op, number in [*((op, 2) for op in self.products.values()), *uses]:
            load = self.body.task.load_of(op.operands[number])
            if load is None:
                continue
            sides = self.body.operand_sides(op, number)
            window = self._window((load.tensor, sides), load, sides)
            halves = 2 if ROW in sides else 1
            count = halves * self.width // 8
            if (load.tensor, sides) in self.words or COL not in sides or count > left:
                continue
            if window.dtype not in HALF_TYPES or not self._together(window):
                continue
            left -= count
            words: dict[tuple[int | None, int], Value] = {}
            for block in range(self.width // 8):
                for pair in self._pairs(block)[:halves]:
                    place = self._address(window, (load.tensor, sides), pair)
                    # No constant load: LLVM would move it to its use, behind the products.
                    words[pair.half if ROW in sides else None, block] = read(place, "i32")
            self.words[load.tensor, sides] = words

    def store(self, accumulators: list[Value], slot: Slot) -> Slot:
        """Hand over or write every result of the task; the next slot to fill.

        Args:
            accumulators: of the warpgroup's products.
            slot: of the ring of staged slices, the first to fill.
        """
        self.accumulators = accumulators
        staged = {result.number for result in self.plan.results}
        step = self.plan.slice or 8
        for first in range(0, self.width, step):
            for number, store in enumerate(self.body.task.stores):
                if number in staged:
                    self._stage(store.tensor, first // 8, slot)
                    slot = StoreRing(self.plan, self.tile.task).ring(0).next(slot)
            for block in range(first // 8, (first + step) // 8):
                for number, store in enumerate(self.body.task.stores):
                    if number not in staged and number != self.plan.pattern.sum_store:
                        window = self._window(("store", number), store, self.body.value_sides(store.tensor))
                        for pair in self._pairs(block):
                            self._write(window, number, pair, self.evaluate(store.tensor, pair))
        return slot

    def store_sums(self, sums: Sequence[Value]) -> None:
        """Write the sums of the operand with the rows, if they are wanted: `sums` are a product with 8 equal columns."""
        number = self.plan.pattern.sum_store
        if number is None:
            return
        store = self.body.task.stores[number]
        window = self._window(("store", number), store, self.body.value_sides(store.tensor))
        first = self.thread % 4 == 0
        mine = first if self.plan.geometry.by_rows else first & (self.group == 0)
        for half, value in enumerate(sums[::2]):
            row, inside = self._row(half)
            target = offset(window.start(self.tile), i64(row) * (window.stride(ROW) * window.bytes))
            if_all([mine, inside], functools.partial(store_elements, [value], target, window.dtype, window.bytes))

    def _pairs(self, block: int) -> list[Pair]:
        """What the thread holds of 8 columns: a pair in each of two rows."""
        col, cols_inside = self._cols(block)
        return [Pair(half, block, row, col, inside, cols_inside) for half, (row, inside) in enumerate(map(self._row, range(2)))]

    def _stage(self, value: ir.Value, block: int, slot: Slot) -> None:
        """Put a slice of a result, from an 8-column block on, into its slot, and tell the storing thread."""
        handover, tile = StoreRing(self.plan, self.tile.task), self.plan.out_tile
        ring, pointer = handover.ring(self.group), handover.pointer(self.group, slot.stage)
        # Elements that come from memory are asked for together, so that their ways overlap.
        early = [self._columns(value, block, step) for step in range(tile.cols // 16)] if self._reads_elements() else []
        ring.empty(slot.stage).wait(slot.parity)
        for step in range(tile.cols // 16):
            values = early[step] if early else self._columns(value, block, step)
            stage_accumulator(values, self.thread, tile, pointer, 16 * step, str(ir.ShapedType(value.type).element_type))
        fence_async_shared()
        sync_warp()
        if_(self.thread % 32 == 0, ring.full(slot.stage).arrive)

    def _columns(self, value: ir.Value, block: int, step: int) -> list[Value]:
        """The thread's elements of 16 columns of a result, in the order of the accumulators."""
        values: list[Value] = []
        for number in (2 * step, 2 * step + 1):
            for pair in self._pairs(block + number):
                values += self.evaluate(value, pair)
        return values

    def _reads_elements(self) -> bool:
        """Whether some step reads a matrix, or a table by index."""
        for step in dict.fromkeys(self.body.steps.values()):
            if step.kind == "map" and any(inner.name == "tensor.extract" for inner in body_of(step.op)):
                return True
        return self.plan.pattern.reads_matrices

    def announce(self, told: Slot) -> None:
        """Tell the storing thread that the warp has written its part of the tile, if it wants to know."""
        if not self.plan.announces:
            return
        ring = StoreRing(self.plan, self.tile.task).announcements()
        ring.empty(told.stage).wait(told.parity)
        if self.tile.task.kernel.fences:
            fence_async()
        sync_warp()
        if_(self.thread % 32 == 0, ring.full(told.stage).arrive)

    def _row(self, half: int) -> tuple[Value, Value | None]:
        row, geometry = self.row + 8 * half, self.plan.geometry
        if geometry.covered_rows == geometry.rows:
            return row, None
        inside = row < geometry.rows
        return select(inside, row, 0), inside

    def _cols(self, block: int) -> tuple[Value, tuple[Value, Value] | None]:
        """First column of the thread's pair, and which of the two exist."""
        geometry = self.plan.geometry
        col = self.col + 8 * block
        last = geometry.width if self.width != geometry.width else 8 * block + 8
        if geometry.part * (geometry.groups - 1) + last <= geometry.cols:
            return col, None
        first = col < geometry.cols
        second = first if geometry.cols % 2 == 0 else col + 1 < geometry.cols
        return select(first, col, 0), (first, second)

    # --- values ------------------------------------------------------------------------------------------------------

    def where(self, sides: Sides, place: Pair) -> tuple[int | None, int | None]:
        return place.half if ROW in sides else None, place.block if COL in sides else None

    def distinct(self, sides: Sides) -> list[int]:
        return [0, int(COL in sides)]

    def sums(self, product: ir.Operation, place: Pair) -> list[Value]:
        number = list(self.products.values()).index(product)
        first = 4 * (place.block + number * self.width // 8) + 2 * place.half
        return self.accumulators[first : first + 2]

    def index(self, side: str, place: Pair, element: int) -> Value:
        return place.row if side == ROW else place.col + element if side == COL else i32(0)

    def extract(self, step: Step, place: Pair, element: int, op: ir.Operation, indices: Sequence[ir.Value]) -> Value:
        """What a body reads by index; where the last index is the column, both elements of the pair at once."""
        table = self.tables[op.operands[0]]
        loop = walked_loop(op.operands[len(op.operands) - 1])
        together = loop is not None and self.body.loop_side(step.op, loop) == COL
        together = together and table.buffer.shape[-1] % 2 == 0 and self._even_columns()
        key = (op, place.half, place.block, 0 if together else element)
        if key not in self.known:
            self.known[key] = extract_pair(self.tile, table, indices, together)
        return self.known[key][element if together else 0]

    def _even_columns(self) -> bool:
        """Whether each pair of columns starts at an even column of the whole: a store says so."""
        store = self.body.task.stores[0]
        return self._together(self._window(("store", 0), store, self.body.value_sides(store.tensor)))

    def read(self, load: Load, sides: Sides, place: Pair) -> list[Value]:
        window = self._window((load.tensor, sides), load, sides)
        words = self.words.get((load.tensor, sides))
        if words is not None:
            return unpack(bitcast(words[place.half if ROW in sides else None, place.block], f"vector<2x{window.dtype}>"))
        return self._read(window, (load.tensor, sides), place)

    # --- memory ------------------------------------------------------------------------------------------------------

    def _window(self, key: tuple, record, sides: tuple[str, ...]) -> Window:
        if key not in self.windows:
            self.windows[key] = Window.of(record, sides)
        return self.windows[key]

    def _address(self, window: Window, key: tuple, pair: Pair) -> Value:
        """Pointer to the first element of a pair."""
        stride = window.stride(COL) * window.bytes
        known = (key, pair.half if window.along(ROW) else None)
        if known not in self.addresses:
            start = offset(window.start(self.tile), i64(pair.row) * (window.stride(ROW) * window.bytes))
            self.addresses[known] = start
            self.addresses[*known, "col"] = offset(start, i64(self.col) * stride)
        if pair.cols_inside is not None:
            return offset(self.addresses[known], i64(pair.col) * stride)
        return offset(self.addresses[*known, "col"], 8 * pair.block * stride)

    def _together(self, window: Window) -> bool:
        """Whether the two elements of a pair are one aligned access."""
        if window.stride(COL) != 1 or self.plan.geometry.cols % 2:
            return False
        return window.align((COL,)) >= min(16, 2 * window.bytes)

    def _read(self, window: Window, key: tuple, pair: Pair) -> list[Value]:
        place = self._address(window, key, pair)
        size, dtype = window.bytes, window.dtype
        if not window.along(COL):
            return load_elements(place, dtype, 1, constant=window.constant) * 2
        if self._together(window):
            return load_elements(place, dtype, 2, align=min(16, 2 * size), constant=window.constant)
        step = window.stride(COL) * size
        second = offset(place, step)
        if pair.cols_inside is not None and self.plan.geometry.cols % 2:
            second = select(pair.cols_inside[1], second, place)
        return [load_elements(at, dtype, 1, constant=window.constant)[0] for at in (place, second)]

    def _write(self, window: Window, number: int, pair: Pair, values: list[Value]) -> None:
        place = self._address(window, ("store", number), pair)
        size, dtype = window.bytes, window.dtype
        pieces = (
            [(place, values, 0)]
            if self._together(window)
            else [(offset(place, lane * window.stride(COL) * size), values[lane : lane + 1], lane) for lane in range(2)]
        )
        for target, piece, lane in pieces:
            column = None if pair.cols_inside is None else pair.cols_inside[lane]
            if_all([pair.row_inside, column], functools.partial(store_elements, piece, target, dtype, len(piece) * size))
