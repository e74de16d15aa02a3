"""Additions of rows at indices as loops, for code that is lowered by upstream.

`kitsune.scatter` is a loop over its elements with an atomic addition each, `kitsune.ordered_scatter` a loop over rows in order.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, scf, tensor

from kitsune_mlir.dialects.verify import walk

__all__ = ["expand_scatters"]

_KINDS = {"addf": 0, "addi": 1}
"""`arith::AtomicRMWKind`, which the bindings do not name."""


def expand_scatters(function: ir.Operation) -> None:
    """Replace each `kitsune.scatter` of a function by a parallel loop, each `kitsune.ordered_scatter` by one in order."""
    for op in [op for op in walk(function) if op.name in ("kitsune.scatter", "kitsune.ordered_scatter")]:
        with ir.InsertionPoint(op), op.location:
            if op.name == "kitsune.ordered_scatter":
                op.results[0].replace_all_uses_with(_in_order(op))
            else:
                _loop(op)
        op.erase()


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _as_index(place: ir.Value) -> ir.Value:
    return place if isinstance(place.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), place)


def _in_order(op: ir.Operation) -> ir.Value:
    """The sums, as a loop over all rows that carries the tensor."""
    start, updates, indices, first = list(op.operands)
    rows, *columns = list(ir.ShapedType(start.type).shape)
    row_type = ir.RankedTensorType.get([1, *columns], ir.ShapedType(start.type).element_type)
    dynamic = ir.ShapedType.get_dynamic_size()
    rest = len(columns)

    def row_of(tensor_: ir.Value, row: ir.Value) -> ir.Value:
        return tensor.ExtractSliceOp(
            row_type, tensor_, [row], [], [], [dynamic, *[0] * rest], [1, *columns], [1] * (rest + 1)
        ).result

    loop = scf.ForOp(_index(0), _index(list(ir.ShapedType(updates.type).shape)[0]), _index(1), [start])
    with ir.InsertionPoint(loop.body):
        sums, row = loop.inner_iter_args[0], loop.induction_variable
        target = arith.subi(_as_index(tensor.extract(indices, [row])), first)
        # As unsigned numbers, those before the tile are large.
        inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, _index(rows)), [start.type], has_else=True)
        with ir.InsertionPoint(inside.then_block):
            add = linalg.add(
                row_of(sums, target), row_of(updates, row), outs=[tensor.empty([1, *columns], row_type.element_type)]
            )
            slice_ = tensor.InsertSliceOp(add, sums, [target], [], [], [dynamic, *[0] * rest], [1, *columns], [1] * (rest + 1))
            scf.YieldOp([slice_.result])
        with ir.InsertionPoint(inside.else_block):
            scf.YieldOp([sums])
        scf.YieldOp([inside.results[0]])
    return loop.results_[0]


def _loop(op: ir.Operation) -> None:
    updates, indices, first, destination = list(op.operands)
    shape = list(ir.ShapedType(updates.type).shape)
    zero, one = _index(0), _index(1)
    loop = ir.Operation.create(
        "scf.parallel",
        [],
        [*[zero] * len(shape), *map(_index, shape), *[one] * len(shape)],
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(shape)] * 3 + [0])},
        regions=1,
    )
    block = loop.regions[0].blocks.append(*[ir.IndexType.get()] * len(shape), arg_locs=[op.location] * len(shape))
    row, *columns = list(block.arguments)
    with ir.InsertionPoint(block):
        mine = scf.IfOp(arith.cmpi(arith.CmpIPredicate.uge, row, first))
        with ir.InsertionPoint(mine.then_block):
            place = tensor.extract(indices, [row])
            target = _as_index(place)
            # An index outside the destination would write to other memory: such a row is left out.
            rows = _index(list(ir.ShapedType(destination.type).shape)[0])
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, rows))
            with ir.InsertionPoint(inside.then_block):
                value = tensor.extract(updates, [row, *columns])
                kind = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _KINDS[ir.StringAttr(op.attributes["kind"]).value])
                ir.Operation.create("memref.atomic_rmw", [value.type], [value, destination, target, *columns], {"kind": kind})
                scf.YieldOp([])
            scf.YieldOp([])
        ir.Operation.create("scf.reduce", [], [])
