"""How blocks share a row that they sort together, and where they leave what they hand each other."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import element_bits
from kitsune_mlir.codegen.gpu.interface.engine import Steps
from kitsune_mlir.codegen.gpu.interface.stable_sort import StableSort
from kitsune_mlir.machine import rates

__all__ = ["DIGITS", "Layout", "layout_of"]

DIGITS = 256
"""Values of a byte."""
SHORTEST = 2048
"""Elements of a row that several blocks sort sooner than one does."""
ALONE = 8192
"""Elements of a row up to which one block can sort it (`sort.engine`)."""
FEW = 2048
"""Elements of a part that fewer threads sort."""
PART = 1024
"""Elements of a block's part, at least."""
CHUNK = 8192
"""Elements that a block sorts at once, at most."""
ALIGN = 32
"""Elements that parts are multiples of."""
THREADS = 512
FEWEST_THREADS = 256
FLIGHT = 8
"""Loads of a thread that are under way together."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Of a row in memory: keys, then places of them, two arrays each; digits that each part has of each; bits that differ.

    Attributes:
        length: elements of the row.
        part: elements of a block's part.
        threads: that work.
        bits: of an element.
    """

    length: int
    part: int
    threads: int
    bits: int

    @property
    def pieces(self) -> int:
        """Blocks of a row."""
        return -(-self.length // self.part)

    @property
    def passes(self) -> int:
        """Bytes of a key."""
        return self.bits // 8

    @property
    def word(self) -> int:
        """Bytes of a key in memory."""
        return 8 if self.bits == 64 else 4

    @property
    def key(self) -> str:
        """Type of a key."""
        return "i64" if self.bits == 64 else "i32"

    @property
    def chunk(self) -> int:
        """Elements that a block sorts at once."""
        return min(self.part, CHUNK)

    @property
    def room(self) -> int:
        """Elements of an array."""
        return self.part * self.pieces

    @property
    def places(self) -> int:
        """Bytes before the places."""
        return 2 * self.word * self.room

    @property
    def table(self) -> int:
        """Bytes before the digits, i32 each."""
        return self.places + 2 * 4 * self.room

    @property
    def differing(self) -> int:
        """Bytes before the bits that differ, 8 bytes for each part."""
        return self.table + 4 * DIGITS * self.pieces

    @property
    def bytes(self) -> int:
        """Of a row."""
        return self.differing + 8 * (self.pieces + self.pieces % 2)

    @property
    def sort(self) -> StableSort:
        """Of a chunk, by a byte."""
        return StableSort(DIGITS, self.threads, FLIGHT)

    @property
    def bases(self) -> int:
        """Bytes of shared memory before where entries of each byte go."""
        return -(-self.sort.shared_bytes // 16) * 16

    @property
    def sums(self) -> int:
        """Bytes of shared memory before sums on the way, two for each thread."""
        return self.bases + 4 * DIGITS

    @property
    def keys(self) -> int:
        """Bytes of shared memory before a chunk's keys; their places follow."""
        return self.sums + 8 * self.threads

    @property
    def shared_bytes(self) -> int:
        """Shared memory."""
        return self.keys + self.chunk * (self.word + 4)

    @property
    def steps(self) -> Steps:
        """How long it takes; of wide numbers, as if half of their bytes were the same in all of a row."""
        passes = min(self.passes, 4)
        return Steps(2 * passes + 2, rates.RADIX_MEET + self.part * rates.RADIX_ELEMENT / 2, self.pieces)


def layout_of(length: int, rows: int, type: ir.Type, workers: int, threads: int) -> Layout | str:
    """How so many rows are shared; a reason where they are not.

    Args:
        type: of their elements. workers: multiprocessors. threads: the most that a block can have.
    """
    bits = element_bits(type)
    if bits % 8:
        return f"its elements have {bits} bits"
    if threads < FEWEST_THREADS:
        return f"a row needs {FEWEST_THREADS} threads; the kernel has {threads}"
    blocks = min(-(-length // PART), max(2, workers // min(rows, workers)), workers)
    if length < SHORTEST or (length <= ALONE and rows * blocks > workers):
        return f"networks of a block each sort {rows} rows of {length} elements sooner"
    if blocks < 2:
        return "there is one multiprocessor"
    part = -(-length // (blocks * ALIGN)) * ALIGN
    few = threads < THREADS or part <= FEW
    return Layout(length, part, FEWEST_THREADS if few else THREADS, bits)
