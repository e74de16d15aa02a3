"""Long vectors of 16-bit floats are sorted by counting: which numbers there are, and how often, is all that it takes.

For values alone: places are found by merging sorted parts (`frontend/orders.py`), and what of both nobody reads is left out
of the graph. Zeros come with the negative ones first, and all NaN have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.frontend.dtypes import NARROW
from kitsune_mlir.frontend.own_operators import define, implement, lowering
from kitsune_mlir.frontend.scatter_rows import scatter_rows

__all__ = ["KEYS", "counted_ends", "from_keys", "is_counted", "sort_keys"]

KEYS = 1 << 16
LEAST = 1 << 16
"""Elements of a vector from which on counting, which looks at all keys, is faster than merging."""
APART = 1 << 8
"""Keys that follow each other and whose counters lie apart."""
SIGN = 15
"""The sign's bit."""

define("sort_keys(Tensor x, bool descending) -> Tensor", lambda x, descending: torch.empty_like(x, dtype=torch.int32))
define(
    "from_keys(Tensor keys, Tensor like, bool descending) -> Tensor",
    lambda keys, like, descending: torch.empty_like(keys, dtype=like.dtype),
)


def _keys(x: Tensor, descending: bool) -> Tensor:
    word = x.contiguous().view(torch.int16).to(torch.int32)
    key = torch.where(x != x, KEYS - 1, (word ^ ((word >> 31) & (1 << SIGN) - 1)) + (1 << SIGN))
    return KEYS - 1 - key if descending else key


def _from_keys(keys: Tensor, like: Tensor, descending: bool) -> Tensor:
    keys = KEYS - 1 - keys if descending else keys
    word = keys.to(torch.int32) - (1 << SIGN)
    return (word ^ ((word >> 31) & (1 << SIGN) - 1)).to(torch.int16).view(like.dtype)


implement("sort_keys", _keys)
implement("from_keys", _from_keys)


def sort_keys(x: Tensor, descending: bool) -> Tensor:
    """Numbers below `KEYS` in the order of x's elements, NaN the largest; with `descending` in the opposite order: i32."""
    return torch.ops.kitsune.sort_keys(x, descending)


def from_keys(keys: Tensor, like: Tensor, descending: bool) -> Tensor:
    """The elements that have some keys, i32, of the type of `like`."""
    return torch.ops.kitsune.from_keys(keys, like, descending)


def is_counted(x: Tensor) -> bool:
    """Whether a tensor is sorted so along its last dimension."""
    return x.dtype in NARROW and x.numel() == x.shape[-1] >= LEAST


def counted_ends(x: Tensor, descending: bool) -> Tensor:
    """How many elements of x [n] have each key or one before it: i32 [`KEYS`], which rise.

    Most of a vector's numbers are near each other. Counters of keys that follow each other lie in different lines of memory:
    those of one line are added to one after the other.
    """
    key = sort_keys(x, descending)
    none = torch.zeros(KEYS, dtype=torch.int32, device=x.device)
    counts = scatter_rows(none, (key & (APART - 1)) * (KEYS // APART) + (key >> 8), torch.ones_like(key), "sum")
    return counts.reshape(APART, KEYS // APART).t().reshape(-1).cumsum(0, dtype=torch.int32)


@lowering("sort_keys")
def _lowered_keys(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    (x,) = tensors
    word = ir.IntegerType.get_signless(32)
    descending = ir.BoolAttr(op.operands[1].owner.attributes["value"]).value

    def body(element: ir.Value) -> ir.Value:
        bits = arith.extsi(word, arith.bitcast(ir.IntegerType.get_signless(16), element))
        ordered = arith.addi(_turned(bits), arith.constant(word, 1 << SIGN))
        nan = arith.cmpf(arith.CmpFPredicate.UNE, element, element)
        key = arith.select(nan, arith.constant(word, KEYS - 1), ordered)
        return arith.subi(arith.constant(word, KEYS - 1), key) if descending else key

    return _map(op, x, word, body)


@lowering("from_keys")
def _lowered_elements(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    keys, like = tensors
    word, element = ir.IntegerType.get_signless(32), ir.RankedTensorType(like.type).element_type
    descending = ir.BoolAttr(op.operands[2].owner.attributes["value"]).value

    def body(key: ir.Value) -> ir.Value:
        key = arith.subi(arith.constant(word, KEYS - 1), key) if descending else key
        bits = _turned(arith.subi(key, arith.constant(word, 1 << SIGN)))
        return arith.bitcast(element, arith.trunci(ir.IntegerType.get_signless(16), bits))

    return _map(op, keys, element, body)


def _turned(bits: ir.Value) -> ir.Value:
    """Negative floats are in the opposite order of their bits."""
    word = bits.type
    negative = arith.shrsi(bits, arith.constant(word, 31))
    return arith.xori(bits, arith.andi(negative, arith.constant(word, (1 << SIGN) - 1)))


def _map(op: ir.Operation, source: ir.Value, element: ir.Type, body: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """A `linalg.generic` of each element of a tensor."""
    type_ = ir.RankedTensorType(source.type)
    empty = tensor.empty(list(type_.shape), element)
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([identity, identity]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * type_.rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    made = ir.Operation.create("linalg.generic", [empty.type], [source, empty], attributes, regions=1)
    block = made.regions[0].blocks.append(type_.element_type, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [body(block.arguments[0])])
    return made.results[0]
