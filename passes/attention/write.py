"""Writing an attention in the one form that stages are made of: generics over single loops, nothing reshaped inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, math, tensor

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.attention import Attention, Operand, Step
from kitsune_mlir.dialects.attention_gradient import Gradient
from kitsune_mlir.dialects.attribute_table import ATTENTION
from kitsune_mlir.dialects.factors import Factor, Flat
from kitsune_mlir.dialects.iteration import is_free
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.scalar_tree import Tree, nodes_of
from kitsune_mlir.passes.attention.scalar_body import emit
from kitsune_mlir.passes.stages.copies import copy_of

__all__ = ["Viewed", "Writer", "unview", "view", "write_attention"]

Viewed = tuple[ir.Value, list[Factor]]
"""A tensor each of whose dimensions is one factor."""


def write_attention(attention: Attention, number: int, join: bool, logarithm: bool = False) -> ir.Value | None:
    """Replace the result of an attention by a new computation of it, placed before the operation that makes it.

    Args:
        number: what the operations are marked with.
        join: where keys are a concatenation, it is part of the attention; otherwise it is made in memory first.
        logarithm: the logarithm of each row's sum of exponentials is a result, too, and takes the place of `logarithms`.

    Returns:
        The logarithm, whose dimensions are those of the scores but for the columns; None if it is not wanted.
    """
    last = defining_op(attention.result.value)
    assert last is not None
    with ir.InsertionPoint(last), attention.weighted.location:
        made, rows = _AttentionWriter(attention, number).write(join, logarithm)
        logarithms = [unview(rows, operand) for operand in attention.logarithms] if rows is not None else []
        scores = Operand(attention.scores.value, tuple(d for d in attention.scores.dims if d != attention.column))
        left = unview(rows, scores) if rows is not None else None
    attention.result.value.replace_all_uses_with(made)
    for operand, value in zip(attention.logarithms, logarithms, strict=False):
        operand.value.replace_all_uses_with(value)
    return left


class Writer:
    """Generics of an attention or of its gradients; `number` is their mark, None for those that have none."""

    def __init__(self, attention: Attention | Gradient, number: int | None):
        self.attention = attention
        self.mark = None if number is None else ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        self.f32 = ir.F32Type.get()
        self.narrow = ir.Type.parse(attention.dtype)

    # --- the operations ----------------------------------------------------------------------------------------------

    def _generic(
        self,
        inputs: Sequence[Viewed],
        loops: list[Factor],
        result: list[Factor],
        element: ir.Type,
        body: Callable[..., ir.Value],
        init: ir.Value | None = None,
    ) -> ir.Value:
        """A `linalg.generic`, marked unless it is a fill; loops that the result does not have are reductions."""
        start = self._empty(result, element) if init is None else init

        def map_of(factors: Sequence[Factor]) -> ir.Attribute:
            return ir.AffineMapAttr.get(
                ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(loops.index(factor)) for factor in factors])
            )

        kinds = ["parallel" if factor in result else "reduction" for factor in loops]
        op = ir.Operation.create(
            "linalg.generic",
            [start.type],
            [*(value for value, _ in inputs), start],
            {
                "indexing_maps": ir.ArrayAttr.get([*(map_of(factors) for _, factors in inputs), map_of(result)]),
                "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), 1]),
                **({ATTENTION: self.mark} if inputs and self.mark is not None else {}),
            },
            regions=1,
        )
        elements = [*(ir.ShapedType(value.type).element_type for value, _ in inputs), element]
        block = op.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(elements))
        with ir.InsertionPoint(block):
            ir.Operation.create("linalg.yield", [], [body(*block.arguments)])
        return op.results[0]

    def _empty(self, factors: Sequence[Factor], element: ir.Type) -> ir.Value:
        return tensor.empty([factor.size for factor in factors], element)

    def _filled(self, factors: Sequence[Factor], number: float) -> ir.Value:
        start = arith.constant(self.f32, number)
        loops = list(factors)
        return self._generic([], loops, loops, self.f32, lambda _: start)

    def product(self, a: Viewed, b: Viewed, result: list[Factor], along: Factor) -> ir.Value:
        def body(x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
            return arith.addf(total, arith.mulf(arith.extf(self.f32, x), arith.extf(self.f32, y)))

        return self._generic([a, b], [*result, along], result, self.f32, body, self._filled(result, 0.0))

    def reduce(self, source: Viewed, result: list[Factor], start: float, combine: Callable) -> ir.Value:
        return self._generic([source], source[1], result, self.f32, combine, self._filled(result, start))

    def sum(self, source: Viewed, result: list[Factor]) -> ir.Value:
        return self.reduce(source, result, 0.0, arith.addf)

    def map(self, inputs: Sequence[Viewed], loops: list[Factor], element: ir.Type, body: Callable) -> ir.Value:
        def without_init(*arguments: ir.Value) -> ir.Value:
            return body(*arguments[:-1])

        return self._generic(inputs, loops, loops, element, without_init)

    # --- what they compute -------------------------------------------------------------------------------------------

    def scaled(self, scores: Viewed) -> ir.Value:
        steps, scale = self.attention.steps, self.attention.scale
        if scale == 1.0 and not steps:
            return scores[0]
        loads = list(dict.fromkeys(node for step in steps for node in nodes_of(step.tree) if node[0] == "load"))
        inputs = [view(Operand(node[1], node[2])) for node in loads]

        def body(score: ir.Value, *loaded: ir.Value) -> ir.Value:
            known = dict(zip(loads, loaded, strict=True))
            if scale != 1.0:
                score = arith.mulf(score, arith.constant(self.f32, scale))
            for step in steps:
                score = self._step(step, score, lambda tree: emit(tree, known, scores[1]))
            return score

        return self.map([scores, *inputs], scores[1], self.f32, body)

    def dropped(self, inputs: Sequence[Viewed], loops: list[Factor], body: Callable[..., ir.Value]) -> ir.Value:
        """A map of the probabilities' shape in the operands' type; `body` also gets, last, what dropout does to a value."""
        dropout = self.attention.dropout
        if dropout is None:
            return self.map(inputs, loops, self.narrow, lambda *given: body(*given, lambda value: value))
        loads = list(dict.fromkeys(node for node in nodes_of(dropout.tree) if node[0] == "load"))
        read = [view(Operand(node[1], node[2])) for node in loads]

        def with_loads(*given: ir.Value) -> ir.Value:
            keep = emit(dropout.tree, dict(zip(loads, given[len(inputs) :], strict=True)), loops)
            zero, factor = (arith.constant(self.f32, number) for number in (0.0, dropout.factor))
            return body(*given[: len(inputs)], lambda value: arith.select(keep, arith.mulf(value, factor), zero))

        return self.map([*inputs, *read], loops, self.narrow, with_loads)

    def _step(self, step: Step, score: ir.Value, emitted: Callable[[Tree], ir.Value]) -> ir.Value:
        other = emitted(step.tree)
        if step.kind == "bias":
            return arith.addf(score, other if other.type == self.f32 else arith.extf(self.f32, other))
        return arith.select(other, score, arith.constant(self.f32, step.number))


class _AttentionWriter(Writer):
    def __init__(self, attention: Attention, number: int):
        super().__init__(attention, number)
        self.whole = attention

    def write(self, join: bool, logarithm: bool) -> tuple[ir.Value, ir.Value | None]:
        """The result, and where wanted the logarithm of each row's sum, its rows in the order of the scores'."""
        attention = self.whole
        outer, column = list(attention.outer), attention.column[0]
        width, head = attention.width[0], attention.head[0]
        query = view(attention.query)
        key = self._joined(attention.key, attention.keys, join)
        value = self._joined(attention.value, attention.values, join)
        rows, square = outer, [*outer, column]
        scores = (self.product(query, key, square, width), square)
        scores = (self.scaled(scores), square)
        top = (self.reduce(scores, rows, float("-inf"), arith.maximumf), rows)
        weights = (self.map([scores, top], square, self.f32, self._exponential), square)
        total = (self.sum(weights, rows), rows)
        rounded = (self.dropped([weights, total], square, self._quotient), square)
        summed = (self.product(rounded, value, [*outer, head], column), [*outer, head])
        result = self.map([summed], [*outer, head], self.narrow, lambda x: arith.truncf(self.narrow, x))
        rows_of_scores = [factor for dim in attention.scores.dims for factor in dim if factor != column]
        left = self._generic([top, total], outer, rows_of_scores, self.f32, self._log_of_sum) if logarithm else None
        return unview(result, attention.result), left

    def _log_of_sum(self, top: ir.Value, total: ir.Value, _: ir.Value) -> ir.Value:
        if self.whole.guarded:
            top = self._instead(top, float("-inf"), 0.0)
        found = arith.addf(top, math.log(total))
        if self.whole.guarded:
            empty = arith.cmpf(arith.CmpFPredicate.OEQ, total, arith.constant(self.f32, 0.0))
            found = arith.select(empty, arith.constant(self.f32, float("inf")), found)
        return found

    def _exponential(self, score: ir.Value, top: ir.Value) -> ir.Value:
        if self.whole.guarded:
            top = self._instead(top, float("-inf"), 0.0)
        return math.exp(arith.subf(score, top))

    def _quotient(self, weight: ir.Value, total: ir.Value, kept: Callable[[ir.Value], ir.Value]) -> ir.Value:
        if self.whole.guarded:
            total = self._instead(total, 0.0, 1.0)
        return arith.truncf(self.narrow, kept(arith.divf(weight, total)))

    def _instead(self, value: ir.Value, found: float, instead: float) -> ir.Value:
        same = arith.cmpf(arith.CmpFPredicate.OEQ, value, arith.constant(self.f32, found))
        return arith.select(same, arith.constant(self.f32, instead), value)

    # --- keys that are a concatenation -------------------------------------------------------------------------------

    def _joined(self, whole: Operand, parts: Sequence[Operand], join: bool) -> Viewed:
        if len(parts) == 1 or not join:
            return view(whole)
        column = self.whole.column[0]
        known = {*self.whole.outer, *self.whole.width, *self.whole.head}
        views = [view(part) for part in parts]
        orders = [[factor if factor in known else column for factor in factors] for _, factors in views]
        order = next(factors for factors in orders if column in factors)
        at = order.index(column)
        values = [self._part(*viewed, order, at) for viewed in views]
        shape = [factor.size for factor in order]
        assert self.mark is not None
        attributes = {"dim": ir.IntegerAttr.get(self.mark.type, at), ATTENTION: self.mark}
        type_ = ir.RankedTensorType.get(shape, self.narrow)
        return ir.Operation.create("tensor.concat", [type_], values, attributes).results[0], order

    def _part(self, value: ir.Value, factors: list[Factor], order: list[Factor], at: int) -> ir.Value:
        """A part with its dimensions in the order `order`, whose dimension `at` is the one that is joined."""
        others = {*order[:at], *order[at + 1 :]}
        own = next((factor for factor in factors if factor not in others), None)
        wanted = [*order[:at], *([] if own is None else [own]), *order[at + 1 :]]
        if factors != wanted:
            value = self.map([(value, factors)], wanted, self.narrow, lambda x: x)
        if own is None:
            shape = [factor.size for factor in order]
            shape[at] = 1
            groups = _groups([dim != at for dim in range(len(shape))])
            value = tensor.expand_shape(ir.RankedTensorType.get(shape, self.narrow), value, groups, [], shape)
        return value


def view(operand: Operand) -> Viewed:
    """A tensor in memory with its dimensions split into factors, and those of extent 1 left out.

    A slice that is one of several equal parts of a dimension is taken from a view of the whole (queries, keys and values
    that one product makes); other slices, and what stages repeat rather than store, are copied to memory first.
    """
    value, dims = operand.value, [dim for dim in operand.dims if dim]
    index = None
    maker = defining_op(value)
    if maker is not None and maker.name == "tensor.extract_slice" and (part := _part_of(maker)) is not None:
        value, dims, index = _parts_apart(maker, *part, operand.dims)
    elif maker is not None and is_free(maker):
        value = copy_of(value)
    element = ir.ShapedType(value.type).element_type
    shape = shape_of(value)
    if index is None and len(dims) != len(shape):
        sizes = [_size(dim) for dim in dims]
        value = tensor.collapse_shape(ir.RankedTensorType.get(sizes, element), value, _groups([n != 1 for n in shape]))
    factors = [factor for dim in dims for factor in dim]
    at = None if index is None else index[0]
    if any(len(dim) > 1 for dim in dims):
        sizes, groups = [], []
        for number, dim in enumerate(dims):
            group = [shape[number]] if number == at else [factor.size for factor in dim]
            groups.append(list(range(len(sizes), len(sizes) + len(group))))
            sizes += group
        value = tensor.expand_shape(ir.RankedTensorType.get(sizes, element), value, groups, [], sizes)
        if at is not None:
            at = groups[at][0]
    if index is not None and at is not None:
        value = _slice_at(value, at, index[1])
    return value, factors


def _part_of(op: ir.Operation) -> tuple[int, int, int] | None:
    """(dimension, number of the part, number of parts) of a slice that is one of the equal parts of a dimension, or None."""
    source, result = shape_of(op.operands[0]), shape_of(op.results[0])
    sizes, offsets, strides = (static_ints(op, f"static_{what}") for what in ("sizes", "offsets", "strides"))
    cut = [d for d, size in enumerate(sizes) if size != source[d]]
    if (
        len(op.operands) > 1
        or any(n != 1 for n in strides)
        or len(cut) != 1
        or [n for n in sizes if n != 1] != [n for n in result if n != 1]
    ):
        return None
    (at,) = cut
    if source[at] % sizes[at] or offsets[at] % sizes[at]:
        return None
    return at, offsets[at] // sizes[at], source[at] // sizes[at]


def _parts_apart(
    op: ir.Operation, at: int, part: int, parts: int, dims: Sequence[Flat]
) -> tuple[ir.Value, list[Flat], tuple[int, int]]:
    """The source of a slice with a dimension for its parts, without others of extent 1; the factors of its dimensions (none for
    the parts); the place of that dimension, and the part."""
    source = shape_of(op.operands[0])
    element = ir.ShapedType(op.operands[0].type).element_type
    inner = source[at] // parts
    value = op.operands[0]
    wide = [dim for dim in dims if dim]
    if any(n == 1 for n in source):
        kept = [n for n in source if n != 1]
        value = tensor.collapse_shape(ir.RankedTensorType.get(kept, element), value, _groups([n != 1 for n in source]))
        at, source = sum(n != 1 for n in source[:at]), kept
    if inner != 1:
        sizes = [*source[:at], parts, inner, *source[at + 1 :]]
        groups = [[d] for d in range(at)] + [[at, at + 1]] + [[d + 1] for d in range(at + 1, len(source))]
        value = tensor.expand_shape(ir.RankedTensorType.get(sizes, element), value, groups, [], sizes)
    return value, [*wide[:at], (), *wide[at:]], (at, part)


def _slice_at(value: ir.Value, at: int, part: int) -> ir.Value:
    """Part `part` along dimension `at`, which the result does not have."""
    shape = shape_of(value)
    rest = [*shape[:at], *shape[at + 1 :]]
    type_ = ir.RankedTensorType.get(rest, ir.ShapedType(value.type).element_type)
    offsets = [part if d == at else 0 for d in range(len(shape))]
    sizes = [1 if d == at else n for d, n in enumerate(shape)]
    return tensor.ExtractSliceOp(type_, value, [], [], [], offsets, sizes, [1] * len(shape)).result


def unview(value: ir.Value, operand: Operand) -> ir.Value:
    """A tensor of single factors in the shape of `operand`: the opposite of `view`."""
    wide = [dim for dim in operand.dims if dim]
    element = ir.ShapedType(value.type).element_type
    if any(len(dim) > 1 for dim in wide):
        groups, at = [], 0
        for dim in wide:
            groups.append(list(range(at, at + len(dim))))
            at += len(dim)
        value = tensor.collapse_shape(ir.RankedTensorType.get([_size(dim) for dim in wide], element), value, groups)
    if len(wide) != len(operand.dims):
        shape = shape_of(operand.value)
        type_ = ir.RankedTensorType.get(shape, element)
        value = tensor.expand_shape(type_, value, _groups([bool(d) for d in operand.dims]), [], shape)
    return value


def _size(dim: Flat) -> int:
    size = 1
    for factor in dim:
        size *= factor.size
    return size


def _groups(wide: Sequence[bool]) -> list[list[int]]:
    """Reassociation that puts each dimension of extent 1 with a wide one; without wide ones: none."""
    if not any(wide):
        return []
    groups: list[list[int]] = []
    leading: list[int] = []
    for dim, is_wide in enumerate(wide):
        if is_wide:
            groups.append([*leading, dim])
            leading = []
        elif groups:
            groups[-1].append(dim)
        else:
            leading.append(dim)
    return groups
