"""What a stage of products or sums would store, and others can make of 16-bit values that are stored anyway, is made by these.

A normalisation computes in f32 what its gradient reads again: rows that are centered, and scaled. They are twice the bytes of
the rows that they are made of, which a stage reads as fast; a row's mean and scale are sums of what it reads anyway. A gradient
makes them of what the forward pass has saved, and the sums for the weight read them again (a mesh network's: 61 of 195 MB of
its backward program's arena). GELU's gradient reads a hyperbolic tangent, that plus one, and half of the input beside the input
itself: four matrices of 16-bit numbers, of which one is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.dialects.access import is_tensor, iterator_kinds, shape_of
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.iteration import is_free
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.sizes import HALF_TYPES, tensor_bytes
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.remarks import remark

from .grouping import Grouping

__all__ = ["remake_results"]

MOST_OPS = 8
"""That make a result of what is stored."""
MOST_WORK = 24
"""Operations in their bodies."""
MOST_OF_HALVES = 64
"""The same for 16-bit results: to write and read 2 bytes takes as long as 30 operations, of which half convert."""
NARROW = 16
"""Times smaller than a result is what is stored beside it: a number a row."""


@dataclass(frozen=True)
class Recipe:
    """How a value is made: ops in order, and the tensors that they read."""

    ops: tuple[ir.Operation, ...]
    leaves: frozenset[ir.Value]


def remake_results(grouping: Grouping) -> None:
    """Clone what makes such results into the groups that read them, in place: groups stay what they are."""
    for g in list(grouping.members):
        if any(map(_sums, grouping.members.get(g, ()))):
            _remake(grouping, g)


def _sums(op: ir.Operation) -> bool:
    return is_contraction(op) or (is_generic(op) and "reduction" in iterator_kinds(op))


def _remake(grouping: Grouping, g: int) -> None:
    group = grouping.members[g]
    inside = {hash(op) for op in group}
    stored = set(grouping.outputs(group))
    others = [value for value in stored if not any(map(_takes_from_memory, _users(value, inside)))]
    found = {value: recipe for value in others if (recipe := _recipe(grouping, value, inside)) is not None}
    if any(map(is_contraction, group)):
        _add_halves(grouping, stored, inside, found)
    made = {leaf for recipe in found.values() for leaf in recipe.leaves if _inside(leaf, inside) and leaf not in stored}
    if not found or sum(tensor_bytes(leaf.type) for leaf in made) >= sum(tensor_bytes(value.type) for value in found):
        return
    readers = sorted({r for value in found for r in _readers(grouping, value, g)})
    grouping.adopt({r: _cloned(grouping, r, found) for r in readers})
    remark(group[-1], f"{len(found)} of its results are made again where they are read")
    grouping.forget(g)


def _inside(value: ir.Value, inside: set[int]) -> bool:
    maker = defining_op(value)
    return maker is not None and hash(maker) in inside


def _readers(grouping: Grouping, value: ir.Value, g: int) -> set[int]:
    return {grouping.group_of[hash(use.owner.operation)] for use in value.uses} - {g}


def _users(value: ir.Value, inside: set[int]) -> list[ir.Operation]:
    """The ops of other groups that read a value. Products take operands from memory (those of f32 from nowhere else)."""
    return [use.owner.operation for use in value.uses if hash(use.owner.operation) not in inside]


def _takes_from_memory(user: ir.Operation) -> bool:
    """Whether an operation wants what it reads in memory: products their operands, scatters and sorts what they work on."""
    return is_contraction(user) or not (is_generic(user) or is_free(user))


def _add_halves(grouping: Grouping, stored: set[ir.Value], inside: set[int], found: dict[ir.Value, Recipe]) -> None:
    """Find 16-bit results, too, that are made of others which stay stored, or are for the results that were found."""
    kept = {leaf for recipe in found.values() for leaf in recipe.leaves}
    for value in sorted(stored - {*found}, key=lambda value: grouping.order[hash(defining_op(value))]):
        recipe = None if _multiplied(grouping, value, inside) else _recipe(grouping, value, inside, kept)
        if recipe is None:
            kept.add(value)
        else:
            found[value] = recipe


def _multiplied(grouping: Grouping, value: ir.Value, inside: set[int]) -> bool:
    """Whether a product reads a value as its operand, or one does that others are made in one stage with."""
    readers = _users(value, inside)
    groups = [grouping.members[grouping.group_of[hash(reader)]] for reader in readers if hash(reader) in grouping.group_of]
    return any(map(is_contraction, readers)) or any(sum(map(is_contraction, group)) > 1 for group in groups)


def _recipe(grouping: Grouping, value: ir.Value, inside: set[int], kept: Set[ir.Value] | None = None) -> Recipe | None:
    """What makes an f32 result of 16-bit tensors, or such as lie in memory; None where that is not so, or more work.

    Args:
        kept: results that stay stored: what makes a 16-bit result of these, and of what is much smaller, instead.
    """
    dtype = str(ir.ShapedType(value.type).element_type)
    if dtype not in (("f32",) if kept is None else HALF_TYPES) or value in grouping.returned or not shape_of(value):
        return None
    if any(hash(use.owner.operation) not in grouping.group_of for use in value.uses):
        return None
    ops: dict[ir.Operation, None] = {}
    leaves: set[ir.Value] = set()
    pending = [value]
    while pending:
        op = defining_op(pending.pop())
        if op is None or op in ops:
            continue
        if not is_generic(op) or set(iterator_kinds(op)) - {"parallel"} or NO_FUSION in op.attributes or len(op.results) != 1:
            return None
        if any(map(is_tensor, captures(op))) or any(name.startswith("kitsune.") for name in op.attributes):
            return None
        ops[op] = None
        for operand in op.operands:
            maker = defining_op(operand)
            if not is_tensor(operand) or (maker is not None and is_free(maker)):
                continue
            narrow = NARROW * tensor_bytes(operand.type) <= tensor_bytes(value.type)
            if kept is not None:
                if not (narrow or operand in kept or _inside(operand, inside)):
                    return None
                if narrow or operand in kept:
                    leaves.add(operand)
                else:
                    pending.append(operand)
            elif not _inside(operand, inside) or narrow or str(ir.ShapedType(operand.type).element_type) in HALF_TYPES:
                leaves.add(operand)
            else:
                pending.append(operand)
    work, most = sum(len(body_of(op)) for op in ops), MOST_WORK if kept is None else MOST_OF_HALVES
    if len(ops) > MOST_OPS or work > most or not leaves:
        return None
    there = not any(_inside(leaf, inside) for leaf in leaves)
    if there and (kept is not None or any(_is_wide(leaf, value) for leaf in leaves)):
        return None
    return Recipe(tuple(sorted(ops, key=lambda op: grouping.order[hash(op)])), frozenset(leaves))


def _is_wide(leaf: ir.Value, value: ir.Value) -> bool:
    """Whether what a value is made of is as many bytes to read: neither of 16 bits, nor a number a row."""
    return 2 * NARROW * tensor_bytes(leaf.type) > (NARROW + 2) * tensor_bytes(value.type)


def _cloned(grouping: Grouping, r: int, found: Mapping[ir.Value, Recipe]) -> list[ir.Operation]:
    """Let group r make the values that it reads of these; the ops that do."""
    users = {hash(op): op for op in grouping.members[r]}
    read = [(value, use.owner.operation, use.operand_number) for value in found for use in value.uses]
    read = [one for one in read if hash(one[1]) in users]
    if not read:
        return []
    first = min((user for _, user, _ in read), key=lambda op: grouping.order[hash(op)])
    ops = {op: None for value, *_ in read for op in found[value].ops}
    mapping: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(first):
        copies = [clone_with(op, mapping) for op in sorted(ops, key=lambda op: grouping.order[hash(op)])]
    for value, user, number in read:
        user.operands[number] = mapping[value]
    return copies
