"""Tiles in shared memory: the swizzled layout that TMA writes and wgmma reads, and wgmma's descriptors of it. Pure Python.

Coordinates may be `int` (in tests) or anything with Python's integer operators (a `Value` while code is emitted).
"""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Descriptor", "Index", "PANEL_BYTES", "PANEL_COLS", "SharedTile"]

Index = Any
"""An `int`, or a value with the operators +, *, //, %, &, >>, ^."""

PANEL_BYTES = 128
"""Bytes of a row of a panel: the width of the widest swizzle."""
PANEL_COLS = PANEL_BYTES // 2
"""Columns of a panel of 16-bit numbers."""


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """The constant part of wgmma's 64-bit matrix descriptor (PTX ISA, "Matrix descriptor format").

    Bits 0-13 start address / 16 (added when code runs), 16-29 leading byte offset / 16, 32-45 stride byte offset /
    16, 62-63 the swizzle: 1 for 128 bytes, 2 for 64, 3 for 32, 0 for none.
    """

    leading_bytes: int
    stride_bytes: int
    swizzle: int

    @property
    def bits(self) -> int:
        """The descriptor with start address 0.

        Raises:
            ValueError: an offset that the descriptor has no bits for.
        """
        for bytes in (self.leading_bytes, self.stride_bytes):
            if bytes % 16 or not 0 <= bytes >> 4 < 1 << 14:
                raise ValueError(f"a descriptor offset is a multiple of 16 below 256 KiB, not {bytes}")
        mode = {128: 1, 64: 2, 32: 3, 0: 0}[self.swizzle]
        return mode << 62 | (self.stride_bytes >> 4) << 32 | (self.leading_bytes >> 4) << 16


@dataclasses.dataclass(frozen=True)
class SharedTile:
    """`rows` x `cols` elements in shared memory, as TMA writes it and wgmma reads it: panels of swizzled rows.

    A panel holds `swizzle` bytes of every row, row after row; panels follow each other. Inside a panel the 16-byte
    pieces of a row are
    permuted: piece p of row r sits at p xor (bits 7 and up of the row's offset), so that eight rows of one column hit
    different banks. The start must be aligned to `alignment`. One TMA box is one panel (box = [rows, panel_cols]).

    As an operand of wgmma, `rows` x `cols` is either [m or n] x k ("K-major": k is contiguous) or k x [m or n]
    ("MN-major").
    """

    rows: int
    cols: int
    element_bytes: int
    swizzle: int = 128

    def __post_init__(self) -> None:
        if self.swizzle not in (32, 64, 128):
            raise ValueError(f"the swizzle is 32, 64 or 128 bytes, not {self.swizzle}")
        if self.rows % 8:
            raise ValueError(f"a swizzled tile has a multiple of 8 rows, not {self.rows}")
        if self.cols % self.panel_cols:
            raise ValueError(
                f"a tile with {self.swizzle}-byte rows has a multiple of {self.panel_cols} columns, not {self.cols}"
            )

    @property
    def panel_cols(self) -> int:
        return self.swizzle // self.element_bytes

    @property
    def panels(self) -> int:
        return self.cols // self.panel_cols

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.swizzle

    @property
    def bytes(self) -> int:
        return self.panels * self.panel_bytes

    @property
    def alignment(self) -> int:
        """Bytes after which the permutation repeats."""
        return 8 * self.swizzle

    def offset(self, row: Index, col: Index) -> Index:
        """Byte offset of an element; both coordinates may be run-time values."""
        byte = col % self.panel_cols * self.element_bytes
        start = row * self.swizzle
        key = (start >> 7) & (self.swizzle // 16 - 1)
        return col // self.panel_cols * self.panel_bytes + start + ((key ^ (byte >> 4)) << 4) + (byte & 15)

    def k_major(self) -> Descriptor:
        """Descriptor of the tile as [m or n] x k. The stride is that between groups of 8 rows.

        The leading offset is not used.
        """
        return Descriptor(16, 8 * self.swizzle, self.swizzle)

    def mn_major(self) -> Descriptor:
        """Descriptor of the tile as k x [m or n], 16-bit elements only.

        The stride is that between groups of 8 along k, the leading offset that between panels along m or n.
        """
        return Descriptor(self.panel_bytes, 8 * self.swizzle, self.swizzle)

    def k_major_start(self, row: Index, k: int) -> Index:
        """Byte offset at which a K-major operand starts at row `row` (a multiple of 8) and column `k` (whole 32-byte steps)."""
        byte = k * self.element_bytes
        return row * self.swizzle + byte // self.swizzle * self.panel_bytes + byte % self.swizzle

    def mn_major_start(self, k: Index, col: int) -> Index:
        """Byte offset at which an MN-major operand starts at `k` (a multiple of 8) and column `col` (a whole panel).

        Raises:
            ValueError: `col` is inside a panel.
        """
        if col % self.panel_cols:
            raise ValueError(f"an MN-major operand starts at a multiple of {self.panel_cols} columns, not {col}")
        return k * self.swizzle + col // self.panel_cols * self.panel_bytes
