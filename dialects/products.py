"""Recognising what a linalg.generic computes: products, widening casts, pure movement of data."""

from torch_mlir import ir

from .access import affine_maps, iterator_kinds
from .unchanged import remembered
from .verify import terminator_of

WIDENING = {"arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp"}
PRODUCTS = {("arith.mulf", "arith.addf"), ("arith.muli", "arith.addi")}


def body_of(op: ir.Operation) -> list[ir.Operation]:
    """The operations of a linalg.generic's body, without the yield."""
    return [o.operation for o in op.regions[0].blocks[0].operations][:-1]


def yield_of(op: ir.Operation) -> ir.Operation:
    """The linalg.yield of a linalg.generic."""
    last = terminator_of(op.regions[0].blocks[0])
    assert last is not None
    return last


def is_generic(op: ir.Operation | None) -> bool:
    """Whether `op` is a linalg.generic."""
    return op is not None and op.name == "linalg.generic"


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation that makes a value, or None for a block argument."""
    return value.owner.operation if isinstance(value, ir.OpResult) else None


@remembered
def is_contraction(op: ir.Operation) -> bool:
    """Whether a generic is a product: out += widen(a) * widen(b), two inputs, at least one reduction loop.

    Convolutions are products too, with maps that are sums of loops. Where both inputs have all loops, nothing is read twice:
    such sums of what is multiplied element by element are reductions like others.
    """
    if not is_generic(op) or len(op.operands) != 3 or len(op.results) != 1 or "reduction" not in iterator_kinds(op):
        return False
    if all(map_.is_permutation for map_ in affine_maps(op)[:2]):
        return False
    core = [o for o in body_of(op) if o.name not in WIDENING]
    if len(core) != 2 or (core[0].name, core[1].name) not in PRODUCTS:
        return False
    a, b, out = op.regions[0].blocks[0].arguments
    multiply, add = core

    def source(value: ir.Value) -> ir.Value:
        while (maker := defining_op(value)) is not None and maker.name in WIDENING:
            value = maker.operands[0]
        return value

    if {hash(source(v)) for v in multiply.operands} != {hash(a), hash(b)}:
        return False
    summed = list(add.operands)
    return out in summed and multiply.results[0] in summed and yield_of(op).operands[0] == add.results[0]


def is_projected_product(op: ir.Operation) -> bool:
    """Whether a contraction indexes both inputs and its output by plain loops (so: no convolution)."""
    return is_contraction(op) and all(m.is_projected_permutation for m in affine_maps(op))


def constant_fill(op: ir.Operation | None) -> ir.Operation | None:
    """The arith.constant that a generic fills its result with (as an accumulator's start), or None."""
    if op is None or op.name not in ("linalg.generic", "linalg.fill"):
        return None
    if op.name == "linalg.fill":
        maker = defining_op(op.operands[0])
    else:
        if len(op.operands) != 1 or len(op.results) != 1:
            return None
        maker = defining_op(yield_of(op).operands[0])
    return maker if maker is not None and maker.name == "arith.constant" else None


def fills_zero(op: ir.Operation | None) -> bool:
    """Whether a generic or fill fills its result with the number 0.0."""
    constant = constant_fill(op)
    return constant is not None and isinstance(value := constant.attributes["value"], ir.FloatAttr) and value.value == 0


def is_movement(op: ir.Operation | None) -> bool:
    """Whether a generic only moves or widens one input: yields it, perhaps through one widening cast, by plain maps."""
    if op is None or not is_generic(op) or len(op.operands) != 2 or len(op.results) != 1:
        return False
    if any(kind != "parallel" for kind in iterator_kinds(op)):
        return False
    maps = affine_maps(op)
    if not all(m.is_projected_permutation for m in maps) or not maps[1].is_permutation:
        return False
    body = body_of(op)
    value = yield_of(op).operands[0]
    if body:
        if len(body) != 1 or body[0].name not in WIDENING or value != body[0].results[0]:
            return False
        value = body[0].operands[0]
    return value == op.regions[0].blocks[0].arguments[0]
