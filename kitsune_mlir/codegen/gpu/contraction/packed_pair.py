"""A thread's part of a tensor at one place: two neighbouring columns, or one number for both; 16-bit pairs stay packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.emit.control_flow import shuffle_xor
from kitsune_mlir.codegen.gpu.emit.convert import pack_pair, unpack_pair
from kitsune_mlir.codegen.gpu.emit.inline_ptx import pinned
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, pack, select, unpack, wrap
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["Lanes", "add_packed", "exchange", "pin"]


class Lanes:
    """One or two elements of type `dtype`. 16-bit floats exist in up to three forms, each made when it is asked for.

    Args:
        dtype: the element type as MLIR prints it.
        scalars: one or two values of that type.
        word: two 16-bit floats as one i32.
        wide: one or two 16-bit floats as f32 of the same values.
    """

    __slots__ = ("dtype", "_scalars", "_wide", "_word")

    def __init__(
        self,
        dtype: str,
        scalars: Sequence[Value] | None = None,
        word: Value | None = None,
        wide: Sequence[Value] | None = None,
    ):
        self.dtype = dtype
        self._scalars = list(scalars) if scalars is not None else None
        self._word = word
        self._wide = list(wide) if wide is not None else None

    @property
    def short(self) -> bool:
        """Whether the elements are 16-bit floats."""
        return self.dtype in HALF_TYPES

    @property
    def uniform(self) -> bool:
        """Whether one number stands for both columns."""
        known = self._scalars if self._scalars is not None else self._wide
        return known is not None and len(known) == 1

    @property
    def scalars(self) -> list[Value]:
        """The elements in their own type."""
        if self._scalars is None:
            if self._word is not None:
                self._scalars = unpack(bitcast(self._word, f"vector<2x{self.dtype}>"))
            else:
                self._scalars = [cast(value, self.dtype) for value in self._wide or ()]
        return self._scalars

    @property
    def wide(self) -> list[Value]:
        """16-bit elements as f32, exact."""
        if self._wide is None:
            if self._word is not None:
                self._wide = list(unpack_pair(self._word, self.dtype))
            else:
                self._wide = [cast(value, "f32") for value in self._scalars or ()]
        return self._wide

    @property
    def word(self) -> Value:
        """Two 16-bit elements packed, the left one in the lower half."""
        if self._word is None:
            if self._scalars is not None:
                self._word = pack(self._scalars[0], self._scalars[-1])
            else:
                wide = self.wide
                self._word = pack_pair(wide[0], wide[-1], self.dtype)
        return self._word

    def at(self, lane: int) -> Value:
        """Element `lane` (0 or 1) in its own type."""
        values = self.scalars
        return values[lane % len(values)]

    @property
    def registers(self) -> list[Value]:
        """What a settled object consists of, where that is 32 bits wide."""
        if self._word is not None:
            return [self._word]
        return [value for value in self.scalars if str(value.type) in ("f32", "i32")]

    def replaced(self, registers: Sequence[Value]) -> Lanes:
        """The same with other `registers`."""
        if not registers:
            return self
        return Lanes(self.dtype, word=registers[0]) if self._word is not None else Lanes(self.dtype, scalars=registers)

    def settled(self) -> Lanes:
        """The elements in the form that takes the fewest registers."""
        if self.short and not self.uniform:
            return Lanes(self.dtype, word=self.word)
        return Lanes(self.dtype, scalars=self.scalars)


def add_packed(a: Value, b: Value, dtype: str) -> Value:
    """The sum of two packed pairs, each rounded once: the same as adding in f32 and rounding."""
    type_ = f"vector<2x{dtype}>"
    return bitcast(wrap(arith.addf(bitcast(a, type_).ir, bitcast(b, type_).ir)), "i32")


def pin(lanes: dict[Any, Lanes]) -> dict[Any, Lanes]:
    """The same settled lanes, in registers from here on: LLVM does not compute them later, where they are used."""
    values = [value for item in lanes.values() for value in item.registers]
    if not values:
        return lanes
    rest = iter(pinned(values))
    return {key: item.replaced([next(rest) for _ in item.registers]) for key, item in lanes.items()}


def exchange(words: Sequence[Value], quad: Value) -> list[Value]:
    """Transpose 4 words of the 4 lanes that share a row: lane q (`quad`) gets word q of every lane, in their order."""
    words = list(words)
    for distance in (1, 2):
        upper = (quad & distance) != 0
        for low in (index for index in range(4) if not index & distance):
            high = low + distance
            received = shuffle_xor(select(upper, words[low], words[high]), distance)
            words[low], words[high] = select(upper, received, words[low]), select(upper, words[high], received)
    return words
