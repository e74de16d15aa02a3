"""`kitsune::scatter_rows`: an operator of our own that scatters become, and its lowering to `tm_tensor.scatter`.

torch-mlir has one index for each row only where rows are assigned or added; all other kinds come with an index for each
element. So its lowering stands here, before torch-mlir's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, fx
from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import COUNTED
from kitsune_mlir.dialects.scatter_kinds import ASSIGN, COMBINING
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["Counted", "counted", "name_counts", "scatter_rows"]

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


def _put_counted(x: Tensor, index: Tensor, source: Tensor, reduce: str, count: Tensor) -> Tensor:
    n = max(int(count), 0)
    return _put(x, index[:n], source[:n], reduce)


implement("scatter_rows", _put)
implement("scatter_counted_rows", _put_counted)

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
    if known is not None:
        known.used.append(source.shape[0] == known.rows)
    if known is None or not known.used[-1]:
        return torch.ops.kitsune.scatter_rows(x, index, source, reduce)
    there = torch.arange(known.rows, device=index.device) < known.count
    # A place behind the last one: code that looks at the other rows leaves them out.
    index = torch.where(there, index, torch.full([], x.shape[0], dtype=index.dtype, device=index.device))
    return torch.ops.kitsune.scatter_counted_rows(x, index, source, reduce, known.count)


@dataclasses.dataclass
class Counted:
    """Rows of which the first `count` (an i64 without dimensions) are put somewhere; `used` says of each scatter whether it has
    as many rows."""

    count: Tensor
    rows: int
    used: list[bool] = dataclasses.field(default_factory=list)


_counted: ContextVar[Counted | None] = ContextVar("counted rows", default=None)


@contextmanager
def counted(count: Tensor, rows: int) -> Iterator[Counted]:
    """While it is entered, of so many rows only the first `count` are put somewhere; scatters of other numbers put all.

    Args:
        count: an i64 without dimensions.
    """
    known = Counted(count, rows)
    token = _counted.set(known)
    try:
        yield known
    finally:
        _counted.reset(token)


def name_counts(graph: fx.Graph) -> None:
    """Say of scatters of counted rows which of the graph's inputs the count is, in place: by its name.

    Raises:
        FrontendError: it is none.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.kitsune.scatter_counted_rows.default):
        *args, count = node.args
        if count.op != "placeholder":
            reason = f"rows are counted by '{count.name}', which is no input of the graph"
            raise FrontendError(reason, operator="kitsune.scatter_counted_rows.default")
        node.target = torch.ops.kitsune.scatter_rows.default
        node.args = (*args, count.name)


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
    if name:
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
