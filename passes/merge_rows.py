"""`kitsune-merge-rows`: element-wise and row-wise work on (batch, tokens, width) becomes work on (batch * tokens, width).

A linear layer's product comes with its rows merged into one dimension, what follows it with all of them. The reshape between
the two moves nothing, but it keeps an activation out of the product's stage, and a tile of rows from waiting for these only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, reassociation, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.iteration import is_view, root_of
from kitsune_mlir.dialects.products import constant_fill, defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target

from .base import Pass
from .normalize import fold_movement, run_upstream
from .stages.transposed_rows import split_transposed_rows

__all__ = ["MergeRows"]

MOST = 4
"""Leading dimensions that are merged."""


@dataclass(frozen=True)
class MergeRows(Pass):
    """Merge the leading dimensions of element-wise and row-wise ops around products that have them merged.

    Before that, rows of products are split where they were transposed before they were merged, or are transposed afterwards:
    such a layer (over tokens, in a mixer) is a product of a batch, which reads and writes memory as it lies.

    Ops that pass values to each other are rewritten together, where all that they read from outside is an argument, a constant
    start value, has none of the dimensions, or is an expansion of merged rows. What follows a product, such as a residual that
    is added, also reads what is in memory for others. Only for targets that are GPUs. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-merge-rows"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        with module.context, ir.Location.unknown():
            changed = split_transposed_rows(module)
            if changed:
                fold_movement(module)
            for count in range(MOST, 1, -1):
                for group in _groups([op for op in walk(module) if _mergeable(op, count)], count):
                    for op in group:
                        _merge(op, count)
                    changed = True
        if changed:
            run_upstream(module, "canonicalize,cse")


def _mergeable(op: ir.Operation, count: int) -> bool:
    """Whether the first `count` loops of a generic are parallel and walk every tensor together, as its first dimensions."""
    if not is_generic(op) or ATTENTION in op.attributes or is_contraction(op) or constant_fill(op) is not None:
        return False
    kinds = iterator_kinds(op)
    if len(kinds) < count or any(kind != "parallel" for kind in kinds[:count]):
        return False
    if any(inner.name == "linalg.index" for inner in walk(op)):
        return False
    maps = affine_maps(op)
    return all(m.is_projected_permutation and _rows_of(m, count) is not None for m in maps) and all(
        _rows_of(m, count) for m in maps[len(op.operands) - len(op.results) :]
    )


def _rows_of(map_: ir.AffineMap, count: int) -> bool | None:
    """Whether a map begins with the first `count` loops in order; None if it has some of them in another way."""
    loops = [ir.AffineDimExpr(e).position for e in map_.results]
    if loops[:count] == list(range(count)):
        return True
    return None if any(loop < count for loop in loops) else False


def _merged(op: ir.Operation | None, count: int) -> bool:
    """Whether a reshape merges (or splits) exactly the first `count` dimensions."""
    if op is None or not is_view(op):
        return False
    groups = reassociation(op)
    return list(groups[0]) == list(range(count)) and all(len(group) == 1 for group in groups[1:])


def _groups(ops: Sequence[ir.Operation], count: int) -> list[list[ir.Operation]]:
    """Sets of ops that can be merged together and stand beside merged rows, in order of the program."""
    left = {hash(op): op for op in ops}
    while True:
        unfit = [key for key, op in left.items() if not _fits(op, left, count)]
        if not unfit:
            break
        for key in unfit:
            del left[key]
    group_of = {key: number for number, key in enumerate(left)}
    for key, op in left.items():
        for value in op.operands:
            maker = defining_op(value)
            if maker is not None and hash(maker) in left and group_of[hash(maker)] != group_of[key]:
                old, new = group_of[hash(maker)], group_of[key]
                group_of = {k: new if g == old else g for k, g in group_of.items()}
    groups: dict[int, list[ir.Operation]] = {}
    for key, op in left.items():
        groups.setdefault(group_of[key], []).append(op)
    return [group for group in groups.values() if any(_beside_merged(op, count) for op in group)]


def _fits(op: ir.Operation, others: dict[int, ir.Operation], count: int) -> bool:
    """Whether all that an op reads can be had with merged rows, and who uses its results does not mind.

    What follows a product (a residual that is added) belongs to its stage whatever comes after, and may read what is in memory
    anyway for others that read it, too.
    """
    follows = _follows_product(op, count)
    for value, map_ in zip(op.operands, affine_maps(op), strict=True):
        maker = defining_op(value)
        if not _rows_of(map_, count) or maker is None or hash(maker) in others:
            continue
        if maker.name == "tensor.empty" or constant_fill(maker) is not None or _merged(maker, count):
            continue
        if defining_op(root_of(value)) is not None and not (follows and len(_readers(value)) > 1):
            return False
    for result in op.results if not follows else ():
        for use in result.uses:
            user = use.owner.operation
            if is_generic(user) and hash(user) not in others and ATTENTION not in user.attributes and not is_contraction(user):
                return False
    return True


def _follows_product(op: ir.Operation, count: int) -> bool:
    """Whether an element-wise op reads, as expanded rows, what element-wise ops make of a product and nothing else reads."""
    if set(iterator_kinds(op)) != {"parallel"}:
        return False
    for value in op.operands:
        maker = defining_op(value)
        if not _merged(maker, count) or maker is None or maker.name != "tensor.expand_shape":
            continue
        if _ends_product(maker.operands[0]):
            return True
    return False


def _ends_product(value: ir.Value, depth: int = MOST) -> bool:
    """Whether a few element-wise ops, each read by the next one alone, make a value of a product."""
    maker = defining_op(value)
    if maker is None or not depth or len(_readers(value)) != 1:
        return False
    if is_contraction(maker):
        return True
    if not is_generic(maker) or set(iterator_kinds(maker)) != {"parallel"}:
        return False
    return any(_ends_product(given, depth - 1) for given in list(maker.operands)[: len(maker.operands) - len(maker.results)])


def _readers(value: ir.Value) -> set[int]:
    return {hash(use.owner.operation) for use in value.uses}


def _beside_merged(op: ir.Operation, count: int) -> bool:
    """Whether an op reads a stage's merged rows, or a product reads its own so."""
    for value in op.operands:
        maker = defining_op(value)
        if _merged(maker, count) and defining_op(root_of(value)) is not None:
            return True
    users = [use.owner.operation for result in op.results for use in result.uses]
    return any(_merged(user, count) and user.name == "tensor.collapse_shape" for user in users)


def _merge(op: ir.Operation, count: int) -> None:
    """Replace an op by one over merged rows, whose results are expanded."""
    maps = affine_maps(op)
    with ir.InsertionPoint(op), op.location:
        operands = [
            _collapsed(value, count) if _rows_of(map_, count) else value for value, map_ in zip(op.operands, maps, strict=True)
        ]
        outs = operands[len(operands) - len(op.results) :]
        attributes = {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(_merged_map(m, count)) for m in maps]),
            "iterator_types": ir.ArrayAttr.get(list(ir.ArrayAttr(op.attributes["iterator_types"]))[count - 1 :]),
            "operandSegmentSizes": op.attributes["operandSegmentSizes"],
        }
        new = ir.Operation.create("linalg.generic", [value.type for value in outs], operands, attributes, regions=1)
        op.regions[0].blocks[0].append_to(new.regions[0])
        for old, result in zip(op.results, new.results, strict=True):
            shape = shape_of(old)
            groups = _reassociation(len(shape), count)
            old.replace_all_uses_with(tensor.ExpandShapeOp(old.type, result, groups, [], shape).result)
    op.erase()


def _collapsed(value: ir.Value, count: int) -> ir.Value:
    """A value with its first `count` dimensions merged; start values are made so."""
    shape, maker = shape_of(value), defining_op(value)
    if maker is not None and _merged(maker, count) and maker.name == "tensor.expand_shape":
        return maker.operands[0]
    rows = 1
    for size in shape[:count]:
        rows *= size
    element = ir.ShapedType(value.type).element_type
    narrow = [rows, *shape[count:]]
    constant = constant_fill(maker)
    if maker is not None and (maker.name == "tensor.empty" or constant is not None):
        empty = tensor.empty(narrow, element)
        return empty if constant is None else _fill(constant.results[0], empty)
    return tensor.CollapseShapeOp(ir.RankedTensorType.get(narrow, element), value, _reassociation(len(shape), count)).result


def _fill(value: ir.Value, empty: ir.Value) -> ir.Value:
    """A constant in every element."""
    rank = len(shape_of(empty))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))]),
        "iterator_types": ir.ArrayAttr.get([parallel] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 1]),
    }
    op = ir.Operation.create("linalg.generic", [empty.type], [empty], attributes, regions=1)
    block = op.regions[0].blocks.append(ir.ShapedType(empty.type).element_type, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [value])
    return op.results[0]


def _merged_map(map_: ir.AffineMap, count: int) -> ir.AffineMap:
    loops = [ir.AffineDimExpr(e).position for e in map_.results]
    kept = [0, *[loop - count + 1 for loop in loops[count:]]] if _rows_of(map_, count) else [x - count + 1 for x in loops]
    return ir.AffineMap.get(map_.n_dims - count + 1, 0, [ir.AffineDimExpr.get(loop) for loop in kept])


def _reassociation(rank: int, count: int) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    groups = [list(range(count)), *([dim] for dim in range(count, rank))]
    return ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, dim) for dim in group]) for group in groups])
