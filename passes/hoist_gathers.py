"""`kitsune-hoist-gathers`: multiply rows before they are gathered, where they are gathered several times.

A product is linear in its rows: gather(x, i) @ w = gather(x @ w, i). Graph networks multiply, for every edge, the features of
the nodes at its two ends; there are far more edges than nodes, so each node's row is multiplied once instead, and edges add
up what they gather. Sums are in f32; of bf16 products, each node's row is rounded to bf16 once more on its way through memory,
as it would be if the model had a layer for it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, plain_loops, shape_of
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.products import body_of, defining_op, is_generic, is_projected_product, yield_of
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target, find_target

from .base import Pass
from .normalize import run_upstream
from .remarks import remark

MARGIN = 0.75  # of the estimated time that is saved may be paid: estimates are no better than that


@dataclass(frozen=True)
class Gather:
    """`rows[r, c] = table[place(index[r]), c]`: `op` is the generic that gathers, `place` the arithmetic in its body."""

    op: ir.Operation
    table: ir.Value

    @property
    def index(self) -> ir.Value:
        """The tensor of indices, one a row."""
        return self.op.operands[0]


@dataclass(frozen=True)
class Part:
    """Columns [start, start + width) of a product's left factor: a gather, or another tensor."""

    value: ir.Value
    start: int
    width: int
    gather: Gather | None


def gather_of(value: ir.Value) -> Gather | None:
    """The gather of whole rows of a rank-2 table that makes a value, or None."""
    op = defining_op(value)
    if op is None or not is_generic(op) or len(op.operands) != 2 or len(op.results) != 1:
        return None
    if iterator_kinds(op) != ["parallel"] * 2 or [plain_loops(m) for m in affine_maps(op)] != [[0], [0, 1]]:
        return None
    made = defining_op(yield_of(op).operands[0])
    if made is None or made.name != "tensor.extract" or len(made.operands) != 3:
        return None
    table, row, column = made.operands
    if table not in captures(op) or not _is_column(column) or shape_of(table)[1] != shape_of(value)[1]:
        return None
    pending, block = [row], op.regions[0].blocks[0]
    while pending:
        value = pending.pop()
        maker = defining_op(value)
        if maker is None:
            if value != block.arguments[0]:
                return None
        elif maker.name != "arith.constant":
            if not maker.name.startswith("arith."):
                return None
            pending += list(maker.operands)
    return Gather(op, table)


def _is_layer(op: ir.Operation) -> bool:
    """Whether an op is a product of [rows, k] with rank-2 weights into f32 [rows, columns]."""
    if not is_projected_product(op) or subscripts(op) not in ("mk,nk->mn", "mk,kn->mn"):
        return False
    return isinstance(ir.ShapedType(op.results[0].type).element_type, ir.F32Type)


def _is_column(value: ir.Value) -> bool:
    op = defining_op(value)
    return op is not None and op.name == "linalg.index" and ir.IntegerAttr(op.attributes["dim"]).value == 1


def parts_of(value: ir.Value) -> list[Part]:
    """The column ranges of a tensor [rows, columns]: those that a concatenation joins, or one."""
    op = defining_op(value)
    joined = op is not None and op.name == "tensor.concat" and ir.IntegerAttr(op.attributes["dim"]).value == 1
    parts, start = [], 0
    for source in list(op.operands) if op is not None and joined else [value]:
        width = shape_of(source)[1]
        parts.append(Part(source, start, width, gather_of(source)))
        start += width
    return parts


def saves(part: Part, columns: int, target: Target) -> bool:
    """Whether multiplying the table takes at most three quarters of the time of multiplying the gathered rows.

    What is saved: a product of `rows` gathered rows. What is paid: the table's product, one more stage, and reading sums (at
    most f32) instead of 16-bit rows (from L2, where tables of nodes lie).
    """
    assert part.gather is not None
    rows, entries = shape_of(part.value)[0], shape_of(part.gather.table)[0]
    operations = 2 * part.width * columns
    saved = operations * rows / target.matrix_rate + 2 * part.width * rows / target.cache_rate
    paid = rates.CHAIN_HAND_OFF + operations * entries / target.matrix_rate + 4 * columns * (rows + entries) / target.cache_rate
    return paid <= MARGIN * saved


@dataclass(frozen=True)
class HoistGathers(Pass):
    """Multiply rows before they are gathered: gather(x, i) @ w becomes gather(x @ w, i) where that is clearly faster.

    Looks at the parts of a concatenation one by one; what is not gathered, or not worth it, stays in the product. Only for GPU
    targets. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-hoist-gathers"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if not target.is_gpu:
            return
        with module.context, ir.Location.unknown():
            for op in [op for op in walk(module) if _is_layer(op)]:
                self._hoist(op, target)
        run_upstream(module, "canonicalize,cse")  # what was gathered and concatenated is dead now

    def _hoist(self, op: ir.Operation, target: Target) -> None:
        """Rewrite one product where that pays."""
        parts, columns = parts_of(op.operands[0]), shape_of(op.results[0])[1]
        out = [p for p in parts if p.gather is not None and saves(p, columns, target)]
        kept = [p for p in parts if p not in out]
        together = all(a.start + a.width == b.start for a, b in zip(kept, kept[1:], strict=False))
        if not out or not kept or not together:
            return
        with ir.InsertionPoint(op), op.location:
            value = kept[0].value
            if len(kept) > 1:
                shape = [shape_of(value)[0], sum(p.width for p in kept)]
                joined = ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type)
                value = tensor.concat(joined, 1, [p.value for p in kept])
            total = self._product(op, value, kept[0].start, sum(p.width for p in kept), op.operands[2])
            for part in out:
                assert part.gather is not None
                start = _zeros(shape_of(part.gather.table)[0], columns)
                table = _stored(op, self._product(op, part.gather.table, part.start, part.width, start))
                total = _add_gathered(part.gather, table, total)
        remark(op, f"{len(out)} of {len(parts)} parts of its rows are multiplied before they are gathered")
        op.results[0].replace_all_uses_with(total)
        op.erase()

    def _product(self, op: ir.Operation, rows: ir.Value, start: int, width: int, init: ir.Value) -> ir.Value:
        """The product `op` of other rows with columns [start, start + width) of its sum."""
        weights = op.operands[1]
        shape = shape_of(weights)
        along = 0 if subscripts(op) == "mk,kn->mn" else 1
        sizes = [width if d == along else shape[d] for d in range(2)]
        if sizes != shape:
            offsets = [start if d == along else 0 for d in range(2)]
            type_ = ir.RankedTensorType.get(sizes, ir.ShapedType(weights.type).element_type)
            weights = tensor.ExtractSliceOp(type_, weights, [], [], [], offsets, sizes, [1, 1]).result
        copy = op.clone().operation
        for number, value in enumerate((rows, weights, init)):
            copy.operands[number] = value
        copy.results[0].set_type(init.type)
        return copy.results[0]


def _generic(inputs: list[ir.Value], maps: list[ir.AffineMap], result: ir.Type) -> tuple[ir.Operation, ir.Block]:
    """An element-wise linalg.generic on rank-2 tensors without a body yet, and its block."""
    elements = [ir.ShapedType(v.type).element_type for v in inputs] + [ir.ShapedType(result).element_type]
    out = tensor.empty(list(ir.ShapedType(result).shape), elements[-1])
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * 2),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), 1]),
    }
    op = ir.Operation.create("linalg.generic", [result], [*inputs, out], attributes, regions=1)
    return op, op.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * len(elements))


def _zeros(rows: int, columns: int) -> ir.Value:
    f32 = ir.F32Type.get()
    zero = arith.constant(f32, 0.0)
    op, block = _generic([], [ir.AffineMap.get_identity(2)], ir.RankedTensorType.get([rows, columns], f32))
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [zero])
    return op.results[0]


def _stored(op: ir.Operation, sums: ir.Value) -> ir.Value:
    """Sums as they go through memory: bf16 where the product's factors are, else f32 (partial sums may be beyond f16)."""
    element = ir.ShapedType(op.operands[0].type).element_type
    if not isinstance(element, ir.BF16Type):
        return sums
    identity = ir.AffineMap.get_identity(2)
    stored, block = _generic([sums], [identity, identity], ir.RankedTensorType.get(shape_of(sums), element))
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [arith.truncf(element, block.arguments[0])])
    return stored.results[0]


def _add_gathered(gather: Gather, table: ir.Value, total: ir.Value) -> ir.Value:
    """total[r, c] + table[place(index[r]), c]."""
    along_rows, along_both = affine_maps(gather.op)
    op, block = _generic([gather.index, total], [along_rows, along_both, along_both], total.type)
    local: dict[ir.Value, ir.Value] = {gather.op.regions[0].blocks[0].arguments[0]: block.arguments[0]}
    with ir.InsertionPoint(block):
        for inner in body_of(gather.op):
            if inner.name == "tensor.extract":
                row, column = (local.get(v, v) for v in list(inner.operands)[1:])
                local[inner.results[0]] = tensor.extract(table, [row, column])
                continue
            copy = inner.clone().operation
            for number, value in enumerate(inner.operands):
                copy.operands[number] = local.get(value, value)
            local.update(zip(inner.results, copy.results, strict=True))
        made = local[yield_of(gather.op).operands[0]]
        if made.type != block.arguments[1].type:
            made = arith.extf(block.arguments[1].type, made)
        ir.Operation.create("linalg.yield", [], [arith.addf(block.arguments[1], made)])
    return op.results[0]
