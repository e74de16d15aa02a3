"""Settles the types in which element-wise bodies compute.

torch-mlir writes the body of a bf16 operator in bf16 arithmetic, rounding at each step, and Python's numbers as f64
constants cast at run time. Here each body computes in f32 and rounds once where it stores, as torch's kernels do, and
the f64 is gone unless the model itself is in f64. The larger of two numbers, which arrives as a comparison and a choice,
becomes `arith.maximumf`, and a power of a large whole exponent `math.powf`.
"""

from __future__ import annotations

from torch_mlir import ir

__all__ = ["settle_numerics"]

# arith::CmpFPredicate: ordered or not.
_GREATER = {2, 3, 9, 10}
_LESS = {4, 5, 11, 12}

MOST_FACTORS = 4
"""Exponents up to which powers are products."""

# Exact in a narrow type: they only move or choose values.
_MOVES = {"arith.select", "arith.constant", "arith.extf", "arith.truncf", "arith.bitcast"}


def settle_numerics(block: ir.Block) -> None:
    """Rewrites the operations of `block` (linalg on tensors), and of the regions inside them, in place."""
    for op in list(block.operations):
        _fold_double(op.operation)
    for op in list(block.operations):
        if op.operation.name == "linalg.generic":
            body = op.operation.regions[0].blocks[0]
            _name_extremes(body)
            _widen(body)
            _name_powers(body)
        for region in op.operation.regions:
            for inner in region.blocks:
                settle_numerics(inner)


def _is(value_type: ir.Type, *kinds: type) -> bool:
    return isinstance(value_type, kinds)


def _narrow(value_type: ir.Type) -> bool:
    return _is(value_type, ir.BF16Type, ir.F16Type)


def _constant(value: ir.Value) -> float | None:
    """The number of a scalar floating-point `arith.constant`."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    attribute = owner.attributes["value"]
    return attribute.value if isinstance(attribute, ir.FloatAttr) else None


def _name_powers(block: ir.Block) -> None:
    """Makes powers of constant whole exponents `math.powf` but for small ones: products round once more with each factor."""
    for op in [o.operation for o in block.operations if o.operation.name == "math.fpowi"]:
        owner = op.operands[1].owner
        if isinstance(owner, ir.Block) or owner.name != "arith.constant":
            continue
        exponent = ir.IntegerAttr(owner.attributes["value"]).value
        if abs(exponent) > MOST_FACTORS:
            by = _new_constant(float(exponent), op.operands[0].type, op)
            with ir.InsertionPoint(op):
                new = ir.Operation.create("math.powf", results=[op.result.type], operands=[op.operands[0], by], loc=op.location)
            op.result.replace_all_uses_with(new.result)
            op.erase()


def _new_constant(value: float, kind: ir.Type, before: ir.Operation) -> ir.Value:
    attribute = ir.FloatAttr.get(kind, value)
    with ir.InsertionPoint(before):
        return ir.Operation.create(
            "arith.constant", results=[kind], attributes={"value": attribute}, loc=before.location
        ).result


def _fold_double(op: ir.Operation) -> None:
    """`truncf(f64 constant)` is a constant; a comparison of `extf(x)` with an f64 constant is one in x's type."""
    if op.name == "arith.truncf" and _is(op.operands[0].type, ir.F64Type):
        number = _constant(op.operands[0])
        if number is not None:
            op.results[0].replace_all_uses_with(_new_constant(number, op.results[0].type, op))
            op.erase()
    elif op.name == "arith.cmpf" and _is(op.operands[0].type, ir.F64Type):
        narrow = [_before_extension(v) for v in op.operands]
        kinds = [v.type for v in narrow if v is not None]
        numbers = [_constant(v) for v in op.operands]
        if len(kinds) == 1 and sum(n is not None for n in numbers) == 1:
            # torch rounds the number to the tensor's type before it compares.
            for place, (value, number) in enumerate(zip(narrow, numbers, strict=True)):
                if value is not None:
                    op.operands[place] = value
                elif number is not None:
                    op.operands[place] = _new_constant(number, kinds[0], op)


def _before_extension(value: ir.Value) -> ir.Value | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.extf":
        return None
    return owner.operands[0]


def _name_extremes(block: ir.Block) -> None:
    """A choice between two numbers by which is the larger one is `maximumf` or `minimumf`, which give NaN where one is NaN.

    So do all of torch's operators that arrive as a comparison and a choice in one body: `maximum`, `minimum`, `clamp`, `relu`,
    `threshold`. (What a model compares and chooses itself are two bodies.)
    """
    for op in [o.operation for o in block.operations if o.operation.name == "arith.select"]:
        condition, chosen, other = op.operands
        test = condition.owner
        if isinstance(test, ir.Block) or test.name != "arith.cmpf" or len(list(condition.uses)) > 1:
            continue
        larger = ir.IntegerAttr(test.attributes["predicate"]).value in _GREATER
        smaller = ir.IntegerAttr(test.attributes["predicate"]).value in _LESS
        operands = list(test.operands)
        if not (larger or smaller) or operands not in ([chosen, other], [other, chosen]):
            continue
        name = "arith.maximumf" if larger == (operands[0] == chosen) else "arith.minimumf"
        with ir.InsertionPoint(op):
            new = ir.Operation.create(name, results=[other.type], operands=operands, loc=op.location)
        op.results[0].replace_all_uses_with(new.result)
        op.erase()
        test.erase()


def _widen(block: ir.Block) -> None:
    """Makes the narrow arithmetic of one body f32 arithmetic, and drops roundings between its steps."""
    wide: dict[ir.Value, ir.Value] = {}  # narrow value → the f32 value that it was rounded from

    f32 = ir.F32Type.get()

    def widened(value: ir.Value, before: ir.Operation) -> ir.Value:
        if not _narrow(value.type):
            return value
        if value not in wide:
            number = _constant(value)
            if number is not None:
                wide[value] = _new_constant(number, f32, before)
            else:
                with ir.InsertionPoint(before):
                    wide[value] = ir.Operation.create("arith.extf", results=[f32], operands=[value], loc=before.location).result
        return wide[value]

    for op in [o.operation for o in block.operations]:
        values = [*op.operands, *op.results]
        if not op.name.startswith(("arith.", "math.")) or not any(_narrow(v.type) for v in values):
            continue
        if op.name == "arith.truncf":
            if _is(op.operands[0].type, ir.F32Type):
                wide[op.results[0]] = op.operands[0]
            continue
        if op.name == "arith.extf" and op.operands[0] in wide and _is(op.results[0].type, ir.F32Type):
            op.results[0].replace_all_uses_with(wide[op.operands[0]])
            op.erase()
            continue
        if op.name in _MOVES and not any(v in wide and _constant(v) is None for v in op.operands):
            continue
        operands = [widened(v, op) for v in op.operands]
        kinds = [f32 if _narrow(r.type) else r.type for r in op.results]
        attributes = {name: op.attributes[name] for name in op.attributes}
        with ir.InsertionPoint(op):
            new = ir.Operation.create(op.name, results=kinds, operands=operands, attributes=attributes, loc=op.location)
            for old, result in zip(op.results, new.results, strict=True):
                if _narrow(old.type):
                    rounded = ir.Operation.create("arith.truncf", results=[old.type], operands=[result], loc=op.location).result
                    old.replace_all_uses_with(rounded)
                    wide[rounded] = result
                else:
                    old.replace_all_uses_with(result)
        op.erase()
