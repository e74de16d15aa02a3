"""Cheap maps are computed by each stage that reads them, where that reads no more bytes than what the map would store.

A normalisation of rows that are too wide for a stage centers them, squares what is centered, sums, and scales it: `x - mean` is
read by two stages. Stored, it is one more stage, and twice its bytes; computed again it is one subtraction more
(FusionStitching, 1911.11576, section 3: recomputation where it costs less than a hand-off).
"""

import math

from torch_mlir import ir

from kitsune_mlir.dialects.access import access_of, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.remarks import remark

from .cheap_maps import reads_as_much
from .grouping import Grouping

__all__ = ["make_where_read"]

MOST_READERS = 4


def make_where_read(grouping: Grouping) -> bool:
    """Clone groups that are such maps for each group that reads them; whether there is any.

    Each reader has to be without products, to read the map's result as it is (no view), and each element once.
    """
    found = False
    for members in list(grouping.members.values()):
        if reads_as_much(members):
            found |= _clone(grouping, members)
    return found


def _clone(grouping: Grouping, members: list[ir.Operation]) -> bool:
    made = {result for op in members for result in op.results}
    (value,) = [v for v in made if any(use.owner.operation not in members for use in v.uses)]
    users = list({hash(use.owner.operation): use.owner.operation for use in value.uses}.values())
    groups = {grouping.group_of.get(hash(user)) for user in users}
    if value in grouping.returned or None in groups or not 2 <= len(groups) <= MOST_READERS:
        return False
    readers = [member for g in groups if g is not None for member in grouping.members[g]]
    if any(is_contraction(op) or not is_generic(op) or NO_FUSION in op.attributes for op in readers):
        return False
    if not all(_reads_once(user, value) for user in users):
        return False
    if any((maker := defining_op(root_of(v))) is not None and maker in readers for op in members for v in op.operands):
        return False  # a reader would wait for itself
    inside_of: dict[int, list[ir.Operation]] = {}
    for user in users:  # before any of them reads a copy: hashes are of operands, too
        inside_of.setdefault(grouping.group_of[hash(user)], []).append(user)
    for _, inside in sorted(inside_of.items())[1:]:
        first = min(inside, key=lambda op: grouping.order[hash(op)])
        mapping: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint(first):
            for op in members:
                copy = op.clone().operation
                for n, operand in enumerate(copy.operands):
                    copy.operands[n] = mapping.get(operand, operand)
                mapping[op.results[0]] = copy.results[0]
        for user in inside:
            for n, operand in enumerate(user.operands):
                user.operands[n] = mapping[value] if operand == value else operand
    remark(members[-1], f"computed by each of {len(groups)} stages that read it")
    return True


def _reads_once(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an op reads each element of a tensor for one point of its loops."""
    access = access_of(op) if is_generic(op) else None
    return access is not None and math.prod(access.sizes) == math.prod(shape_of(value)) and value not in captures(op)
