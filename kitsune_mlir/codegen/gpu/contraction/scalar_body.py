"""Element-wise bodies on scalars: the operations of a `linalg.generic` emitted again for one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.emit.approx_math import exact_enough
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import Value, wrap
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.products import body_of, yield_of

__all__ = ["NO_APPROXIMATIONS", "constant_of", "emit_body", "is_zero"]

NO_APPROXIMATIONS: Mapping[str, Callable[..., Value]] = MappingProxyType({})


def emit_body(
    op: ir.Operation,
    arguments: Sequence[Value | None],
    tile: TileContext,
    index: Callable[[int], Value],
    extract: Callable[[ir.Operation, Sequence[ir.Value]], Value] | None = None,
    approximations: Mapping[str, Callable[..., Value]] = NO_APPROXIMATIONS,
) -> list[Value]:
    """Emit a body for one element; the values it yields.

    Args:
        arguments: the element of each operand; None where the body does not use it.
        tile: resolves index arithmetic from outside the body.
        index: the position of the element along a loop, i32 (for `linalg.index`).
        extract: the element that a `tensor.extract` reads at some indices (`index` values); None: the body has none.
        approximations: functions that are exact enough for the results, by what they stand for (`emit.approx_math`).
    """
    block = op.regions[0].blocks[0]
    known: dict[ir.Value, ir.Value] = {
        argument: value.ir for argument, value in zip(block.arguments, arguments, strict=True) if value is not None
    }

    def lookup(value: ir.Value) -> ir.Value:
        if value not in known:
            known[value] = _outside(value, tile)
        return known[value]

    quick = exact_enough(approximations, body_of(op))
    for inner in body_of(op):
        if inner.name == "linalg.index":
            dim = ir.IntegerAttr(inner.attributes["dim"]).value
            known[inner.results[0]] = arith.index_castui(ir.IndexType.get(), index(dim).ir)
            continue
        if inner.name == "tensor.extract" and extract is not None:
            known[inner.results[0]] = extract(inner, [lookup(value) for value in list(inner.operands)[1:]]).ir
            continue
        operands = [wrap(lookup(operand)) for operand in inner.operands]
        if inner.name in quick and isinstance(inner.results[0].type, ir.F32Type):
            known[inner.results[0]] = quick[inner.name](*operands).ir
            continue
        copies = clone(inner, operands)
        known.update((result, copy.ir) for result, copy in zip(inner.results, copies, strict=True))
    return [wrap(lookup(value)) for value in yield_of(op).operands]


def constant_of(value: ir.Value) -> Value:
    """A scalar constant, or the number that a constant tensor is filled with, emitted again."""
    attribute = value.owner.attributes["value"]
    if isinstance(value.type, ir.ShapedType):
        attribute = ir.DenseElementsAttr(attribute).get_splat_value()
        return wrap(arith.constant(ir.ShapedType(value.type).element_type, attribute))
    return wrap(arith.constant(value.type, attribute))


def is_zero(value: ir.Value) -> bool:
    """Whether a number is the constant 0 (or -0, which a sum does not tell from it)."""
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant" or not isinstance(value.type, ir.FloatType):
        return False
    return ir.FloatAttr(value.owner.attributes["value"]).value == 0


def _outside(value: ir.Value, tile: TileContext) -> ir.Value:
    if not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant":
        return constant_of(value).ir
    return arith.index_castui(ir.IndexType.get(), tile.index(value).ir)
