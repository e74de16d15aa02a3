"""Windows over a tensor that end before the tensor does, along a dimension of the result of extent 1.

Upstream's folding of unit dimensions makes such a window's index (`d3 + d0 * 2`, where d0 is 0) a plain loop, whose extent must
be the tensor's: `x.unfold(0, 2, 2)` of three rows would no longer be a valid op. So the rest is cut off before.
"""

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import access_of, affine_maps, is_tensor, shape_of, terms_of
from kitsune_mlir.dialects.verify import walk


def cut_unread_edges(module: ir.Operation) -> None:
    """Let generic ops read only the leading part of an operand that their windows reach."""
    for op in [op for op in walk(module) if op.name == "linalg.generic"]:
        access = access_of(op)
        if access is None or 1 not in access.sizes:
            continue
        maps = affine_maps(op)
        for n in range(len(op.operands) - len(op.results)):
            value = op.operands[n]
            if not is_tensor(value):
                continue
            shape = shape_of(value)
            reached = [_reached(expr, size, access.sizes) for expr, size in zip(maps[n].results, shape, strict=True)]
            if reached != shape:
                type_ = ir.RankedTensorType.get(reached, ir.ShapedType(value.type).element_type)
                rank = range(len(shape))
                with ir.InsertionPoint(op), op.location:
                    part = tensor.ExtractSliceOp(type_, value, [], [], [], [0 for _ in rank], reached, [1 for _ in rank])
                op.operands[n] = part.result


def _reached(expr: ir.AffineExpr, extent: int, sizes: tuple[int, ...]) -> int:
    """How much of a dimension a window reads, where one of its loops has one step; else all of it."""
    terms = terms_of(expr)
    if terms is None or len(terms) < 2 or all(sizes[loop] != 1 for loop in terms):
        return extent
    return min(extent, 1 + sum(step * (sizes[loop] - 1) for loop, step in terms.items()))
