"""Which of attention's probabilities dropout keeps: a function of a seed and of the probability's place.

So nothing of the scores' size is drawn or kept: forward and backward make the same choice again. The bits are those of
Philox2x32-7 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011, sections 3.3 and 5), 16 for each element.
One call of it serves the four elements at rows l and l + 8, columns s and s + 8, as tensor cores leave both in one thread,
whichever of the two it has as rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["attention_keep", "keep_factor", "new_seed"]

MULTIPLIER, WEYL = 0xD256D193, 0x9E3779B9
ROUNDS = 7
"""As many as pass all of TestU01's BigCrush; what is at stake is which probabilities are dropped."""
BITS = 16
"""Of an element: chances are multiples of 2^-16."""
APART = 8
"""Rows, and columns, between elements of one call."""
WORD = (1 << 32) - 1

define(
    "attention_keep(Tensor seed, int[] size, float p) -> Tensor",
    lambda seed, size, p: torch.empty(size, dtype=torch.bool, device=seed.device),
)


def new_seed(like: Tensor) -> Tensor:
    """A seed, i64 [], drawn from the generator of a tensor's device."""
    return torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, device=like.device)


def attention_keep(seed: Tensor, size: list[int], p: float) -> Tensor:
    """Bool of a `size` [..., L, S]: false with chance `p`, rounded to a multiple of 2^-16.

    Args:
        seed: i64 [].
        size: L and S below 2^31.
    """
    return torch.ops.kitsune.attention_keep(seed, size, p)


def keep_factor(p: float) -> float:
    """What is kept is multiplied by: one over its chance."""
    return (1 << BITS) / ((1 << BITS) - _limit(p))


def _limit(p: float) -> int:
    return round(p * (1 << BITS))


def _philox(first: Tensor, second: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Two words of Philox2x32; all i64 with 32 bits."""
    for _ in range(ROUNDS):
        product = first * MULTIPLIER
        first, second = (product >> 32 & WORD) ^ key ^ second, product & WORD
        key = key + WEYL & WORD
    return first, second


def _kept(seed: Tensor, size: list[int], p: float) -> Tensor:
    *outer, rows, columns = size
    head = torch.arange(math.prod(outer), device=seed.device).reshape(*outer, 1, 1)
    key, other = _philox(head, seed >> 32 & WORD, seed & WORD)
    row = torch.arange(rows, device=seed.device).unsqueeze(1)
    column = torch.arange(columns, device=seed.device)
    first, second = _philox((column & ~APART).expand(size), (row & ~APART) ^ other, key)
    word = torch.where(row & APART != 0, second, first)
    return (word >> torch.where(column & APART != 0, BITS, 0) & (1 << BITS) - 1) >= _limit(p)


implement("attention_keep", _kept)


@lowering("attention_keep")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    (seed,) = tensors
    p = ir.FloatAttr(op.operands[2].owner.attributes["value"]).value
    size = [int(n) for n in str(op.results[0].type).partition("[")[2].partition("]")[0].split(",")]
    bit, word, wide = (ir.IntegerType.get_signless(bits) for bits in (1, 32, 64))
    empty = tensor.empty(size, bit)
    rank = len(size)
    maps = [ir.AffineMap.get(rank, 0, []), ir.AffineMap.get_identity(rank)]
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    made = ir.Operation.create("linalg.generic", [empty.type], [seed, empty], attributes, regions=1)
    block = made.regions[0].blocks.append(wide, bit, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [_Words(word, wide).kept(block.arguments[0], size, p)])
    return made.results[0]


class _Words:
    """The same in the body of a generic, of words."""

    def __init__(self, word: ir.Type, wide: ir.Type):
        self.word, self.wide = word, wide

    def number(self, value: int) -> ir.Value:
        return arith.constant(self.word, value - (1 << 32) if value >> 31 else value)

    def index(self, dim: int) -> ir.Value:
        attributes = {"dim": ir.IntegerAttr.get(self.wide, dim)}
        place = ir.Operation.create("linalg.index", [ir.IndexType.get()], [], attributes).results[0]
        return arith.index_cast(self.word, place)

    def high(self, value: ir.Value) -> ir.Value:
        return arith.trunci(self.word, arith.shrui(value, arith.constant(self.wide, 32)))

    def philox(self, first: ir.Value, second: ir.Value, key: ir.Value) -> tuple[ir.Value, ir.Value]:
        factor = arith.constant(self.wide, MULTIPLIER)
        for number in range(ROUNDS):
            mine = arith.addi(key, self.number(number * WEYL & WORD)) if number else key
            product = arith.muli(arith.extui(self.wide, first), factor)
            first = arith.xori(self.high(product), arith.xori(mine, second))
            second = arith.trunci(self.word, product)
        return first, second

    def kept(self, seed: ir.Value, size: list[int], p: float) -> ir.Value:
        rank = len(size)
        head = self.number(0)
        for dim in range(rank - 2):
            head = arith.addi(arith.muli(head, self.number(size[dim])), self.index(dim))
        key, other = self.philox(head, self.high(seed), arith.trunci(self.word, seed))
        row, column = self.index(rank - 2), self.index(rank - 1)
        together = self.number(WORD ^ APART)
        second = arith.xori(arith.andi(row, together), other)
        words = self.philox(arith.andi(column, together), second, key)
        found = arith.select(self._later(row), words[1], words[0])
        found = arith.select(self._later(column), arith.shrui(found, self.number(BITS)), found)
        bits = arith.andi(found, self.number((1 << BITS) - 1))
        return arith.cmpi(arith.CmpIPredicate.uge, bits, self.number(_limit(p)))

    def _later(self, place: ir.Value) -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.ne, arith.andi(place, self.number(APART)), self.number(0))
