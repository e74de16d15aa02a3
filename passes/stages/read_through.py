"""What reads by index reads through generics that only move, cast, or number their elements.

A resized or padded image is read by index, and PyTorch widens it before and narrows the result after: such a copy would be a
pass over memory, and a stage that everything waits for. The same holds for small tables made of nothing but their own places,
such as a resize's indices and weights: they are computed where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, loop_sizes, reassociation, shape_of
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic, yield_of
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.layouts.by_index import place_along
from kitsune_mlir.passes.stages.moves_by_index import slice_places

__all__ = ["affine_place", "read_through"]

MOST_OPS = 48
"""Of a generic that is read through: it is computed again for each element that is read."""
MOST_BODY = 600
"""Operations of a body that takes others in."""

HARDLY = 64
"""Times more elements a map makes than are read of it, from which on each of these is computed where it is read."""
WINDOW = 16
"""Terms of a reduction, such as a pool's window, that reads through pads and casts."""
NEVER = 1 << 62
"""Elements that are read, of which no tensor has more."""

_KEPT = ("tensor.extract", "cf.assert")
_FREE = ("linalg.index", "linalg.yield", "arith.constant")
# No `truncf`: rounding ends a product for nothing, and what is read often is better read narrow.
_CASTS = ("arith.extf", "arith.extsi", "arith.extui", "arith.trunci", "arith.bitcast")
_CHEAP = {
    *("arith." + name for name in ("addf", "subf", "mulf", "negf", "cmpf", "maximumf", "minimumf", "maxnumf", "minnumf")),
    *("arith." + name for name in ("fptosi", "fptoui", "sitofp", "uitofp")),
    *("math." + name for name in ("absf", "floor", "ceil", "trunc", "roundeven")),
}
_INDEXING = {
    *("arith." + name for name in ("addi", "subi", "muli", "cmpi", "select", "andi", "ori", "xori", "index_cast")),
    *("arith." + name for name in ("index_castui", "maxsi", "minsi", "maxui", "minui", "divui", "remui")),
    *("arith." + name for name in ("divsi", "remsi", "floordivsi", "ceildivsi")),
    "math.absi",
}


def read_through(block: ir.Block) -> None:
    """Let the generics of a block that read by index compute what such generics make, instead of waiting for it."""
    for op in [o.operation for o in block.operations]:
        if not _reads_by_index(op):
            continue
        with op.location:
            _take_reads(op)
            if "reduction" not in iterator_kinds(op):
                _take_tables(op)
    for op in reversed([o.operation for o in block.operations]):
        if (is_generic(op) or op.name.startswith("tensor.")) and not any(list(result.uses) for result in op.results):
            op.erase()


def _reads_by_index(op: ir.Operation) -> bool:
    """Whether a generic reads tensors by index, and is not part of what another pass has marked."""
    if not is_generic(op) or _is_marked(op):
        return False
    return any(inner.name == "tensor.extract" for inner in body_of(op))


def _is_marked(op: ir.Operation) -> bool:
    return any(name.startswith("kitsune.") for name in op.attributes)


def _take_reads(op: ir.Operation) -> None:
    points, reduces = math.prod(loop_sizes(op)), "reduction" in iterator_kinds(op)
    for inner in body_of(op):
        if inner.name != "tensor.extract" or (reduces and not _is_for_sums(op, inner.operands[0], points)):
            continue
        if len(body_of(op)) <= MOST_BODY and _leads_on(inner.operands[0], points):
            with ir.InsertionPoint(inner):
                found = _read(inner.operands[0], list(inner.operands)[1:], points)
            inner.results[0].replace_all_uses_with(found)
            inner.erase()


def _is_for_sums(op: ir.Operation, value: ir.Value, points: int) -> bool:
    """Whether a reduction may compute again what it reads by index: little of a tensor, or a window of a padded image."""
    maker = _unsliced(value)
    if _is_hardly_read(maker, points):
        return True
    terms = math.prod(size for size, kind in zip(loop_sizes(op), iterator_kinds(op), strict=True) if kind == "reduction")
    return terms <= WINDOW and maker is not None and _is_move(maker)


def _leads_on(value: ir.Value, points: int) -> bool:
    """Whether an element of a tensor, of which so many are read, is one of another tensor, or computed here."""
    maker = defining_op(value)
    if maker is None:
        return False
    if is_reshape(maker):
        return _leads_on(maker.operands[0], points)
    if _is_static_slice(maker) or _is_table(maker) or _is_hardly_read(maker, points):
        return True
    return _is_move(maker) and not (_is_narrowing(maker) and points > math.prod(shape_of(maker.results[0])))


def _is_narrowing(op: ir.Operation) -> bool:
    """Whether a generic makes shorter integers; what is read often is better read so."""
    return any(inner.name == "arith.trunci" for inner in body_of(op))


def _unsliced(value: ir.Value) -> ir.Operation | None:
    maker = defining_op(value)
    while maker is not None and _is_static_slice(maker):
        maker = defining_op(maker.operands[0])
    return maker


def _is_hardly_read(op: ir.Operation | None, points: int) -> bool:
    """Whether a map makes far more elements than are read, of tensors that are no wider and that no product makes: of the
    logarithms of a softmax over a vocabulary a loss reads one a row."""
    if op is None or not _is_plain(op) or math.prod(shape_of(op.results[0])) < HARDLY * points:
        return False
    own = tensor_bytes(op.results[0].type)
    if any(tensor_bytes(v.type) > own or ((m := defining_op(v)) is not None and is_contraction(m)) for v in _inputs(op)):
        return False
    return bool(_inputs(op)) and all(inner.name not in _KEPT for inner in body_of(op))


def _inputs(op: ir.Operation) -> list[ir.Value]:
    return [value for value in list(op.operands)[: len(op.operands) - len(op.results)] if is_tensor(value)]


def _is_static_slice(op: ir.Operation) -> bool:
    return op.name == "tensor.extract_slice" and len(op.operands) == 1


def _read(value: ir.Value, places: Sequence[ir.Value], points: int = NEVER) -> ir.Value:
    """The element of a tensor at some place."""
    maker = defining_op(value)
    if maker is None or not _leads_on(value, points):
        return tensor.extract(value, places)  # type: ignore[arg-type]
    if _is_static_slice(maker):
        return _read(maker.operands[0], slice_places(maker, places), points)
    if is_reshape(maker):
        return _read(maker.operands[0], _reshaped(maker, places), points)
    return _element(maker, places, points)


def _reshaped(op: ir.Operation, places: Sequence[ir.Value]) -> list[ir.Value]:
    """Where an element of a reshaped tensor is in the tensor as it was."""
    index, found = ir.IndexType.get(), []
    expands = op.name == "tensor.expand_shape"
    wide = shape_of(op.results[0] if expands else op.operands[0])
    for number, group in enumerate(reassociation(op)):
        if expands:
            total = places[group[0]]
            for dim in group[1:]:
                total = arith.addi(arith.muli(total, arith.constant(index, wide[dim])), places[dim])
            found.append(total)
            continue
        rest, parts = places[number], []
        for dim in reversed(group[1:]):
            extent = arith.constant(index, wide[dim])
            parts.insert(0, arith.remui(rest, extent))
            rest = arith.divui(rest, extent)
        found += [rest, *parts]
    return found


def _take_tables(op: ir.Operation) -> None:
    """Compute the tables among a generic's inputs in its body."""
    inputs = list(op.operands)[: len(op.operands) - len(op.results)]
    maps, block = affine_maps(op), op.regions[0].blocks[0]
    taken = [n for n, value in enumerate(inputs) if (maker := defining_op(value)) is not None and _is_table(maker)]
    if not taken or len(body_of(op)) > MOST_BODY:
        return
    with ir.InsertionPoint.at_block_begin(block):
        for n in taken:
            maker = defining_op(inputs[n])
            assert maker is not None
            places = [affine_place(expression) for expression in maps[n].results]
            block.arguments[n].replace_all_uses_with(_element(maker, places))
    left = [n for n in range(len(op.operands)) if n not in taken]
    with ir.InsertionPoint(op):
        new = ir.Operation.create(
            "linalg.generic",
            [result.type for result in op.results],
            [op.operands[n] for n in left],
            {
                "iterator_types": op.attributes["iterator_types"],
                "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(maps[n]) for n in left]),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(left) - len(op.results), len(op.results)]),
            },
            regions=1,
        )
    elements = [block.arguments[n].type for n in left]
    body = new.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(left))
    local = dict(zip([block.arguments[n] for n in left], body.arguments, strict=True))
    with ir.InsertionPoint(body):
        for inner in block.operations:
            clone_with(inner.operation, local)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()


def _is_plain(op: ir.Operation) -> bool:
    """Whether a generic makes one tensor element by element, each loop along a dimension of it, and is short."""
    if not is_generic(op) or len(op.results) != 1 or set(iterator_kinds(op)) - {"parallel"} or _is_marked(op):
        return False
    result = affine_maps(op)[-1]
    if not result.is_permutation or list(op.regions[0].blocks[0].arguments[len(op.operands) - 1].uses):
        return False
    return len(body_of(op)) <= MOST_OPS


def _is_move(op: ir.Operation) -> bool:
    """Whether a generic's elements are moved, cast or chosen, and nothing is computed but where they come from."""
    if not _is_plain(op):
        return False
    allowed = {*_FREE, *_CASTS, *_INDEXING, "tensor.extract"}
    if any(inner.name not in allowed for inner in walk(op)):
        return False
    value = yield_of(op).operands[0]
    return any(map(is_tensor, list(op.operands)[:-1])) or _comes_from_tensor(value)


def _comes_from_tensor(value: ir.Value) -> bool:
    maker = defining_op(value)
    return maker is not None and (maker.name == "tensor.extract" or any(map(_comes_from_tensor, maker.operands)))


def _is_table(op: ir.Operation) -> bool:
    """Whether a generic computes each element from its own place alone, or from tables at that place, and cheaply."""
    return _table_ops(op, MOST_OPS) is not None


def _table_ops(op: ir.Operation, most: int) -> int | None:
    """How many operations a table's element takes, if it is one of at most `most`."""
    if not _is_plain(op) or any(inner.name not in {*_FREE, *_CASTS, *_INDEXING, *_CHEAP} for inner in walk(op)):
        return None
    total = len(body_of(op))
    for value in list(op.operands)[:-1]:
        maker = defining_op(value)
        own = None if maker is None or total > most else _table_ops(maker, most - total)
        if own is None:
            return None
        total += own
    return total if total <= most else None


def _element(op: ir.Operation, places: Sequence[ir.Value], points: int = NEVER) -> ir.Value:
    """The element of such a generic's result at some place; `points`: how many of them are read."""
    maps, block = affine_maps(op), op.regions[0].blocks[0]
    loops = {ir.AffineDimExpr(e).position: place for e, place in zip(maps[-1].results, places, strict=True)}
    local: dict[ir.Value, ir.Value] = {}
    for argument, operand, map_ in zip(block.arguments, list(op.operands)[:-1], maps, strict=False):
        if not is_tensor(operand):
            local[argument] = operand
        elif list(argument.uses):
            where = [affine_place(expression, loops) for expression in map_.results]
            local[argument] = _read(operand, where, points)
    for inner in body_of(op):
        if inner.name == "linalg.index":
            local[inner.results[0]] = loops[ir.IntegerAttr(inner.attributes["dim"]).value]
        else:
            clone_with(inner, local)
    value = yield_of(op).operands[0]
    return local.get(value, value)


def affine_place(expression: ir.AffineExpr, loops: dict[int, ir.Value] | None = None) -> ir.Value:
    """The value of an index expression over loops: those given, or those of the body that is being written."""
    index = ir.IndexType.get()
    if isinstance(expression, ir.AffineDimExpr):
        return place_along(expression.position) if loops is None else loops[expression.position]
    if isinstance(expression, ir.AffineConstantExpr):
        return arith.constant(index, expression.value)
    first, second = affine_place(expression.lhs, loops), affine_place(expression.rhs, loops)  # type: ignore[attr-defined]
    return _OPERATIONS[type(expression)](first, second)


_OPERATIONS = {
    ir.AffineAddExpr: arith.addi,
    ir.AffineMulExpr: arith.muli,
    ir.AffineFloorDivExpr: arith.divui,
    ir.AffineModExpr: arith.remui,
}
"""Indices are not negative."""
