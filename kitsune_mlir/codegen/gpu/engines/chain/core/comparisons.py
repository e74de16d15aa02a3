"""Tensors of which later layers only need to know how they compare with a number: a bit an element is kept, not the tensor.

The gradient of a ReLU is one: where the layer's result was positive. In a chain that goes forward and then backward through
its layers the results of all of them would have to wait in registers; their bits are in shared memory, 16 bytes a thread of a
layer of 256 columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select, unpack, vector
from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import defining_op

__all__ = ["Bits", "Compared", "comparisons_of", "same_comparison", "spreads", "words_of"]

BITS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """A tensor that is kept as bits.

    Attributes:
        value: the tensor.
        tests: the comparisons in bodies that read it so; all give the same.
        made: number of the product after which the bits are made.
        last: number of the last product after which they are read.
    """

    value: ir.Value
    tests: tuple[ir.Operation, ...]
    made: int
    last: int

    @property
    def words(self) -> int:
        """Of a thread, a power of two up to 4, or a multiple of 4."""
        return words_of(self.value)


def words_of(value: ir.Value) -> int:
    """Words of bits that a thread has of a tensor: of each block of 8 columns two elements of two rows."""
    words = -(-4 * -(-shape_of(value)[1] // 8) // BITS)
    return next((size for size in (1, 2) if size >= words), -(-words // 4) * 4)


def comparisons_of(op: ir.Operation, number: int) -> list[ir.Operation] | None:
    """The comparisons with one number for which alone a generic reads an operand, element by element; None: there is more."""
    operand, maps = op.operands[number], affine_maps(op)
    if op.name != "linalg.generic" or len(shape_of(operand)) != 2 or len(op.results) != 1:
        return None
    if maps[number] != maps[-1] or shape_of(operand) != shape_of(op.results[0]):
        return None
    argument = op.regions[0].blocks[0].arguments[number]
    tests = list(dict.fromkeys(use.owner.operation for use in argument.uses))
    return tests if tests and all(map(_key, tests)) and len({_key(test) for test in tests}) == 1 else None


def spreads(op: ir.Operation, made: Sequence[ir.Value]) -> bool:
    """Whether an op makes elements of a number a row, and of what is known: less is kept if that is done where they are used.

    Args:
        made: what it reads of a chain.
    """
    wide = op.name == "linalg.generic" and len(op.results) == 1 and len(shape_of(op.results[0])) == 2
    return wide and bool(made) and all(shape_of(value)[1:] in ([], [1]) for value in made)


def same_comparison(one: ir.Operation, other: ir.Operation) -> bool:
    """Whether two comparisons give the same of the same element."""
    return _key(one) == _key(other)


def _key(test: ir.Operation) -> tuple | None:
    """What a comparison with a constant is; None for anything else."""
    if test.name != "arith.cmpf":
        return None
    constants = [
        maker if (maker := defining_op(v)) is not None and maker.name == "arith.constant" else None for v in test.operands
    ]
    if sum(one is not None for one in constants) != 1:
        return None
    place = 1 if constants[0] is None else 0
    value = ir.FloatAttr(constants[place].attributes["value"]).value  # type: ignore[union-attr]
    return place, value, ir.IntegerAttr(test.attributes["predicate"]).value, str(test.operands[0].type)


class Bits:
    """The bits of one thread, of the tile that it works on.

    Args:
        compared: what is kept.
        start: pointer to the task's bits.
        thread: number among all computing threads, of which there are `threads`.
    """

    def __init__(self, compared: tuple[Compared, ...], start: Value, thread: Value, threads: int):
        self.tests = {test: one for one in compared for test in one.tests}
        self.compared, self.places, used = compared, dict[ir.Value, Value](), 0
        for one in compared:
            size = 4 * one.words
            self.places[one.value] = offset(offset(start, used), thread * size)
            used += size * threads
        self.words: dict[ir.Value, list[Value]] = {}

    @staticmethod
    def bytes(compared: tuple[Compared, ...], threads: int) -> int:
        """Of shared memory."""
        return sum(4 * one.words for one in compared) * threads

    def keep(self, number: int, evaluator) -> None:
        """Write the bits of what is made after product `number`."""
        for one in self.compared:
            if one.made == number:
                self._write(one, evaluator)
        self.words = {}

    def _write(self, one: Compared, evaluator) -> None:
        test, words = one.tests[0], [i32(0) for _ in range(one.words)]
        constant = next(
            n for n, v in enumerate(test.operands) if (m := defining_op(v)) is not None and m.name == "arith.constant"
        )
        for place in evaluator.places(one.value):
            lanes = evaluator.tensor(one.value, place)
            number = evaluator.inner_constant(test.operands[constant])
            for lane in range(2):
                given = [number, lanes.at(lane)] if constant == 0 else [lanes.at(lane), number]
                word, bit = divmod(_index(place, lane), BITS)
                words[word] = words[word] | select(clone(test, given)[0], i32(_bit(bit)), i32(0))
        for first in range(0, one.words, 4):
            some = words[first : first + 4]
            store(some[0] if len(some) == 1 else vector(some), offset(self.places[one.value], 4 * first), 4 * len(some))

    def read(self, test: ir.Operation, place) -> list[Value]:
        """What a comparison gave at a place's two elements."""
        one = self.tests[test]
        if one.value not in self.words:
            found: list[Value] = []
            for first in range(0, one.words, 4):
                count, at = min(4, one.words - first), offset(self.places[one.value], 4 * first)
                found += [load(at, "i32", 4)] if count == 1 else list(unpack(load(at, f"vector<{count}xi32>", 4 * count)))
            self.words[one.value] = found
        result = []
        for lane in range(2):
            word, bit = divmod(_index(place, lane), BITS)
            result.append((self.words[one.value][word] & i32(_bit(bit))) != 0)
        return result


def _index(place, lane: int) -> int:
    return (2 * place.block + place.half) * 2 + lane


def _bit(number: int) -> int:
    return 1 << number if number < BITS - 1 else -(1 << number)
