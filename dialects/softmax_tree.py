"""Taking the tree of softmax weights apart: scale, masks and biases of the scores, and how rows without any key end."""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from .factors import Flat
from .scalar_tree import Tree, contains

__all__ = ["NoAttention", "Step", "read_softmax", "require", "unrounded"]

_FLIPPED = {0: 1, 1: 0, 2: 5, 3: 4, 4: 3, 5: 2, 6: 9, 7: 8, 8: 7, 9: 6}  # predicate of arith.cmpi -> its opposite
_LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL = (2, 6), (3, 7), (4, 8), (5, 9)
_SAME_NUMBER = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_ROUNDING = ("arith.truncf", "arith.extf")


class NoAttention(Exception):
    """A product is not the second one of an attention; the text is the reason."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One change to the scaled scores.

    Attributes:
        kind: "bias": add `tree`. "keep": where the condition `tree` is false, the score becomes `number`. "causal": where the
            column is above row + offset it becomes `number`.
        tree: see kind; for "causal" the condition in full.
        number: see kind.
        row: "causal": the factors of the row's index.
        terms: "causal": index values (and their factors) whose sum, with `constant`, is the offset.
        constant: see terms.
    """

    kind: str
    tree: Tree
    number: float = 0.0
    row: Flat = ()
    terms: tuple[tuple[ir.Value, int], ...] = ()
    constant: int = 0


def require(condition: bool, reason: str) -> None:
    """Raise `NoAttention` unless the condition holds."""
    if not condition:
        raise NoAttention(reason)


def unrounded(tree: Tree) -> Tree:
    while tree[0] == "op" and tree[1] in _ROUNDING:
        tree = tree[4]
    return tree


def _plain(tree: Tree) -> Tree:
    """A tree without roundings between f32 and narrower types of what depends on the scores."""
    tree = unrounded(tree) if contains(tree, "hole") else tree
    if tree[0] == "op":
        return (*tree[:4], *(_plain(child) for child in tree[4:]))
    if tree[0] in ("max", "sum"):
        return (*tree[:2], _plain(tree[2]))
    return tree


def read_softmax(weights: Tree, column: Flat) -> tuple[float, tuple[Step, ...], bool]:
    """Scale, steps and guard of p = exp(x - max x) / sum."""
    weights = _plain(weights)
    require(_is(weights, "arith.divf"), "the weights are no quotient")
    numerator, total = weights[4], weights[5]
    total, guarded_sum = _unguarded(total, 0.0, 1.0)
    require(total == ("sum", column, numerator), "the divisor is not the sum of the exponentials")
    require(_is(numerator, "math.exp") and _is(numerator[4], "arith.subf"), "no exponential of a difference")
    scores, top = numerator[4][4], numerator[4][5]
    top, guarded_max = _unguarded(top, -math.inf, 0.0)
    require(top == ("max", column, scores), "what is subtracted is not the maximum")
    require(guarded_max == guarded_sum, "only one of maximum and sum is guarded")
    scale, steps = _scores(scores, column)
    return scale, tuple(steps), guarded_max


def _is(tree: Tree, name: str) -> bool:
    return tree[0] == "op" and tree[1] == name


def _unguarded(tree: Tree, found: float, instead: float) -> tuple[Tree, bool]:
    """`select(x == found, instead, x)` as (x, True); anything else as (tree, False)."""
    if _is(tree, "arith.select") and _is(tree[4], "arith.cmpf") and tree[5][:2] == ("const", instead):
        compared = tree[4][4:]
        if tree[6] in compared and any(side[:2] == ("const", found) for side in compared):
            return tree[6], True
    return tree, False


def _scores(tree: Tree, column: Flat) -> tuple[float, list[Step]]:
    if tree == ("hole", "score"):
        return 1.0, []
    require(tree[0] == "op" and contains(tree, "hole"), "the scores are not computed from the product")
    name, operands = tree[1], tree[4:]
    if name == "arith.select":
        return _masked(tree, column)
    inner = next(operand for operand in operands if contains(operand, "hole"))
    others = [operand for operand in operands if operand is not inner]
    require(not any(contains(other, "hole") for other in others) and len(others) == 1, f"'{name}' of scores")
    scale, steps = _scores(inner, column)
    other, first = others[0], operands[0] is inner
    if name in ("arith.mulf", "arith.divf") and other[0] == "const" and (first or name == "arith.mulf"):
        require(not steps, "scores are scaled after they were masked")
        factor = float(other[1])
        require(factor != 0, "a scale of 0")
        return scale * (factor if name == "arith.mulf" else 1 / factor), steps
    require(name == "arith.addf", f"'{name}' of scores")
    return scale, [*steps, Step("bias", other)]


def _masked(tree: Tree, column: Flat) -> tuple[float, list[Step]]:
    condition, yes, no = tree[4:]
    require(not contains(condition, "hole"), "a mask that depends on the scores")
    if contains(no, "hole"):
        condition, yes, no = _opposite(condition), no, yes
    require(no[0] == "const", "masked scores become no constant")
    scale, steps = _scores(yes, column)
    for part in _conjuncts(condition):
        steps.append(_causal(part, float(no[1]), column) or Step("keep", part, float(no[1])))
    return scale, steps


def _opposite(condition: Tree) -> Tree:
    if _is(condition, "arith.cmpi"):
        return (*condition[:2], f"{_FLIPPED[_predicate(condition)]} : i64", *condition[3:])
    return ("op", "arith.xori", "", "i1", condition, ("const", -1, "i1"))


def _conjuncts(condition: Tree) -> list[Tree]:
    if _is(condition, "arith.andi"):
        return [part for operand in condition[4:] for part in _conjuncts(operand)]
    return [condition]


def _predicate(condition: Tree) -> int:
    return int(condition[2].split()[0])


def _causal(condition: Tree, number: float, column: Flat) -> Step | None:
    """`column <= row + offset` as a step, or None."""
    if not _is(condition, "arith.cmpi") or number != -math.inf:
        return None
    predicate = _predicate(condition)
    left, right = (_linear(operand) for operand in condition[4:])
    if left is None or right is None:
        return None
    if predicate in (*_GREATER, *_GREATER_EQUAL):
        left, right = right, left
    elif predicate not in (*_LESS, *_LESS_EQUAL):
        return None
    strict = predicate in (*_LESS, *_GREATER)
    # left - right <= 0, or <= -1 if strict; the column must be on the left with factor 1, one row on the right.
    difference = {key: left.get(key, 0) - right.get(key, 0) for key in {**left, **right}}
    constant = difference.pop(None, 0) + strict
    indices = {key[1]: factor for key, factor in difference.items() if key[0] == "index" and factor}
    if indices.pop(column, 0) != 1 or len(indices) > 1 or any(factor != -1 for factor in indices.values()):
        return None
    terms = tuple((key[1], -factor) for key, factor in difference.items() if key[0] == "outside" and factor)
    return Step("causal", condition, number, next(iter(indices), ()), terms, -constant)


def _linear(tree: Tree) -> dict | None:
    """An integer tree as a sum: {node: factor}, the constant under None."""
    if tree[0] == "const":
        return {None: int(tree[1])}
    if tree[0] == "index":
        return {("index", tree[1]): 1} if tree[1] else {}
    if tree[0] == "outside":
        return {tree: 1}
    if tree[0] != "op":
        return None
    if tree[1] in _SAME_NUMBER:
        return _linear(tree[4])
    if tree[1] not in ("arith.addi", "arith.subi"):
        return None
    a, b = _linear(tree[4]), _linear(tree[5])
    if a is None or b is None:
        return None
    sign = 1 if tree[1] == "arith.addi" else -1
    return {key: a.get(key, 0) + sign * b.get(key, 0) for key in {**a, **b}}
