"""`kitsune.scatter_add` as a loop over its elements, for code that is lowered by upstream: one atomic addition each."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, scf, tensor

from kitsune_mlir.dialects.verify import walk

__all__ = ["expand_scatter_adds"]

_KINDS = {"addf": 0, "addi": 1}
"""`arith::AtomicRMWKind`, which the bindings do not name."""


def expand_scatter_adds(function: ir.Operation) -> None:
    """Replace each `kitsune.scatter_add` of a function by a parallel loop."""
    for op in [op for op in walk(function) if op.name == "kitsune.scatter_add"]:
        with ir.InsertionPoint(op), op.location:
            _loop(op)
        op.erase()


def _loop(op: ir.Operation) -> None:
    updates, indices, first, destination = list(op.operands)

    def index(value: int) -> ir.Value:
        return arith.constant(ir.IndexType.get(), value)

    shape = list(ir.ShapedType(updates.type).shape)
    zero, one = index(0), index(1)
    loop = ir.Operation.create(
        "scf.parallel",
        [],
        [*[zero] * len(shape), *map(index, shape), *[one] * len(shape)],
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(shape)] * 3 + [0])},
        regions=1,
    )
    block = loop.regions[0].blocks.append(*[ir.IndexType.get()] * len(shape), arg_locs=[op.location] * len(shape))
    row, *columns = list(block.arguments)
    with ir.InsertionPoint(block):
        mine = scf.IfOp(arith.cmpi(arith.CmpIPredicate.uge, row, first))
        with ir.InsertionPoint(mine.then_block):
            place = tensor.extract(indices, [row])
            target = place if isinstance(place.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), place)
            # An index outside the destination would write to other memory: such a row is left out.
            rows = index(list(ir.ShapedType(destination.type).shape)[0])
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, rows))
            with ir.InsertionPoint(inside.then_block):
                value = tensor.extract(updates, [row, *columns])
                kind = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _KINDS[ir.StringAttr(op.attributes["kind"]).value])
                ir.Operation.create("memref.atomic_rmw", [value.type], [value, destination, target, *columns], {"kind": kind})
                scf.YieldOp([])
            scf.YieldOp([])
        ir.Operation.create("scf.reduce", [], [])
