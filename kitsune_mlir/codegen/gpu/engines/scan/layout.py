"""How a block's threads lie over a tile of a scan: lines, and segments of a line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

__all__ = ["Layout", "layout_of", "pieces_of"]

THREADS = 256
MOST_ELEMENTS = 16
"""Neighbours along a line that a thread scans by itself."""
LANES = 32
WARP = 32


@dataclasses.dataclass(frozen=True)
class Layout:
    """Threads of a block: (row * segments + segment) * fast + column. A line is a row's column.

    Attributes:
        lines: of a tile. length: of a line.
        segments: threads of a line, a power of two; each has `elements` neighbours of a chunk.
        fast: lines whose threads are neighbours, a power of two: those that are neighbours in memory.
        rows: groups of `fast` lines that the block does at a time.
        elements: see `segments`.
    """

    lines: int
    length: int
    segments: int
    fast: int
    rows: int
    elements: int

    @property
    def threads(self) -> int:
        """That work."""
        return self.segments * self.fast * self.rows

    @property
    def chunk(self) -> int:
        """Elements of a line that the block does at a time."""
        return self.segments * self.elements

    @property
    def chunks(self) -> int:
        """Of a line."""
        return -(-self.length // self.chunk)

    @property
    def at_once(self) -> int:
        """Lines that the block does at a time."""
        return self.rows * self.fast

    @property
    def lane_segments(self) -> int:
        """Segments of a line in a warp."""
        return max(1, min(self.segments, WARP // self.fast))

    @property
    def warps(self) -> int:
        """Warps of a line."""
        return self.segments // self.lane_segments


def layout_of(tile: Sequence[int], axis: int, length: int, bytes_: int) -> Layout:
    """Args: sizes of a tile's dimensions without the scanned one, which would be number `axis`; an element's bytes."""
    inner, lines = math.prod(tile[axis:]), math.prod(tile)
    fast = min(LANES, _power(inner))
    # Long lines: vectors of 16 bytes, several of them where a block would need several turns.
    least = max(1, 16 // bytes_) if fast == 1 else 4
    elements = least
    while elements < MOST_ELEMENTS and elements * (THREADS // fast) < length:
        elements *= 2
    segments = min(THREADS // fast, _power(-(-length // elements)))
    return Layout(lines, length, segments, fast, THREADS // (segments * fast), elements)


def pieces_of(layout: Layout, tiles: int, blocks: int) -> int:
    """Parts of each line that blocks do side by side: 1 where tiles fill the machine, or lines are short."""
    if tiles * 2 > blocks or layout.lines > layout.at_once or layout.chunks < 2:
        return 1
    wanted = min(layout.chunks, blocks // tiles)
    return -(-layout.chunks // -(-layout.chunks // wanted))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()
