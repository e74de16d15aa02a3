"""`kitsune::scatter_rows`: an operator of our own that scatters become, and its lowering to `tm_tensor.scatter`.

torch-mlir has one index for each row only where rows are assigned or added; all other kinds come with an index for each
element. So its lowering stands here, before torch-mlir's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, fx
from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import COUNTED
from kitsune_mlir.dialects.scatter_kinds import ASSIGN, COMBINING
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["counted", "name_counts", "scatter_rows"]

define(
    "scatter_rows(Tensor x, Tensor index, Tensor source, str reduce, str count='') -> Tensor",
    lambda x, index, source, reduce, count="": torch.empty_like(x),
)
define(
    "scatter_counted_rows(Tensor x, Tensor index, Tensor source, str reduce, Tensor count) -> Tensor",
    lambda x, index, source, reduce, count: torch.empty_like(x),
)


def _put(x: Tensor, index: Tensor, source: Tensor, reduce: str, count: object = None) -> Tensor:
    index = index.long()
    if reduce == "set":
        return x.index_copy(0, index, source)
    return x.index_add(0, index, source) if reduce == "sum" else x.index_reduce(0, index, source, reduce)


implement("scatter_rows", _put)
implement("scatter_counted_rows", _put)

_KINDS = {
    "sum": ("addf", "addi"),
    "prod": ("mulf", "muli"),
    "amax": ("maximumf", "maxs"),
    "amin": ("minimumf", "mins"),
    "set": (ASSIGN, ASSIGN),
}
"""Kinds of floats and of integers, by `reduce`."""


def scatter_rows(x: Tensor, index: Tensor, source: Tensor, reduce: str) -> Tensor:
    """Rows put into others: result[index[e]] = result[index[e]] ∘ source[e], which starts as `x`.

    Args:
        x: [N, ...].
        index: [E], integers in [0, N).
        source: [E, ...] of x's type.
        reduce: `sum`, `prod`, `amax`, `amin` (of floats, i32 and i64), or `set` of any type.
    """
    known = _counted.get()
    if known is not None and reduce in ("sum", "prod") and source.shape[0] == known[1]:
        return torch.ops.kitsune.scatter_counted_rows(x, index, source, reduce, known[0])
    return torch.ops.kitsune.scatter_rows(x, index, source, reduce)


_counted: ContextVar[tuple[Tensor, int] | None] = ContextVar("counted rows", default=None)


@contextmanager
def counted(count: Tensor, rows: int) -> Iterator[None]:
    """While it is entered, sums and products of so many rows are made with ones that change nothing behind the first `count`.

    Args:
        count: an i64 without dimensions.
    """
    token = _counted.set((count, rows))
    try:
        yield
    finally:
        _counted.reset(token)


def name_counts(graph: fx.Graph) -> None:
    """Say of scatters of counted rows which of the graph's inputs the count is, in place: by its name, where it is one."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.kitsune.scatter_counted_rows.default):
        *args, count = node.args
        node.target = torch.ops.kitsune.scatter_rows.default
        node.args = (*args, count.name) if count.op == "placeholder" else tuple(args)


@lowering("scatter_rows")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    x, index, source = tensors
    reduce = ir.StringAttr(op.operands[3].owner.attributes["value"]).value
    element = ir.RankedTensorType(x.type).element_type
    rows, *window = list(ir.RankedTensorType(source.type).shape)
    kind = _KINDS[reduce][isinstance(element, ir.IntegerType)]
    attributes = {
        "dimension_map": ir.DenseI64ArrayAttr.get([0]),
        "unique_indices": ir.BoolAttr.get(False),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
    }
    name = ir.StringAttr(op.operands[4].owner.attributes["value"]).value if len(op.operands) > 4 else ""
    if name and str(element) not in HALF_TYPES:  # sums of those are made in f32, by code that looks at all rows
        attributes[COUNTED] = ir.StringAttr.get(name)
    operands = [_with_one(source, [rows, 1, *window]), _with_one(index, [rows, 1]), x]
    scatter = ir.Operation.create("tm_tensor.scatter", [x.type], operands, attributes, regions=1)
    block = scatter.regions[0].blocks.append(element, element, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        new, old = block.arguments
        value = new if kind == ASSIGN else ir.Operation.create(COMBINING[kind], [element], [old, new]).results[0]
        ir.Operation.create("tm_tensor.yield", [], [value])
    return scatter.results[0]


def _with_one(value: ir.Value, shape: list[int]) -> ir.Value:
    """A tensor with a dimension of one behind its first."""
    type_ = ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)
    groups = [[0, 1], *[[n] for n in range(2, len(shape))]]
    attributes = {
        "reassociation": ir.ArrayAttr.get([ir.ArrayAttr.get([_i64(n) for n in group]) for group in groups]),
        "static_output_shape": ir.DenseI64ArrayAttr.get(shape),
    }
    return ir.Operation.create("tensor.expand_shape", [type_], [value], attributes).results[0]


def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
