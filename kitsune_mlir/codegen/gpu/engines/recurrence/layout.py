"""How blocks share a recurrent layer, and what each holds: sizes and predicted times, no IR.

A block has some hidden units of a direction and some rows of the batch: all gates' rows of the weights for these units. Its
warps share the sum over the hidden state, 64 bytes of a row (a k-block) at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from kitsune_mlir.dialects.recurrence import Recurrence
from kitsune_mlir.machine import rates

__all__ = ["COLUMNS", "K_BYTES", "ROWS", "Layer", "Layout", "layout_of"]

K_BYTES = 64
"""Of a row of weights, or of hidden states, that a warp multiplies at a time: two `mma.sync`."""
ROWS, COLUMNS = 16, 8
"""Of a tile of `mma.sync`: rows of weights, rows of the batch."""
PARTIAL_BYTES = (64 << 10, 128 << 10)
"""Shared memory that the sums of all warps may have: rows of the batch are done in passes that fit."""
REGISTERS = {8: 168, 12: 168, 16: 128}
"""Of a thread, by the warps of a block: what engines of products leave to it in one kernel with them."""
OTHER_REGISTERS = 64
"""Of a thread, for everything but fragments."""
SPLIT_REGISTERS = 20
"""Of a thread, for the parts of f32 numbers."""
MOST_TILES = 8
"""Tiles of rows of a block."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Sizes of a recurrent layer.

    Attributes:
        gates: of a unit. hidden: units. batch: rows. directions: one or two.
        bytes: of an element of its weights.
        products: `mma.sync` for each product, three of tf32 numbers for f32.
    """

    gates: int
    hidden: int
    batch: int
    directions: int
    bytes: int
    products: int

    @staticmethod
    def of(what: Recurrence, exact: bool = True) -> Layer:
        """The sizes of an operation; `exact`: f32 products are as exact as f32 arithmetic."""
        wide = what.dtype == "f32"
        return Layer(what.gates, what.hidden, what.batch, what.directions, 4 if wide else 2, 3 if wide and exact else 1)


@dataclasses.dataclass(frozen=True)
class Layout(Layer):
    """A layer, and a block's share of it.

    Attributes:
        units: hidden units of a block. rows: rows of the batch of a block.
        unit_blocks, batch_blocks: how many blocks share these, in each direction.
        warps: of a block.
        flagged: a hidden state comes with the number of its step, so that whoever reads it knows when it is there.
        columns: rows of the batch (a multiple of 8) that a pass multiplies.
        together: tiles of these that a warp multiplies at once.
        held: k-blocks of each warp whose weights stay in registers. stored: the next ones, which stay in shared memory; others
            are read again in each step.
    """

    units: int
    rows: int
    unit_blocks: int
    batch_blocks: int
    warps: int
    flagged: bool
    columns: int = COLUMNS
    together: int = 1
    held: int = 0
    stored: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.warps

    @property
    def registers(self) -> int:
        """Of a thread."""
        return REGISTERS[self.warps]

    @property
    def pieces(self) -> int:
        """Blocks. Those that share a tile are several: where one does all, the other has nothing to do."""
        return max(2, self.directions * self.unit_blocks * self.batch_blocks)

    @property
    def tiles(self) -> int:
        """Tiles of rows of weights of a block."""
        return -(-self.gates * self.units // ROWS)

    @property
    def k_blocks(self) -> int:
        """Of a row of weights."""
        return -(-self.hidden * self.bytes // K_BYTES)

    @property
    def own_k_blocks(self) -> int:
        """Of each warp."""
        return -(-self.k_blocks // self.warps)

    @property
    def passes(self) -> int:
        """Over the block's rows of the batch."""
        return -(-self.rows // self.columns)

    @property
    def sums_stride(self) -> int:
        """Numbers between the rows of partial sums in shared memory: warps write them without conflicts."""
        return self.columns + (COLUMNS if self.columns // COLUMNS % 2 == 0 else 0)

    @property
    def row_bytes(self) -> int:
        """Of a row of hidden states that blocks hand to each other; with flags, each has as many bytes as its flag."""
        return self.k_blocks * K_BYTES * (2 if self.flagged else 1)

    @property
    def state_bytes(self) -> int:
        """Of the hidden states of the block's rows, as blocks hand them to each other: padded to whole passes."""
        return self.passes * self.columns * self.row_bytes

    @property
    def sums_bytes(self) -> int:
        """Of all warps' partial sums of a pass."""
        return 4 * self.warps * self.tiles * ROWS * self.sums_stride

    @property
    def shared(self) -> dict[str, int]:
        """Bytes of shared memory by what they are for: weights, partial sums (with flags, of two steps), what is given, ..."""
        cells = self.units * self.rows
        return {
            "weights": self.warps * self.stored * self.tiles * ROWS * K_BYTES,
            "sums": self.sums_bytes * (2 if self.flagged else 1),
            "given": 4 * self.gates * self.units * self.columns,
            "hidden": 4 * cells,
            "cell": 4 * cells,
            "bias": 4 * self.gates * self.units,
        }

    @property
    def shared_bytes(self) -> int:
        """Of all."""
        return sum(-(-size // 16) * 16 for size in self.shared.values())

    @property
    def step_seconds(self) -> float:
        """Predicted time of a step."""
        groups = self.passes * self.columns // (COLUMNS * self.together)
        products = 2 * self.k_blocks * self.tiles * self.products * groups * self.together
        chain = 2 * self.own_k_blocks * self.products * groups
        multiply = max(products * rates.RECURRENT_PRODUCT, chain * rates.RECURRENT_CHAIN)
        k_block = self.warps * self.tiles * ROWS * K_BYTES * groups
        again = self.rows * self.row_bytes + k_block * (self.own_k_blocks - self.held - self.stored)
        load = max(again / rates.RECURRENT_LOAD, again * self.pieces / rates.RECURRENT_LOADS)
        load += k_block * self.stored / rates.RECURRENT_SHARED
        cell = rates.RECURRENT_CELL + self.gates * self.warps * rates.RECURRENT_SUM
        cells = self.passes * -(-self.units * min(self.columns, self.rows) // self.threads)
        hand_off = rates.RECURRENT_FLAG if self.flagged else rates.RECURRENT_STEP
        more = (self.passes - 1) * rates.RECURRENT_PASS + (groups - self.passes) * rates.RECURRENT_GROUP
        return hand_off + multiply + load + cells * cell + more


def _tiled(layer: Layer, blocks: int) -> Iterator[Layout]:
    """Every way to share a layer among so many blocks a direction, all weights in memory."""
    for batch_blocks in (1, 2, 4, 8, 16, 32):
        if batch_blocks > 1 and batch_blocks > -(-layer.batch // COLUMNS):
            break
        rows = -(-layer.batch // batch_blocks)
        for tiles in range(1, MOST_TILES + 1):
            units = min(layer.hidden, ROWS * tiles // layer.gates)
            unit_blocks = -(-layer.hidden // units)
            if unit_blocks * batch_blocks > blocks:
                continue
            for warps in REGISTERS:
                for flagged in (True, False)[rows > COLUMNS :]:
                    share = {"unit_blocks": unit_blocks, "batch_blocks": batch_blocks, "warps": warps}
                    yield Layout(**dataclasses.asdict(layer), units=units, rows=rows, flagged=flagged, **share)


def _with_memory(layout: Layout, shared_bytes: int, partial_bytes: int) -> Layout:
    """A layout with as many columns in a pass, and weights in registers and shared memory, as there is room for."""
    warps, tiles = layout.warps, layout.tiles
    most = partial_bytes // (4 * warps * tiles * ROWS) // COLUMNS * COLUMNS
    columns = max(COLUMNS, min(-(-layout.rows // COLUMNS) * COLUMNS, most))
    free = layout.registers - OTHER_REGISTERS - (SPLIT_REGISTERS if layout.products > 1 else 0)
    for together in (4, 2, 1):
        fragments = tiles * together * 4 + together * 8
        if together == 1 or (columns % (together * COLUMNS) == 0 and fragments <= free // 2):
            break
    if layout.flagged:
        fragments += 8 * layout.own_k_blocks  # all states of a step come at once
    held = min(layout.own_k_blocks, max(0, free - fragments) // (8 * tiles))
    layout = dataclasses.replace(layout, columns=columns, together=together, held=held)
    room = max(0, shared_bytes - layout.shared_bytes) // (warps * tiles * ROWS * K_BYTES)
    return dataclasses.replace(layout, stored=min(room, layout.own_k_blocks - held))


@functools.lru_cache(maxsize=256)
def layout_of(layer: Layer, workers: int, shared_bytes: int, threads: int, flags: bool) -> Layout | None:
    """The fastest layout, by prediction, on `workers` multiprocessors with blocks of so much memory; None if there is none.

    Args:
        flags: whether hidden states may have flags.
    """
    found = [
        layout
        for shared in _tiled(layer, max(1, workers // layer.directions))
        for layout in (_with_memory(shared, shared_bytes, partial) for partial in PARTIAL_BYTES)
        if layout.pieces <= max(2, workers) and layout.shared_bytes <= shared_bytes and layout.threads <= threads
    ]
    found = [layout for layout in found if flags or not layout.flagged]
    return min(found, key=lambda layout: (layout.step_seconds, layout.pieces, layout.warps), default=None)
