"""How a block's threads lie over a tile of a scan: lines, and segments of a line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

__all__ = ["Layout", "layout_of", "shares_lines"]

THREADS = 256
MOST_ELEMENTS = 16
"""Of a line's chunk that a thread has."""
MOST_BYTES = 128
"""That a thread has of a chunk, where blocks share a long line: so much is on its way while they wait for each other."""
LANES = 32
WARP = 32


@dataclasses.dataclass(frozen=True)
class Layout:
    """Threads of a block: (row * segments + segment) * fast + column. A line is a row's column.

    Attributes:
        lines: of a tile. length: of a line.
        segments: threads of a line, a power of two; each has `elements` of a chunk.
        fast: lines whose threads are neighbours, a power of two: those that are neighbours in memory.
        rows: groups of `fast` lines that the block does at a time.
        elements: see `segments`. width: neighbours among them, which divides `elements`. Neighbours of a warp's next thread
            follow, and then the thread's next ones: so a warp reads and writes what lies side by side.
    """

    lines: int
    length: int
    segments: int
    fast: int
    rows: int
    elements: int
    width: int

    @property
    def vectors(self) -> int:
        """Runs of neighbours of a thread."""
        return self.elements // self.width

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


def layout_of(tile: Sequence[int], axis: int, length: int, bytes_: int, shared: bool = False) -> Layout:
    """How threads lie over a tile.

    Args:
        tile: sizes of a tile's dimensions without the scanned one, which would be number `axis`.
        bytes_: of an element, the largest of those that are read and written.
        shared: whether blocks share the line.
    """
    inner, lines = math.prod(tile[axis:]), math.prod(tile)
    fast = min(LANES, _power(inner))
    # Long lines: vectors of 16 bytes, several of them where a block would need several turns.
    elements = width = max(1, 16 // bytes_) if fast == 1 else 4
    most = max(MOST_ELEMENTS, min(32, MOST_BYTES // bytes_)) if shared else MOST_ELEMENTS
    while elements < most and elements * (THREADS // fast) < length:
        elements *= 2
    segments = min(THREADS // fast, _power(-(-length // elements)))
    width = width if fast == 1 else elements
    return Layout(lines, length, segments, fast, THREADS // (segments * fast), elements, width)


def shares_lines(layout: Layout, tiles: int, blocks: int) -> bool:
    """Whether blocks do chunks of a line side by side: not where tiles fill the machine, or lines are short."""
    return tiles * 2 <= blocks and layout.lines <= layout.at_once and layout.chunks > 1


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()
