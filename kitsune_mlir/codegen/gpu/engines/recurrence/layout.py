"""How blocks share a recurrent layer, and what each holds: sizes and predicted times, no IR.

A block has some hidden units of a direction and some rows of the batch: all gates' rows of the weights for these units. Its
warps share the sum over the hidden state, 64 bytes of a row (a k-block) at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from kitsune_mlir.machine import rates

__all__ = ["K_BYTES", "Layout", "layout_of"]

K_BYTES = 64
"""Of a row of weights, or of hidden states, that a warp multiplies at a time: two `mma.sync`."""
ROWS, COLUMNS = 16, 8
"""Of a tile of `mma.sync`: rows of weights, rows of the batch."""
PARTIAL_BYTES = 64 << 10
"""Shared memory for the sums of all warps: rows of the batch are done in passes that fit."""
REGISTERS = {8: 168, 12: 168, 16: 128}
"""Of a thread, by the warps of a block: what engines of products leave to it in one kernel with them."""
OTHER_REGISTERS = 56
"""Of a thread, for everything but fragments."""
SPLIT_REGISTERS = 20
"""Of a thread, for the parts of f32 numbers."""
MOST_TILES = 8
"""Tiles of rows of a block."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A block's share of a layer.

    Attributes:
        gates, hidden, batch, directions, steps: of the layer. bytes: of an element of its weights.
        units: hidden units of a block. rows: rows of the batch of a block.
        unit_blocks, batch_blocks: how many blocks share these, in each direction.
        warps: of a block.
        columns: rows of the batch (a multiple of 8) that a pass multiplies.
        together: tiles of these that a warp multiplies at once.
        held: k-blocks of each warp whose weights stay in registers; the others are read again in each step.
        products: `mma.sync` for each product, three of tf32 numbers for f32.
    """

    gates: int
    hidden: int
    batch: int
    directions: int
    steps: int
    bytes: int
    units: int
    rows: int
    unit_blocks: int
    batch_blocks: int
    warps: int
    columns: int
    together: int
    held: int
    products: int

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
        """Blocks."""
        return self.directions * self.unit_blocks * self.batch_blocks

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
        """Of a hidden state that blocks hand to each other."""
        return self.k_blocks * K_BYTES

    @property
    def state_bytes(self) -> int:
        """Of the hidden states of the block's rows, as blocks hand them to each other: padded to whole passes."""
        return self.passes * self.columns * self.row_bytes

    @property
    def shared(self) -> dict[str, int]:
        """Bytes of shared memory by what they are for: partial sums, what is given, states of cells, biases."""
        cells = self.units * self.rows
        return {
            "sums": 4 * self.warps * self.tiles * ROWS * self.sums_stride,
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
        products = 2 * self.k_blocks * self.tiles * self.products * self.passes * self.columns // COLUMNS
        again = self.tiles * ROWS * K_BYTES * self.warps * (self.own_k_blocks - self.held)
        load = (self.rows * self.row_bytes + again * self.passes) / rates.RECURRENT_LOAD
        cells = rates.RECURRENT_CELL * self.passes * -(-self.units * min(self.columns, self.rows) // self.threads)
        return rates.RECURRENT_STEP + max(products * rates.RECURRENT_PRODUCT, load) + cells


def _tiled(
    gates: int, hidden: int, batch: int, directions: int, steps: int, bytes: int, blocks: int, products: int
) -> Iterator[Layout]:
    """Every layout for some number of blocks a direction."""
    for batch_blocks in (1, 2, 4, 8, 16, 32):
        if batch_blocks > 1 and batch_blocks > -(-batch // COLUMNS):
            break
        rows = -(-batch // batch_blocks)
        for tiles in range(1, MOST_TILES + 1):
            units = min(hidden, ROWS * tiles // gates)
            unit_blocks = -(-hidden // units)
            if unit_blocks * batch_blocks > blocks:
                continue
            if directions * unit_blocks * batch_blocks == 1:
                unit_blocks = 2  # blocks that share a tile are several: here both do the same
            for warps, registers in REGISTERS.items():
                columns = -(-rows // COLUMNS) * COLUMNS
                columns = max(COLUMNS, min(columns, PARTIAL_BYTES // (4 * warps * tiles * ROWS) // COLUMNS * COLUMNS))
                free = registers - OTHER_REGISTERS - (SPLIT_REGISTERS if products > 1 else 0)
                for together in (4, 2, 1):
                    fragments = tiles * together * 4 + together * 8
                    if together > 1 and (columns % (together * COLUMNS) or fragments > free // 2):
                        continue
                    shape = (gates, hidden, batch, directions, steps, bytes, units, rows, unit_blocks, batch_blocks)
                    layout = Layout(*shape, warps, columns, together, 0, products)
                    held = min(layout.own_k_blocks, max(0, free - fragments) // (8 * tiles))
                    yield dataclasses.replace(layout, held=held)
                    break


@functools.lru_cache(maxsize=256)
def layout_of(
    gates: int,
    hidden: int,
    batch: int,
    directions: int,
    steps: int,
    bytes: int,
    workers: int,
    shared_bytes: int,
    threads: int,
    products: int,
) -> Layout | None:
    """The fastest layout, by prediction, on `workers` multiprocessors with blocks of so much memory; None if there is none.

    Args:
        bytes: of an element of the weights. The others: see `Layout`.
    """
    found = [
        layout
        for layout in _tiled(gates, hidden, batch, directions, steps, bytes, max(1, workers // directions), products)
        if layout.pieces <= max(2, workers) and layout.shared_bytes <= shared_bytes and layout.threads <= threads
    ]
    return min(found, key=lambda layout: (layout.step_seconds, layout.pieces, layout.warps), default=None)
