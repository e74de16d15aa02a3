"""Who reads tensors that `tensor.concat` joins, and what they are joined of."""

import math
from collections.abc import Collection

from torch_mlir import ir

from .access import affine_maps, iterator_kinds, shape_of
from .deep import postorder
from .iteration import is_reshape
from .products import defining_op, is_contraction, is_generic

MOST_PANELS = 16
"""Panels of a joined tensor: a thread that makes a vector of each has code for all of them."""


def read_beside_products(value: ir.Value) -> bool:
    """Whether anybody but products reads a joined tensor, directly or as a part of another one."""

    def readers(op: ir.Operation | None) -> list[ir.Operation]:
        if op is not None and op.name != "tensor.concat":
            return []
        return [use.owner.operation for use in (value if op is None else op.results[0]).uses]

    reached = (op for op in postorder([None], readers) if op is not None)
    return any(op.name != "tensor.concat" and not is_contraction(op) for op in reached)


def panels_of(joined: ir.Value, inside: Collection[ir.Operation]) -> int:
    """Equal parts of the last dimension of a joined tensor, none of which reaches over a seam; 1 where there is no seam.

    Seams count also where what is joined is joined itself, or made of joined tensors element by element.

    Args:
        inside: the operations that are looked at (those of a stage).
    """
    if not shape_of(joined):
        return 1
    width = shape_of(joined)[-1]
    seams: set[int] = set()
    seen: set[tuple[ir.Value, int]] = set()
    pending = [(joined, 0)]
    while pending:
        value, start = pending.pop()
        op = defining_op(value)
        if op is None or op not in inside or (value, start) in seen:
            continue
        seen.add((value, start))
        extent = shape_of(value)[-1]
        if op.name == "tensor.concat":
            if ir.IntegerAttr(op.attributes["dim"]).value != len(shape_of(value)) - 1:
                return 1
            for operand in op.operands:
                seams.add(start)
                pending.append((operand, start))
                start += shape_of(operand)[-1]
        elif is_reshape(op):
            if shape_of(op.operands[0])[-1:] == [extent]:
                pending.append((op.operands[0], start))
        elif is_generic(op) and "reduction" not in iterator_kinds(op):
            *reads, made = affine_maps(op)
            pending += [
                (operand, start)
                for operand, map_ in zip(op.operands, reads, strict=False)
                if map_.results and map_.results[-1] == made.results[-1] and shape_of(operand)[-1] == extent
            ]
    panels = width // math.gcd(width, *seams) if seams else 1
    return panels if panels <= MOST_PANELS else 1
