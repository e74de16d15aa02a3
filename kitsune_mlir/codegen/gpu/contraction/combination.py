"""How values are combined with those in memory that other threads change at the same time, by kind and type.

What an instruction does is left to it: sums (`red.add`), the larger and the smaller of integers (`red.max`, `red.min`). Floats
are ordered as their bits are, seen as signed integers where they are positive and backwards where they are negative. Products
swap words until nobody else was in between. Of what only grows or only shrinks the value before is looked at first: mostly
there is nothing to do. 16-bit floats are only added and assigned; for the rest `frontend/scatters.py` makes them f32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.row_addition import widest
from kitsune_mlir.codegen.gpu.emit.control_flow import if_, while_
from kitsune_mlir.codegen.gpu.emit.memory import compare_and_swap, offset, reduce_add, reduce_extreme
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, constant, select
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements, store_elements
from kitsune_mlir.codegen.gpu.interface.window import BASE_ALIGN
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS, ASSIGN
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["Combination", "combined"]

_LARGEST = {"maximumf": True, "maxs": True, "minimumf": False, "mins": False}


def combined(kind: str, old: Value, value: Value) -> Value:
    """A value of a kind's operation, in registers."""
    if kind == ASSIGN:
        return value
    if kind in ADDITIONS:
        return old + value
    return select(_changes(kind, old, value), value, old) if kind in _LARGEST else old * value


def _changes(kind: str, old: Value, value: Value) -> Value:
    """Whether a value takes the place of the one before, where one of both stays. Nothing takes the place of NaN."""
    beyond = value > old if _LARGEST[kind] else value < old
    return beyond | ((value != value) & (old == old)) if kind.endswith("f") else beyond


@dataclasses.dataclass(frozen=True)
class Combination:
    """What is done with runs of neighbouring elements.

    Attributes:
        kind: as `kitsune.atomic_scatter` has it.
        dtype: type of an element in memory.
        width: elements of a run, which is aligned to its size.
        pairs: the tensor that is changed begins at a word, and ends with one.
    """

    kind: str
    dtype: str
    width: int
    pairs: bool = False

    @classmethod
    def of(cls, kind: str, dtype: str, columns: int, offsets: Sequence[int], rows: int = 0) -> Combination:
        """Runs as long as rows of `columns` elements and the buffers' offsets, in bytes, allow: up to 16 bytes.

        Args:
            offsets: the last one is that of the tensor that is changed, of so many `rows`.
        """
        dtype = "i8" if dtype == "i1" else dtype
        if kind in ADDITIONS:
            pairs = rows * columns * dtype_bytes(dtype) % 4 == 0 and offsets[-1] % 4 == 0 and rows > 0
            return cls(kind, dtype, widest(dtype, columns, list(offsets)) or 1, pairs)
        align = math.gcd(16, BASE_ALIGN, columns * dtype_bytes(dtype), *offsets)
        return cls(kind, dtype, max(1, align // dtype_bytes(dtype)))

    @property
    def looks_first(self) -> bool:
        """Whether `put` needs what was there."""
        return self.kind not in (*ADDITIONS, ASSIGN)

    def load(self, pointer: Value) -> list[Value]:
        """A run, in registers."""
        return load_elements(pointer, self.dtype, self.width, align=self.width * dtype_bytes(self.dtype))

    def put_at(self, start: Value, element: Value, values: Sequence[Value], before: Sequence[Value]) -> None:
        """`put` at element number `element` (i64) of a tensor that begins at `start`.

        A single 16-bit float is added as half of a word, whose other half gets -0, which changes nothing: what adds one alone
        is a loop that swaps words.
        """
        size = dtype_bytes(self.dtype)
        if not (self.kind in ADDITIONS and self.dtype in HALF_TYPES and self.width == 1 and self.pairs):
            self.put(offset(start, element * size), values, before)
            return
        odd, nothing = (element & 1) != 0, constant(-0.0, self.dtype)
        pair = [select(odd, nothing, values[0]), select(odd, values[0], nothing)]
        reduce_add(offset(start, (element >> 1) * (2 * size)), pair)

    def put(self, pointer: Value, values: Sequence[Value], before: Sequence[Value]) -> None:
        """Combine a run with that at `pointer`; `before` is what was there, now or earlier, if it `looks_first`."""
        if self.kind == ASSIGN:
            store_elements(values, pointer, self.dtype, align=self.width * dtype_bytes(self.dtype))
        elif self.kind in ADDITIONS:
            reduce_add(pointer, list(values))
        else:
            for number, (value, old) in enumerate(zip(values, before, strict=True)):
                place = offset(pointer, number * dtype_bytes(self.dtype))
                if self.kind in _LARGEST:
                    if_(_changes(self.kind, old, value), lambda place=place, value=value: self._extreme(place, value))
                else:
                    self._multiply(place, value, old)

    def _extreme(self, pointer: Value, value: Value) -> None:
        """Keep the larger or the smaller of one element and that in memory."""
        largest = _LARGEST[self.kind]
        if not self.kind.endswith("f"):
            reduce_extreme(pointer, value, largest)
            return
        bits = dtype_bytes(self.dtype) * 8
        # NaN has the bits that nothing is beyond: of the largest positive number, or of the smallest negative one.
        nan = constant((1 << (bits - 1)) - 1 if largest else -1, f"i{bits}")
        number = select(value == value, bitcast(value, f"i{bits}"), nan)
        if_(
            number >= 0,
            lambda: reduce_extreme(pointer, number, largest),
            lambda: reduce_extreme(pointer, number, not largest, signed=False),
        )

    def _multiply(self, pointer: Value, value: Value, before: Value) -> None:
        """Multiply one element in memory, by compare-and-swap."""
        word = f"i{8 * dtype_bytes(self.dtype)}"

        def step(old: Value, _: Value) -> list[Value]:
            found = compare_and_swap(pointer, old, bitcast(bitcast(old, self.dtype) * value, word))
            return [found, found != old]

        while_([bitcast(before, word), constant(1, "i1")], lambda _, again: again, step)
