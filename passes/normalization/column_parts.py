"""Products of few rows whose columns are read in equal parts (the gates of a recurrent cell) as a product for each part.

Products that share their rows and what is done with their sums then are one stage (`gemv`): a step of an LSTM, which multiplies
by one matrix of all gates and then combines columns that lie far apart, is one stage instead of two.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import affine_maps, dropped_dims, is_tensor, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.contraction import matrix_extents
from kitsune_mlir.dialects.iteration import is_trivial_reshape
from kitsune_mlir.dialects.products import body_of, constant_fill, defining_op, is_generic, is_projected_product
from kitsune_mlir.dialects.verify import walk

__all__ = ["Parts", "leaves_of", "part_columns", "weight_of"]

MOST_ROWS = 64
"""Of a product that reads its weights once however few columns a stage has; with more rows one wide product is better."""
MOST_PARTS = 8


def part_columns(module: ir.Operation) -> None:
    """Rebuild such products, and the element-wise ops up to where the parts are cut out."""
    for op in [op for op in walk(module) if is_projected_product(op)]:
        if matrix_extents(op)[0] <= MOST_ROWS and weight_of(op) is not None:
            made: set[ir.Value] = set()
            leaves = leaves_of(op.results[0], made)
            if leaves is not None and (parts := _parts(leaves, shape_of(op.results[0])[-1])) is not None:
                Parts(parts, made).cut(leaves)


def weight_of(op: ir.Operation) -> int | None:
    """The operand that alone has a product's last columns; None where both or none have them."""
    maps = affine_maps(op)
    if not shape_of(op.results[0]):
        return None
    column = maps[2].results[-1]
    found = [n for n in (0, 1) if column in list(maps[n].results)]
    return found[0] if len(found) == 1 else None


def leaves_of(value: ir.Value, made: set[ir.Value]) -> list[ir.Operation] | None:
    """The slices of last columns that all of a value's uses end in, through element-wise ops; None where others use it.

    Args:
        made: the value and what is made of it on the way are added.
    """
    made.add(value)
    found: list[ir.Operation] = []
    for user in dict.fromkeys(use.owner.operation for use in value.uses):
        if user.name == "tensor.extract_slice" and _cuts_columns(user):
            found.append(user)
            continue
        passed_on = is_trivial_reshape(user) and shape_of(user.results[0])[-1:] == shape_of(value)[-1:]
        below = leaves_of(user.results[0], made) if passed_on or _is_element_wise(user, value) else None
        if below is None:
            return None
        found += below
    return found or None


def _is_element_wise(op: ir.Operation, value: ir.Value) -> bool:
    """Whether a generic makes one element of its result of each element of an operand, whatever their columns' numbers."""
    if not is_generic(op) or len(op.results) != 1 or set(iterator_kinds(op)) - {"parallel"}:
        return False
    maps = affine_maps(op)
    read = [maps[n] for n, operand in enumerate(op.operands) if operand == value]
    plain = all(m.is_projected_permutation for m in maps) and all(m == maps[-1] for m in read)
    whole = any(inner.name in ("linalg.index", "tensor.extract") for inner in body_of(op))
    return plain and maps[-1] == ir.AffineMap.get_identity(maps[-1].n_dims) and op.operands[-1] != value and not whole


def _cuts_columns(op: ir.Operation) -> bool:
    """Whether a slice takes all of its source but for some of the last columns."""
    if len(op.operands) > 1 or len(shape_of(op.operands[0])) - 1 in dropped_dims(op):
        return False
    *sizes, last = static_ints(op, "static_sizes")
    *shape, columns = shape_of(op.operands[0])
    return sizes == shape and last < columns and all(stride == 1 for stride in static_ints(op, "static_strides"))


def _parts(leaves: list[ir.Operation], columns: int, least: int = 2) -> int | None:
    """The number of parts that all leaves are one of each, `least` of them or more; None where they are others."""
    sizes = {static_ints(leaf, "static_sizes")[-1] for leaf in leaves}
    size = min(sizes)
    starts = {static_ints(leaf, "static_offsets")[-1] for leaf in leaves}
    if len(sizes) > 1 or columns % size or any(start % size for start in starts) or len(starts) < least:
        return None
    return columns // size if columns // size <= MOST_PARTS else None


@dataclass
class Parts:
    """A product in `count` parts; `whole` are its sums and what is made of them up to the slices."""

    count: int
    whole: set[ir.Value]
    made: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)
    split: dict[tuple[ir.Value, int], ir.Value] = field(default_factory=dict)

    def width(self, columns: int) -> int:
        """Columns of a part."""
        return columns // self.count

    def cut(self, leaves: list[ir.Operation]) -> None:
        """Replace each leaf by its part; what it was cut out of is left without a use."""
        users: dict[ir.Operation, None] = {}
        for leaf in sorted(leaves, key=lambda leaf: static_ints(leaf, "static_offsets")[-1]):
            users.update(dict.fromkeys(use.owner.operation for use in leaf.results[0].uses))
            self._replace(leaf, self._part)
        for user in users:
            self._cut_beside(user)

    def _cut_beside(self, user: ir.Operation) -> None:
        """What an op reads beside the parts, cut out of other tensors (what comes of a GRU's input), is cut in the same way."""
        for value in list(user.operands):
            op = defining_op(value)
            if op is not None and op.name == "tensor.extract_slice" and _cuts_columns(op):
                columns = shape_of(op.operands[0])[-1]
                if _parts([op], columns, least=1) == self.count:
                    self._replace(op, lambda source, number: self._slice(source, len(shape_of(source)) - 1, number))

    def _replace(self, op: ir.Operation, part: Callable[[ir.Value, int], ir.Value]) -> None:
        """Put a part of what a slice cuts in place of the slice."""
        shape = shape_of(op.results[0])
        number = static_ints(op, "static_offsets")[-1] // shape[-1]
        with ir.InsertionPoint(op), op.location:
            made = part(op.operands[0], number)
            if shape_of(made) != shape:
                made = tensor.CollapseShapeOp(op.results[0].type, made, list(_groups(shape_of(made), dropped_dims(op)))).result
        op.results[0].replace_all_uses_with(made)
        op.erase()

    def _part(self, value: ir.Value, number: int) -> ir.Value:
        """A part of the last columns of a value that comes from the product."""
        if (value, number) not in self.made:
            op = defining_op(value)
            assert op is not None
            with ir.InsertionPoint(op), op.location:
                self.made[value, number] = self._rebuilt(op, number)
        return self.made[value, number]

    def _rebuilt(self, op: ir.Operation, number: int) -> ir.Value:
        shape = shape_of(op.results[0])
        shape[-1] = self.width(shape[-1])
        type_ = ir.RankedTensorType.get(shape, ir.ShapedType(op.results[0].type).element_type)
        if is_trivial_reshape(op):
            source, reassociation = self._part(op.operands[0], number), op.attributes["reassociation"]
            if op.name == "tensor.expand_shape":
                return tensor.ExpandShapeOp(type_, source, reassociation, [], shape).result
            return tensor.CollapseShapeOp(type_, source, reassociation).result
        maps = affine_maps(op)
        column = maps[-1].results[-1]
        operands = []
        for operand, along in zip(list(op.operands)[:-1], maps, strict=False):
            places = [place for place, e in enumerate(along.results) if e == column]
            if operand in self.whole:
                operands.append(self._part(operand, number))
            else:
                operands.append(self._slice(operand, places[0], number) if places and is_tensor(operand) else operand)
        attributes = {named if isinstance(named, str) else named.name: op.attributes[named] for named in op.attributes}
        operands.append(self._start(op, type_, number))
        new = ir.Operation.create(op.name, [type_], operands, attributes, regions=len(op.regions))
        copy = op.clone()
        copy.operation.regions[0].blocks[0].append_to(new.regions[0])
        copy.erase()
        return new.results[0]

    def _start(self, op: ir.Operation, type_: ir.Type, number: int) -> ir.Value:
        """What the rebuilt op's result begins with."""
        start = op.operands[len(op.operands) - 1]
        maker = defining_op(start)
        shaped = ir.ShapedType(type_)
        if maker is not None and maker.name == "tensor.empty":
            return tensor.empty(list(shaped.shape), shaped.element_type)
        if maker is not None and constant_fill(maker) is not None and is_generic(maker):
            fresh = tensor.empty(list(shaped.shape), shaped.element_type)
            copy = maker.clone().operation
            copy.operands[0] = fresh
            copy.results[0].set_type(type_)
            return copy.results[0]
        return self._slice(start, len(shape_of(start)) - 1, number)

    def _slice(self, value: ir.Value, dim: int, number: int) -> ir.Value:
        """A part along a dimension of a tensor from elsewhere: of its memory, seen with a dimension of parts."""
        shape = shape_of(value)
        size, maker = shape[dim] // self.count, defining_op(value)
        source, at, starts, sizes = value, dim, [0] * len(shape), list(shape)
        if maker is not None and maker.name == "tensor.extract_slice" and len(maker.operands) == 1:
            kept = [d for d in range(len(shape_of(maker.operands[0]))) if d not in dropped_dims(maker)]
            steps = static_ints(maker, "static_strides")
            if all(step == 1 for step in steps) and shape_of(maker.operands[0])[kept[dim]] == shape[dim]:
                source, at = maker.operands[0], kept[dim]
                starts, sizes = static_ints(maker, "static_offsets"), static_ints(maker, "static_sizes")
        if (source, at) not in self.split:
            whole = shape_of(source)
            apart = [*whole[:at], self.count, size, *whole[at + 1 :]]
            groups = [[d] if d < at else [d, d + 1] if d == at else [d + 1] for d in range(len(whole))]
            type_ = ir.RankedTensorType.get(apart, ir.ShapedType(value.type).element_type)
            maker = defining_op(source)
            place = ir.InsertionPoint.at_block_begin(source.owner) if maker is None else ir.InsertionPoint.after(maker)
            with place:
                self.split[source, at] = tensor.ExpandShapeOp(type_, source, groups, [], apart).result
        shape[dim] = size
        type_ = ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type)
        starts, sizes = [*starts[:at], number, 0, *starts[at + 1 :]], [*sizes[:at], 1, size, *sizes[at + 1 :]]
        return tensor.ExtractSliceOp(type_, self.split[source, at], [], [], [], starts, sizes, [1] * len(sizes)).result


def _groups(shape: list[int], dropped: tuple[int, ...]) -> Iterator[list[int]]:
    """Dimensions that a collapse puts together, so that those that are dropped, of extent 1, go with a neighbour."""
    kept = [d for d in range(len(shape)) if d not in dropped]
    assert math.prod(shape[d] for d in dropped) == 1
    for number, _ in enumerate(kept):
        start = 0 if number == 0 else kept[number - 1] + 1
        end = kept[number] + 1 if number + 1 < len(kept) else len(shape)
        yield list(range(start, end))
