"""Which thread holds which element of a tile, in which register: of wgmma's accumulators, and of rows spread over lanes.

A **register layout** maps (thread, register) to (row, column). It is separable: the row is a part that depends on the
thread plus a constant of the register, and so is the column. The thread may be an `int` (in tests) or anything with
Python's integer operators (a `Value` while code is emitted): the same formulas serve both.

Layouts of tiles in shared memory are in `machine/shared_tile.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from kitsune_mlir.machine.shared_tile import Index

__all__ = ["TF32_K_ORDER", "Layout", "RowLayout", "WgmmaA", "WgmmaAccumulator", "choose_row_layout"]


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


class Layout(Protocol):
    """A tile of `rows` x `cols` elements in the registers of `threads` threads, `registers` elements each."""

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def registers(self) -> int: ...

    @property
    def padded_rows(self) -> int:
        """Rows that have a register; from `rows` on they hold nothing."""
        ...

    @property
    def padded_cols(self) -> int:
        """Columns that have a register; from `cols` on they hold nothing."""
        ...

    @property
    def row_masks(self) -> tuple[int, ...]:
        """Shuffle masks (xor on the lane) that reach all lanes of the warp that share a row."""
        ...

    @property
    def col_masks(self) -> tuple[int, ...]:
        """Shuffle masks that reach all lanes of the warp that share columns."""
        ...

    @property
    def row_warps(self) -> int:
        """Warps over which one row is spread."""
        ...

    def thread_row(self, thread: Index) -> Index: ...

    def thread_col(self, thread: Index) -> Index: ...

    def register_row(self, register: int) -> int: ...

    def register_col(self, register: int) -> int: ...

    def row(self, thread: Index, register: int) -> Index: ...

    def col(self, thread: Index, register: int) -> Index: ...

    def runs(self, limit: int = 16) -> tuple[Run, ...]: ...


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


def WgmmaA(k: int, vector: int = 2) -> WgmmaAccumulator:
    """The layout of A (64 x k, 16-bit elements) in registers: the same as the accumulator's with n = k, k a multiple
    of 16.

    Register i of the fragment is half of PTX's packed register i/2.

    Raises:
        ValueError: another k.
    """
    if k % 16:
        raise ValueError(f"A's k is a multiple of 16, not {k}")
    return WgmmaAccumulator(k, vector)


TF32_K_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""An f32 accumulator used as tf32 A: position p of each 8 along k holds column TF32_K_ORDER[p].

Permute B's k likewise.
"""


@dataclasses.dataclass(frozen=True)
class RowLayout(Separable):
    """`rows` x `cols` over `threads` threads, every row spread over `lanes` neighbouring threads by vectors.

    Lane l of a row holds columns [l*vector, (l+1)*vector) of each stretch of lanes*vector columns: neighbouring lanes
    touch neighbouring memory. Rows go round the groups of lanes: group g holds rows g, g + groups, ...

    Attributes:
        threads: a multiple of `lanes`.
        lanes: a power of two up to 32 (a row inside a warp), or a multiple of 32 (a row over several warps, or the
            block).
        vector: a power of two.
    """

    rows: int
    cols: int
    threads: int
    lanes: int
    vector: int

    def __post_init__(self) -> None:
        whole_warps = self.lanes % 32 == 0
        if self.lanes < 1 or not (whole_warps or (self.lanes < 32 and self.lanes & (self.lanes - 1) == 0)):
            raise ValueError(f"lanes are a power of two below 32 or a multiple of 32, not {self.lanes}")
        if self.threads % self.lanes:
            raise ValueError(f"{self.threads} threads are no multiple of {self.lanes} lanes")
        if self.vector < 1 or self.vector & (self.vector - 1):
            raise ValueError(f"the vector is a power of two, not {self.vector}")
        if self.rows < 1 or self.cols < 1:
            raise ValueError(f"a tile has rows and columns, not {self.rows} x {self.cols}")

    @property
    def groups(self) -> int:
        """Rows that the threads hold side by side."""
        return self.threads // self.lanes

    @property
    def row_steps(self) -> int:
        """Rows that each thread has a part of."""
        return -(-self.rows // self.groups)

    @property
    def col_steps(self) -> int:
        """Vectors that each thread holds of a row."""
        return -(-self.cols // (self.lanes * self.vector))

    @property
    def padded_rows(self) -> int:
        return self.row_steps * self.groups

    @property
    def padded_cols(self) -> int:
        return self.col_steps * self.lanes * self.vector

    @property
    def registers(self) -> int:
        return self.row_steps * self.col_steps * self.vector

    @property
    def row_masks(self) -> tuple[int, ...]:
        return tuple(1 << bit for bit in range(5) if 1 << bit < self.lanes)

    @property
    def col_masks(self) -> tuple[int, ...]:
        return tuple(1 << bit for bit in range(5) if self.lanes <= 1 << bit < self.threads)

    @property
    def row_warps(self) -> int:
        return max(1, self.lanes // 32)

    def thread_row(self, thread: Index) -> Index:
        return thread // self.lanes

    def thread_col(self, thread: Index) -> Index:
        return thread % self.lanes * self.vector

    def register_row(self, register: int) -> int:
        return register // (self.col_steps * self.vector) * self.groups

    def register_col(self, register: int) -> int:
        step, element = divmod(register % (self.col_steps * self.vector), self.vector)
        return step * self.lanes * self.vector + element


def choose_row_layout(
    rows: int, cols: int, threads: int, element_bytes: int, max_registers: int = 64, vector: int | None = None
) -> RowLayout:
    """A `RowLayout` with the widest vectors (up to 16 bytes) that divide the columns, and the fewest lanes that keep
    a row in a warp and `max_registers` elements of a row per thread.

    A row takes more than a warp only if a warp's registers do not hold it.

    Raises:
        ValueError: the row does not fit the registers of all threads.
    """
    if vector is None:
        vector = 1
        while vector * 2 * element_bytes <= 16 and cols % (vector * 2) == 0:
            vector *= 2
    vectors = -(-cols // vector)
    lanes = 1
    while lanes < 32 and lanes < vectors and lanes * 2 <= threads:
        lanes *= 2
    while -(-vectors // lanes) * vector > max_registers and lanes < threads:
        lanes *= 2
        while threads % lanes:
            lanes += 32
    if -(-vectors // lanes) * vector > max_registers:
        raise ValueError(f"a row of {cols} does not fit {threads} threads with {max_registers} registers each")
    return RowLayout(rows, cols, threads, lanes, vector)
