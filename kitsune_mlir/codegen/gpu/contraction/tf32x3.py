"""f32 products as exact as f32 arithmetic, on tensor cores: each operand as the sum of two tf32 numbers.

A tensor core reads the upper 19 bits of an f32 number as tf32. So a number x is rounded to the nearest tf32 number x', and the
rest x - x', which is exact in f32, has its own upper bits read. Of the four products, the three that matter are added:
a'b' + (a - a')b' + a'(b - b'); what is left out is about 2^-23 of each product. Cutting x off in place of rounding it would
leave four times that, and more of one sign. (Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision",
2018; Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022.) Infinite operands give NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, sync_warp
from kitsune_mlir.codegen.gpu.emit.convert import rounded_to_tf32
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, unpack, vector
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["BLOCK_BYTES", "TURNED", "turn_parts", "write_parts"]

_AT_A_TIME = 8
"""Vectors of 16 bytes that a thread has in flight."""
TURNED = 32
"""Rows, and terms of the sum, of a block that a warp turns."""
BLOCK_BYTES = TURNED * TURNED * 4


def write_parts(start: Value, bytes: int, thread: Value, count: int, distance: int | None = None) -> None:
    """Round `bytes` bytes of f32 numbers in shared memory, and put the rests behind them.

    Args:
        thread: number of the calling thread among the `count` that do it.
        distance: bytes from a number to its rest; None is `bytes`.
    """
    distance = bytes if distance is None else distance
    place = thread * 16

    def some(at: Value) -> None:
        sources = [offset(start, at + number * 16 * count) for number in range(_AT_A_TIME)]
        for source, found in zip(sources, [load(source, "vector<4xf32>") for source in sources], strict=True):
            _store_parts(unpack(found), source, distance)

    step = 16 * count * _AT_A_TIME
    whole = bytes // step * step
    for_(place, whole, step, some)

    def one(at: Value) -> None:
        source = offset(start, at)
        _store_parts(unpack(load(source, "vector<4xf32>")), source, distance)

    if whole < bytes:
        for_(place + whole, bytes, 16 * count, one)


def turn_parts(start: Value, lane: Value, distance: int) -> None:
    """The same of a block where memory runs across the sum, while tensor cores read f32 along it: turn 32 terms x 32 rows.

    TMA loads a block as 32 swizzled rows of 128 bytes, one a term; it becomes as many rows of 32 terms, in its own place. A
    warp holds it in registers: neighbouring lanes have neighbouring rows, whose banks differ in either layout.

    Args:
        lane: of the calling warp; `distance`: as of `write_parts`.
    """
    block, lane = SharedTile(TURNED, TURNED, 4), fresh(lane)  # else the addresses of all blocks are kept in registers
    values = [load(offset(start, block.offset(term, lane)), "f32") for term in range(TURNED)]
    sync_warp()
    for term in range(0, TURNED, 4):
        _store_parts(values[term : term + 4], offset(start, block.offset(lane, term)), distance)


def _store_parts(values: Sequence[Value], place: Value, distance: int) -> None:
    """The parts of four numbers. A NaN that rounding makes something else remains one in the rest."""
    upper = [bitcast(rounded_to_tf32(bitcast(value, "i32")), "f32") for value in values]
    store(vector(upper), place)
    store(vector([value - part for value, part in zip(values, upper, strict=True)]), offset(place, distance))
