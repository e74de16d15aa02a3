"""Rows put into others at indices as loops, for code that is lowered by upstream.

`kitsune.atomic_scatter` is a loop over its elements with an atomic operation each, `kitsune.ordered_scatter` a loop over rows
in order, and so is a `tm_tensor.scatter` of rows that an argument counts, which ends at the count, where that can be read.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir
from torch_mlir.dialects import arith, memref, scf, tensor

from kitsune_mlir.dialects.attribute_table import ALONE, COUNTED
from kitsune_mlir.dialects.scatter_kinds import ASSIGN, COMBINING
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.verify import walk

__all__ = ["counts_read", "expand_scatters"]

_ATOMICS = {"addf": 0, "addi": 1, "maxs": 6, "mins": 10}
"""`arith::AtomicRMWKind`, which the bindings do not name: those that LLVM has for every type."""


def counts_read(task: ir.Operation) -> list[int]:
    """Numbers of the arguments that count rows in a task."""
    found = [ir.DenseI64ArrayAttr(op.attributes[COUNTED])[0] for op in walk(task) if COUNTED in op.attributes]
    return sorted({*found})


def expand_scatters(function: ir.Operation, counts: Mapping[int, ir.Value] | None = None) -> None:
    """Replace each `kitsune.atomic_scatter` of a function by a parallel loop, `kitsune.ordered_scatter` by one in order.

    Args:
        counts: memrefs of arguments that count rows, by number; of others all rows are looked at.
    """
    for op in [op for op in walk(function) if op.name == "tm_tensor.scatter" and COUNTED in op.attributes]:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_as_far_as_counted(op, counts or {}))
        op.erase()
    for op in [op for op in walk(function) if op.name in ("kitsune.atomic_scatter", "kitsune.ordered_scatter")]:
        with ir.InsertionPoint(op), op.location:
            if op.name == "kitsune.ordered_scatter":
                kind = ir.StringAttr(op.attributes["kind"]).value
                start, updates, indices, first = list(op.operands)
                op.results[0].replace_all_uses_with(_in_order(start, updates, indices, first, kind))
            else:
                _loop(op)
        op.erase()


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _as_index(place: ir.Value) -> ir.Value:
    return place if isinstance(place.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), place)


def _as_far_as_counted(op: ir.Operation, counts: Mapping[int, ir.Value]) -> ir.Value:
    """A `tm_tensor.scatter` as a loop over the rows that are counted; the places of others are not in the result."""
    updates, indices, start = list(op.operands)
    argument, rows = ir.DenseI64ArrayAttr(op.attributes[COUNTED])
    end = _index(rows)
    if argument in counts:
        end = arith.minsi(arith.maxsi(_as_index(memref.load(counts[argument], [])), _index(0)), end)
    body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    kind = next((kind for kind, name in COMBINING.items() if name == body[0]), ASSIGN)
    return _in_order(start, _without_one(updates), _without_one(indices), _index(0), kind, end)


def _without_one(value: ir.Value) -> ir.Value:
    """A tensor without the dimension of one behind its first."""
    shape = list(ir.ShapedType(value.type).shape)
    groups = [[0, 1], *[[n] for n in range(2, len(shape))]]
    type_ = ir.RankedTensorType.get([shape[0], *shape[2:]], ir.ShapedType(value.type).element_type)
    return tensor.collapse_shape(type_, value, groups)


def _in_order(
    start: ir.Value, updates: ir.Value, indices: ir.Value, first: ir.Value, kind: str, end: ir.Value | None = None
) -> ir.Value:
    """The sums, as a loop over rows that carries the tensor; over all of them, or up to `end`."""
    rows, *columns = list(ir.ShapedType(start.type).shape)
    row_type = ir.RankedTensorType.get([1, *columns], ir.ShapedType(start.type).element_type)
    dynamic = ir.ShapedType.get_dynamic_size()
    rest = len(columns)

    def row_of(tensor_: ir.Value, row: ir.Value) -> ir.Value:
        return tensor.ExtractSliceOp(
            row_type, tensor_, [row], [], [], [dynamic, *[0] * rest], [1, *columns], [1] * (rest + 1)
        ).result

    last = _index(list(ir.ShapedType(updates.type).shape)[0]) if end is None else end
    loop = scf.ForOp(_index(0), last, _index(1), [start])
    with ir.InsertionPoint(loop.body):
        sums, row = loop.inner_iter_args[0], loop.induction_variable
        target = arith.subi(_as_index(tensor.extract(indices, [row])), first)
        # As unsigned numbers, those before the tile are large.
        inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, _index(rows)), [start.type], has_else=True)
        with ir.InsertionPoint(inside.then_block):
            new = _combined_rows(kind, row_of(sums, target), row_of(updates, row))
            slice_ = tensor.InsertSliceOp(new, sums, [target], [], [], [dynamic, *[0] * rest], [1, *columns], [1] * (rest + 1))
            scf.YieldOp([slice_.result])
        with ir.InsertionPoint(inside.else_block):
            scf.YieldOp([sums])
        scf.YieldOp([inside.results[0]])
    return loop.results_[0]


def _combined_rows(kind: str, old: ir.Value, new: ir.Value) -> ir.Value:
    """Two rows combined, element by element."""
    if kind == ASSIGN:
        return new
    type_ = ir.RankedTensorType(old.type)
    map_ = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([map_] * 3),
        "iterator_types": ir.ArrayAttr.get([parallel] * type_.rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
    }
    empty = tensor.empty(list(type_.shape), type_.element_type)
    made = ir.Operation.create("linalg.generic", [type_], [old, new, empty], attributes, regions=1)
    elements = [type_.element_type] * 3
    block = made.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        value = ir.Operation.create(COMBINING[kind], [type_.element_type], list(block.arguments)[:2]).results[0]
        ir.Operation.create("linalg.yield", [], [value])
    return made.results[0]


def _put(kind: str, value: ir.Value, destination: ir.Value, place: list[ir.Value], alone: bool) -> None:
    """Combine a value with one in memory; `alone`, where nobody else does."""
    if alone and kind != ASSIGN:
        old = memref.load(destination, place)
        value = ir.Operation.create(COMBINING[kind], [value.type], [old, value]).results[0]
    if alone or kind == ASSIGN:
        memref.store(value, destination, place)
        return
    narrow = str(value.type) in HALF_TYPES
    if kind in _ATOMICS and not narrow:
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ATOMICS[kind])
        ir.Operation.create("memref.atomic_rmw", [value.type], [value, destination, *place], {"kind": number})
        return
    element = value.type
    atomic = ir.Operation.create("memref.generic_atomic_rmw", [element], [destination, *place], regions=1)
    block = atomic.regions[0].blocks.append(element, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(block):
        old = block.arguments[0]
        if narrow:
            old, value = (arith.extf(ir.F32Type.get(), each) for each in (old, value))
        made = ir.Operation.create(COMBINING[kind], [value.type], [old, value]).results[0]
        ir.Operation.create("memref.atomic_yield", [], [arith.truncf(element, made) if narrow else made])


def _loop(op: ir.Operation) -> None:
    updates, indices, first, destination = list(op.operands)
    alone = ALONE in op.attributes
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
            # An index outside the destination would write to other memory: such a row is left out, where nobody can be told.
            rows = _index(list(ir.ShapedType(destination.type).shape)[0])
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, target, rows)) if not alone else mine
            with ir.InsertionPoint(inside.then_block):
                value = tensor.extract(updates, [row, *columns])
                _put(ir.StringAttr(op.attributes["kind"]).value, value, destination, [target, *columns], alone)
                if not alone:
                    scf.YieldOp([])
            scf.YieldOp([])
        ir.Operation.create("scf.reduce", [], [])
