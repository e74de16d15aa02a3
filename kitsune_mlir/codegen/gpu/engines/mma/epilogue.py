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
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step, is_constant
from kitsune_mlir.codegen.gpu.contraction.gather import extract_pair, tables_of, walked_loop
from kitsune_mlir.codegen.gpu.contraction.scalar_body import constant_of, emit_body, is_zero
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, sync_warp
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


class Epilogue:
    """Evaluates and stores a tile.

    Args:
        plan: what was decided.
        tile: the tile.
        group: index of the warpgroup among the consumers.
        share: which part of the columns is evaluated, of those that blocks divide among each other; None: all of them.
    """

    def __init__(self, plan: MmaPlan, tile: TileContext, group: Value, share: Value | None = None):
        self.plan, self.tile = plan, tile
        self.accumulators: list[Value] = []
        self.pattern = plan.pattern
        self.group = group
        self.approximate = all(str(store.buffer.element) == "bf16" for store in self.pattern.task.stores)
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
        self.known: dict[tuple, list[Value]] = {}
        self.words: dict[tuple, dict[tuple[int | None, int], Value]] = {}  # pairs by half and 8-column block
        self.addresses: dict[tuple, Value] = {}
        self.windows: dict[tuple, Window] = {}
        self.tables = tables_of(plan.pattern.task)
        self.sums = {product.op.results[0]: number for number, product in enumerate(plan.pattern.products)}

    def preload(self) -> None:
        """Start to load pairs that the steps read (a bias, a residual): they come while the last products are made."""
        left = PRELOADED
        uses = [(step.op, number) for step in dict.fromkeys(self.pattern.steps.values()) for number in step.operands]
        for op, number in [*((product.op, 2) for product in self.pattern.products), *uses]:
            load = self.pattern.task.load_of(op.operands[number])
            if load is None:
                continue
            sides = self.pattern.operand_sides(op, number)
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
            for number, store in enumerate(self.pattern.task.stores):
                if number in staged:
                    self._stage(store.tensor, first // 8, slot)
                    slot = StoreRing(self.plan, self.tile.task).ring(0).next(slot)
            for block in range(first // 8, (first + step) // 8):
                for number, store in enumerate(self.pattern.task.stores):
                    if number not in staged:
                        window = self._window(("store", number), store, self.pattern.value_sides(store.tensor))
                        for pair in self._pairs(block):
                            self._write(window, number, pair, self._evaluate(store.tensor, pair))
        return slot

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
                pieces = self._evaluate(value, pair)
                values += pieces * (2 // len(pieces))
        return values

    def _reads_elements(self) -> bool:
        """Whether some step reads a matrix, or a table by index."""
        for step in dict.fromkeys(self.pattern.steps.values()):
            if step.kind == "map" and any(inner.name == "tensor.extract" for inner in body_of(step.op)):
                return True
            for number in step.operands:
                load = self.pattern.task.load_of(step.op.operands[number])
                if load is not None and set(self.pattern.operand_sides(step.op, number)) == {ROW, COL}:
                    return True
        return False

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

    def _evaluate(self, value: ir.Value, pair: Pair) -> list[Value]:
        """The pair's two elements of a computed tensor; one, if it does not depend on the column."""
        sides = self.pattern.value_sides(value)
        key = (value, pair.half if ROW in sides else None, pair.block if COL in sides else None)
        if key not in self.known:
            if value in self.sums:
                self.known[key] = self._product(self.sums[value], pair)
            elif is_constant(value):
                self.known[key] = [constant_of(value)]
            else:
                self.known.update(self._step(self.pattern.steps[value], key[1:], pair))
        return self.known[key]

    def _product(self, number: int, pair: Pair) -> list[Value]:
        first = 4 * (pair.block + number * self.width // 8) + 2 * pair.half
        sums = self.accumulators[first : first + 2]
        start = self._operand(self.pattern.products[number].op, 2, pair)
        if is_zero(start[0].ir):
            return sums
        return [value + start[lane % len(start)] for lane, value in enumerate(sums)]

    def _step(self, step: Step, key: tuple, pair: Pair) -> dict[tuple, list[Value]]:
        operands = {number: self._operand(step.op, number, pair) for number in step.operands}
        if step.kind in ("alias", "fill"):
            return {(step.op.results[0], *key): operands[0]}
        lanes = 1 if key[1] is None else 2
        yielded = []
        for lane in range(lanes):
            elements = [
                operands[number][lane % len(operands[number])] if number in operands else None
                for number in range(len(step.op.operands))
            ]
            index = functools.partial(self._index, step, pair, lane)
            extract = functools.partial(self._extract, step, pair, lane)
            yielded.append(emit_body(step.op, elements, self.tile, index, extract, self.approximate))
        return {(result, *key): [lane[number] for lane in yielded] for number, result in enumerate(step.op.results)}

    def _index(self, step: Step, pair: Pair, lane: int, loop: int) -> Value:
        side = self.pattern.loop_side(step.op, loop)
        return pair.row if side == ROW else pair.col + lane if side == COL else i32(0)

    def _extract(self, step: Step, pair: Pair, lane: int, inner: ir.Operation, indices: Sequence[ir.Value]) -> Value:
        """What a body reads by index; where the last index is the column, both elements of the pair at once."""
        table = self.tables[inner.operands[0]]
        loop = walked_loop(inner.operands[len(inner.operands) - 1])
        together = loop is not None and self.pattern.loop_side(step.op, loop) == COL
        together = together and table.buffer.shape[-1] % 2 == 0 and self._even_columns()
        key = (inner, pair.half, pair.block) if together else (inner, pair.half, pair.block, lane)
        if key not in self.known:
            self.known[key] = extract_pair(self.tile, table, indices, together)
        return self.known[key][lane if together else 0]

    def _even_columns(self) -> bool:
        """Whether each pair of columns starts at an even column of the whole: a store says so."""
        store = self.pattern.task.stores[0]
        return self._together(self._window(("store", 0), store, self.pattern.value_sides(store.tensor)))

    def _operand(self, op: ir.Operation, number: int, pair: Pair) -> list[Value]:
        """The pair's elements of an operand: loaded, constant or computed."""
        value = op.operands[number]
        if is_constant(value):
            return [constant_of(value)]
        load = self.pattern.task.load_of(value)
        if load is None:
            return self._evaluate(value, pair)
        sides = self.pattern.operand_sides(op, number)
        key = (load.tensor, sides, pair.half if ROW in sides else None, pair.block if COL in sides else None)
        if key not in self.known:
            window = self._window((load.tensor, sides), load, sides)
            if key[:2] in self.words:
                self.known[key] = unpack(bitcast(self.words[key[:2]][key[2], pair.block], f"vector<2x{window.dtype}>"))
            else:
                self.known[key] = self._read(window, key[:2], pair)
        return self.known[key]

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
            return load_elements(place, dtype, 1, constant=window.constant)
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
        if len(values) == 1:
            values = values * 2
        pieces = (
            [(place, values, 0)]
            if self._together(window)
            else [(offset(place, lane * window.stride(COL) * size), values[lane : lane + 1], lane) for lane in range(2)]
        )
        for target, piece, lane in pieces:
            inside = pair.row_inside
            if pair.cols_inside is not None:
                column = pair.cols_inside[lane]
                inside = column if inside is None else inside & column
            write = functools.partial(store_elements, piece, target, dtype, len(piece) * size)
            write() if inside is None else if_(inside, write)
