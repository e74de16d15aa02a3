"""Which thread holds which element of a tile, in which register. Pure Python, no IR.

A **register layout** maps (thread, register) to (row, column). It is separable: the row is a part that depends on the
thread plus a constant of the register, and so is the column. The thread may be an `int` (in tests) or anything with
Python's integer operators (a `Value` while code is emitted): the same formulas serve both.

Layouts of tiles in shared memory are in `machine/shared_tile.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

__all__ = ["Index", "Run", "Separable", "WgmmaAccumulator"]

Index = Any
"""An `int`, or a value with the operators +, *, //, %, &, >>, ^."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Registers of one thread that hold neighbouring columns of one row.

    Attributes:
        registers: the registers, by column.
        row: the register part of the row.
        col: the register part of the first column.
    """

    registers: tuple[int, ...]
    row: int
    col: int

    @property
    def length(self) -> int:
        return len(self.registers)


class Separable:
    """What follows from the four parts of a layout."""

    def row(self, thread: Index, register: int) -> Index:
        """Row of an element; `thread` counts within the group of `threads`."""
        return self.thread_row(thread) + self.register_row(register)  # type: ignore[attr-defined]

    def col(self, thread: Index, register: int) -> Index:
        """Column of an element; `thread` counts within the group of `threads`."""
        return self.thread_col(thread) + self.register_col(register)  # type: ignore[attr-defined]

    @functools.cached_property
    def register_rows(self) -> tuple[int, ...]:
        """The distinct register parts of rows, ascending: one statistic per row means one value for each."""
        return tuple(sorted({self.register_row(r) for r in range(self.registers)}))  # type: ignore[attr-defined]

    @functools.cached_property
    def register_cols(self) -> tuple[int, ...]:
        """The distinct register parts of columns, ascending."""
        return tuple(sorted({self.register_col(r) for r in range(self.registers)}))  # type: ignore[attr-defined]

    def runs(self, limit: int = 16) -> tuple[Run, ...]:
        """All registers as runs of neighbouring columns, each at most `limit` long and starting at a multiple of its
        length.

        `limit` is a power of two. Since `thread_col` is a multiple of every run's length too, a run is an aligned
        vector.
        """
        ordered = sorted(
            range(self.registers),  # type: ignore[attr-defined]
            key=lambda r: (self.register_row(r), self.register_col(r)),  # type: ignore[attr-defined]
        )
        places = [(self.register_row(r), self.register_col(r)) for r in ordered]  # type: ignore[attr-defined]
        limit = min(limit, self.vector)  # type: ignore[attr-defined]
        found, start = [], 0
        while start < len(ordered):
            row, col = places[start]
            length = 1
            while length < limit and start + length < len(ordered) and places[start + length] == (row, col + length):
                length += 1
            length = 1 << (length.bit_length() - 1)
            while col % length:
                length //= 2
            found.append(Run(tuple(ordered[start : start + length]), row, col))
            start += length
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class WgmmaAccumulator(Separable):
    """64 rows x `n` columns over a warpgroup: how wgmma leaves its result, and how it reads A from registers (k = n).

    PTX ISA, "Register fragments and shared memory matrix layouts" of wgmma: thread t, register i hold row 16*warp +
    lane/4 + 8*((i/2)%2), position 8*(i/4) + 2*(lane%4) + i%2.

    Attributes:
        n: columns, a multiple of 8 (of 4 * `vector`) up to 256.
        vector: neighbouring columns that one thread holds. 2 is the hardware's. With 4 or 8 the *position* above
            holds another column, `column_of_position`, so that a thread reads and writes global memory by 8 or 16
            bytes. The weights' rows (for an accumulator) or columns (for A) must be permuted to match.
    """

    n: int
    vector: int = 2

    def __post_init__(self) -> None:
        if self.vector not in (2, 4, 8):
            raise ValueError(f"an accumulator's vector is 2, 4 or 8, not {self.vector}")
        if not 8 <= self.n <= 256 or self.n % (4 * self.vector):
            raise ValueError(f"an accumulator has a multiple of {4 * self.vector} columns up to 256, not {self.n}")

    rows = 64
    threads = 128
    row_masks = (1, 2)
    col_masks = (4, 8, 16)
    row_warps = 1
    padded_rows = 64

    @property
    def cols(self) -> int:
        return self.n

    @property
    def padded_cols(self) -> int:
        return self.n

    @property
    def registers(self) -> int:
        return self.n // 2

    def thread_row(self, thread: Index) -> Index:
        return thread // 32 * 16 + thread % 32 // 4

    def thread_col(self, thread: Index) -> Index:
        return thread % 4 * self.vector

    def register_row(self, register: int) -> int:
        return 8 * (register // 2 % 2)

    def register_col(self, register: int) -> int:
        block, inner = divmod(register // 4, self.vector // 2)
        return 4 * self.vector * block + 2 * inner + register % 2

    def column_of_position(self, position: int) -> int:
        """The column at wgmma's position (0 to n - 1) along n, or along k where the layout is A's."""
        block, inner = divmod(position, 4 * self.vector)
        step, lane, half = inner // 8, inner % 8 // 2, inner % 2
        return 4 * self.vector * block + self.vector * lane + 2 * step + half
