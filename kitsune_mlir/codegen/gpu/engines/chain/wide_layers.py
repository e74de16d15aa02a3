"""Chains of layers wider than a warpgroup's accumulators: what the `chain` engine takes of them.

`codegen/gpu/engines/chain/wide/plan.py` has the engine's side. A layer's results wait in registers as 16-bit numbers, and what
it reads lies in shared memory until all parts of its columns are multiplied. So from one layer to the next passes one tensor,
and only the first layer reads memory.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.contraction import subscripts
from kitsune_mlir.dialects.iteration import Space, is_free
from kitsune_mlir.dialects.joined import read_beside_products
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.sizes import HALF_TYPES

MOST_COLUMNS = 512
COLUMN_UNIT = 32  # the four lanes of a row have 8 columns each
DEPTH_UNIT = 64  # columns of a panel of rows


def wide_reason(space: Space) -> str | None:
    """Why a row-local group whose layers are wide is none that the engine takes; None if it is one."""
    ops = [op for op in space.ops if any(is_tensor(r) for r in op.results) and op.name != "tensor.empty"]
    inside = {result: op for op in ops for result in op.results}
    layers = [op for op in ops if is_contraction(op)]
    times: dict[ir.Value, int] = {}
    for op in ops:
        known = [times.get(v, -1) for v in op.operands]
        time = layers.index(op) if op in layers else max(known, default=-1)
        times.update(dict.fromkeys(op.results, time))
    if any(op.name == "tensor.concat" and read_beside_products(op.results[0]) for op in ops):
        return "element-wise work on joined tensors in a wide chain"
    for number, op in enumerate(layers):
        reason = _layer_reason(op, number, inside, times)
        if reason is None:
            reason = _sums_reason(op.results[0], number, number == len(layers) - 1, inside, times)
        if reason is not None:
            return reason
    for value, op in inside.items():
        if len(shape_of(value)) != 2 or times[value] < 0 or is_free(op):
            continue
        later = {user for user in _users(value, inside) if max(times[r] for r in user.results) > times[value]}
        if any(user not in layers or layers.index(user) != times[value] + 1 for user in later):
            return "a tensor of a wide layer is used after the next layer"
    return None


def _users(value: ir.Value, inside: dict[ir.Value, ir.Operation]) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses if any(r in inside for r in use.owner.operation.results)]


def _layer_reason(
    op: ir.Operation, number: int, inside: dict[ir.Value, ir.Operation], times: dict[ir.Value, int]
) -> str | None:
    if not subscripts(op).startswith("mk,nk->") or len(shape_of(op.results[0])) != 2:
        return "a wide layer multiplies rows by a weight of columns x sums"
    columns, depth = shape_of(op.operands[1])
    if columns % COLUMN_UNIT or columns > MOST_COLUMNS:
        return f"a layer of {columns} columns; wide chains have multiples of {COLUMN_UNIT} up to {MOST_COLUMNS}"
    weight = defining_op(op.operands[1])
    if weight is not None and (weight.name != "tensor.extract_slice" or defining_op(weight.operands[0]) is not None):
        return "a wide layer's weight is an argument of the program"
    if weight is not None and shape_of(weight.operands[0])[0] != columns:
        return "a wide layer's weight has all columns of its tensor"
    factor = op.operands[0]
    maker = inside.get(factor)
    if number:
        if maker is None or times[factor] != number - 1 or maker.name == "tensor.concat":
            return "after a wide chain's first layer, each reads what the one before made"
        return None
    parts = list(maker.operands) if maker is not None and maker.name == "tensor.concat" else [factor]
    if any(part in inside for part in parts) or any(shape_of(part)[1] % DEPTH_UNIT for part in parts):
        return f"the first layer of a wide chain reads tensors in memory, of multiples of {DEPTH_UNIT} columns"
    return None if depth % DEPTH_UNIT == 0 else f"a sum over {depth} columns"


def _sums_reason(
    sums: ir.Value, number: int, last: bool, inside: dict[ir.Value, ir.Operation], times: dict[ir.Value, int]
) -> str | None:
    """Sums must become one 16-bit tensor by element-wise ops; those that round the `last` layer's may be joined later."""
    pending, short = [sums], set()
    while pending:
        value = pending.pop()
        if any(not any(r in inside for r in use.owner.operation.results) for use in value.uses):
            return None if last else "f32 sums of a wide layer leave the stage"
        for user in _users(value, inside):
            if not is_generic(user) or any(kind != "parallel" for kind in iterator_kinds(user)):
                return "f32 sums of a wide layer are read by more than element-wise ops"
            for result in user.results:
                if len(shape_of(result)) != 2 or times[result] != number:
                    return "f32 sums of a wide layer are combined with another layer's"
                if str(ir.ShapedType(result.type).element_type) in HALF_TYPES:
                    short.add(result)
                else:
                    pending.append(result)
    return None if len(short) == 1 else f"a wide layer's sums become {len(short)} tensors"
