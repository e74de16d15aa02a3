"""Taking the tree of softmax weights apart: scale, masks and biases of the scores, and how rows without any key end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from torch_mlir import ir

from .deep import postorder
from .factors import Flat
from .match_failure import require
from .scalar_tree import Tree, children

__all__ = ["Dropout", "Exponential", "Step", "alike", "read_gradient", "read_softmax", "unrounded"]

_FLIPPED = {0: 1, 1: 0, 2: 5, 3: 4, 4: 3, 5: 2, 6: 9, 7: 8, 8: 7, 9: 6}  # predicate of arith.cmpi -> its opposite
_LESS, _LESS_EQUAL, _GREATER, _GREATER_EQUAL = (2, 6), (3, 7), (4, 8), (5, 9)
_SAME_NUMBER = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_ROUNDING = ("arith.truncf", "arith.extf")


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
        loads: "causal": integers that are read, the same for all rows and columns, and their factors, which are added too.
    """

    kind: str
    tree: Tree
    number: float = 0.0
    row: Flat = ()
    terms: tuple[tuple[ir.Value, int], ...] = ()
    constant: int = 0
    loads: tuple[tuple[Tree, int], ...] = ()

    @property
    def as_mask(self) -> Step:
        """The same, of kind "keep" where it is "causal"."""
        return self if self.kind != "causal" else Step("keep", self.tree, self.number)


@dataclasses.dataclass(frozen=True)
class Dropout:
    """What becomes of probabilities: where the condition `tree` is false 0, elsewhere `factor` times as much."""

    tree: Tree
    factor: float


def unrounded(tree: Tree) -> Tree:
    while tree[0] == "op" and tree[1] in _ROUNDING:
        tree = tree[4]
    return tree


class _Plain:
    """A tree without roundings between f32 and narrower types of what depends on the scores.

    Attributes:
        root: the tree. Equal nodes of it are one object, so that they are compared by identity, however deep they are.
    """

    def __init__(self, tree: Tree):
        self._made: dict[tuple, Tree] = {}
        self._scored: set[int] = set()
        plain: dict[int, Tree] = {}
        for node in postorder([tree], children, id):
            below = [plain[id(child)] for child in children(node)]
            scored = node[0] == "hole" or any(self.is_scored(child) for child in below)
            if scored and node[0] == "op" and node[1] in _ROUNDING:
                plain[id(node)] = below[0]
                continue
            own = node[: len(node) - len(below)]
            # By their text: 0.0 and -0.0 are equal, a NaN is not.
            numbers = tuple(repr(part) if isinstance(part, float | int) else part for part in own)
            made = self._made.setdefault((*numbers, *map(id, below)), (*own, *below))
            plain[id(node)] = made
            if scored:
                self._scored.add(id(made))
        self.root = plain[id(tree)]

    def is_scored(self, tree: Tree) -> bool:
        """Whether a node depends on the scores."""
        return id(tree) in self._scored


def alike(one: Tree, other: Tree, same: Callable[[ir.Value, ir.Value], bool]) -> bool:
    """Whether two trees are equal; there may be many ways through what is shared.

    Args:
        same: whether two tensors hold the same.
    """
    pending, seen = [(one, other)], set()
    while pending:
        a, b = pending.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        below = children(a), children(b)
        own = [node[: len(node) - len(under)] for node, under in zip((a, b), below, strict=True)]
        loads = a[0] == b[0] == "load" and a[2] == b[2] and same(a[1], b[1])
        if len(below[0]) != len(below[1]) or not (own[0] == own[1] or loads):
            return False
        pending += zip(*below, strict=True)
    return True


def read_softmax(
    weights: Tree, column: Flat, others: Sequence[Tree] = ()
) -> tuple[float, tuple[Step, ...], bool, list[bool], Dropout | None]:
    """Scale, steps and guard of p = exp(x - max x) / sum; which of some other trees are the logarithm of sum exp x; dropout."""
    plain = _Plain(("op", "", "", "", weights, *others))
    weights, *others = plain.root[4:]
    weights, dropout = _dropped(weights, plain)
    require(_is(weights, "arith.divf"), "the weights are no quotient")
    numerator, total = weights[4], weights[5]
    total, guarded_sum = _unguarded(total, 0.0, 1.0)
    require(total[:2] == ("sum", column) and total[2] is numerator, "the divisor is not the sum of the exponentials")
    require(_is(numerator, "math.exp") and _is(numerator[4], "arith.subf"), "no exponential of a difference")
    scores, top = numerator[4][4], numerator[4][5]
    top, guarded_max = _unguarded(top, -math.inf, 0.0)
    require(top[:2] == ("max", column) and top[2] is scores, "what is subtracted is not the maximum")
    require(guarded_max == guarded_sum, "only one of maximum and sum is guarded")
    scale, steps = _scores(scores, column, plain)
    return scale, tuple(steps), guarded_max, [_is_log_of_sum(other, scores, column) for other in others], dropout


def _dropped(tree: Tree, plain: _Plain) -> tuple[Tree, Dropout | None]:
    """`select(keep, c x, 0)`, where to keep does not depend on the scores, as x and what is done to it; others as they are."""
    if not _is(tree, "arith.select") or plain.is_scored(tree[4]) or not plain.is_scored(tree[5]):
        return tree, None
    if tree[6][0] != "const" or tree[6][1] != 0.0:
        return tree, None
    kept, factor = tree[5], 1.0
    if _is(kept, "arith.mulf") and (number := next((side for side in kept[4:] if side[0] == "const"), None)) is not None:
        kept, factor = kept[5] if number is kept[4] else kept[4], float(number[1])
    return kept, Dropout(tree[4], factor)


@dataclasses.dataclass(frozen=True)
class Exponential:
    """p = exp(x - log sum exp x), and what it is multiplied by.

    Attributes:
        scale, steps: what makes x of the scores.
        logarithm: what is read for log sum exp x; None where it is computed from the same scores.
        factor: a constant factor of p.
        mean: p is multiplied by the hole "slope" less this; None: it is not.
        dropout: what happens to the hole "slope", or where there is no mean to p.
    """

    scale: float
    steps: tuple[Step, ...]
    logarithm: Tree | None
    factor: float
    mean: Tree | None
    dropout: Dropout | None = None


def read_gradient(tree: Tree, column: Flat) -> Exponential:
    """A product of probabilities, made again from the hole "score", with constants and what the hole "slope" gives."""
    plain = _Plain(tree)
    root, dropout = _dropped(plain.root, plain)
    pending, factor = [root], 1.0
    exponentials: list[Tree] = []
    differences: list[Tree] = []
    while pending:
        term = pending.pop()
        if _is(term, "arith.mulf"):
            pending += term[4:]
        elif term[0] == "const":
            factor *= float(term[1])
        else:
            (exponentials if _is(term, "math.exp") else differences).append(term)
    require(len(exponentials) == 1 and len(differences) <= 1, "no product of one exponential and one difference")
    exponent, mean = exponentials[0][4], None
    for difference in differences:
        require(_is(difference, "arith.subf") and dropout is None, "what the weights are multiplied by is no difference")
        slope, dropout = _dropped(difference[4], plain)
        known = slope == ("hole", "slope") and difference[5][0] == "load"
        require(known, "what the weights are multiplied by is no difference")
        mean = difference[5]
    require(_is(exponent, "arith.subf"), "no exponential of a difference")
    scores, logarithm = exponent[4:]
    own = _is_log_of_sum(logarithm, scores, column)
    require(own or logarithm[0] == "load", "what is subtracted is not the logarithm of the sum")
    scale, steps = _scores(scores, column, plain)
    steps = [step.as_mask if step.loads else step for step in steps]  # gradients know of limits that need not be read
    return Exponential(scale, tuple(steps), None if own else logarithm, factor, mean, dropout)


def _is_log_of_sum(tree: Tree, scores: Tree, column: Flat) -> bool:
    """Whether a tree is max x + log(sum exp(x - max x)), perhaps infinity where that sum is 0, of x = `scores`."""
    empty = None
    if _is(tree, "arith.select") and _is(tree[4], "arith.cmpf") and tree[5][:2] == ("const", math.inf):
        empty, tree = tree[4][4:], tree[6]
    if not _is(tree, "arith.addf"):
        return False
    logarithm, top = tree[4:] if _is(tree[4], "math.log") else tree[:3:-1]
    if not _is(logarithm, "math.log"):
        return False
    total, (unguarded, guarded) = logarithm[4], _unguarded(top, -math.inf, 0.0)
    if total[:2] != ("sum", column) or unguarded[:2] != ("max", column) or unguarded[2] is not scores:
        return False
    if empty is not None and not (any(side is total for side in empty) and any(side[:2] == ("const", 0.0) for side in empty)):
        return False
    inner = total[2][4] if _is(total[2], "math.exp") else total
    return _is(inner, "arith.subf") and inner[4] is scores and inner[5] is top and guarded == (empty is not None)


def _is(tree: Tree, name: str) -> bool:
    return tree[0] == "op" and tree[1] == name


def _unguarded(tree: Tree, found: float, instead: float) -> tuple[Tree, bool]:
    """`select(x == found, instead, x)` as (x, True); anything else as (tree, False)."""
    if _is(tree, "arith.select") and _is(tree[4], "arith.cmpf") and tree[5][:2] == ("const", instead):
        compared = tree[4][4:]
        if any(side is tree[6] for side in compared) and any(side[:2] == ("const", found) for side in compared):
            return tree[6], True
    return tree, False


def _scores(tree: Tree, column: Flat, plain: _Plain) -> tuple[float, list[Step]]:
    """The scale of the scores, and their changes, the innermost first."""
    way: list[Tree] = []
    while tree[0] != "hole":
        require(tree[0] == "op" and plain.is_scored(tree), "the scores are not computed from the product")
        way.append(tree)
        tree = _scored_operand(tree, plain)
    require(tree[1] == "score", "not the scores' product")
    scale, steps = 1.0, []
    for tree in reversed(way):
        if tree[1] == "arith.select":
            steps += _masked(tree, column, plain)
            continue
        name, first = tree[1], plain.is_scored(tree[4])
        other = tree[5] if first else tree[4]
        if name in ("arith.mulf", "arith.divf") and other[0] == "const" and (first or name == "arith.mulf"):
            require(not steps, "scores are scaled after they were masked")
            factor = float(other[1])
            require(factor != 0, "a scale of 0")
            scale = scale * (factor if name == "arith.mulf" else 1 / factor)
        else:
            require(name == "arith.addf", f"'{name}' of scores")
            steps.append(Step("bias", other))
    return scale, steps


def _scored_operand(tree: Tree, plain: _Plain) -> Tree:
    """The operand of a change to the scores that they are."""
    scored = [operand for operand in tree[4:] if plain.is_scored(operand)]
    if tree[1] == "arith.select":
        require(not plain.is_scored(tree[4]), "a mask that depends on the scores")
        require(len(scored) == 1 and _instead(tree, plain)[0] == "const", "masked scores become no constant")
    else:
        require(len(scored) == 1 and len(tree) == 6, f"'{tree[1]}' of scores")
    return scored[0]


def _instead(select: Tree, plain: _Plain) -> Tree:
    """What masked scores become."""
    return select[5] if plain.is_scored(select[6]) else select[6]


def _masked(tree: Tree, column: Flat, plain: _Plain) -> list[Step]:
    condition = _opposite(tree[4]) if plain.is_scored(tree[6]) else tree[4]
    number = float(_instead(tree, plain)[1])
    return [_causal(part, number, column) or Step("keep", part, number) for part in _conjuncts(condition)]


def _opposite(condition: Tree) -> Tree:
    if _is(condition, "arith.cmpi"):
        return (*condition[:2], f"{_FLIPPED[_predicate(condition)]} : i64", *condition[3:])
    return ("op", "arith.xori", "", "i1", condition, ("const", -1, "i1"))


def _conjuncts(condition: Tree) -> list[Tree]:
    """The conditions that an `and` of several is made of; one that is there twice counts once."""
    found: list[Tree] = []
    pending, seen = [condition], set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _is(part, "arith.andi"):
            pending += reversed(part[4:])
        else:
            found.append(part)
    return found


def _predicate(condition: Tree) -> int:
    return int(condition[2].split()[0])


def _causal(condition: Tree, number: float, column: Flat) -> Step | None:
    """`column <= row + offset` as a step, or None. There may be no row: `column <= offset`."""
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
    loads = tuple((key, -factor) for key, factor in difference.items() if key[0] == "load" and factor)
    return Step("causal", condition, number, next(iter(indices), ()), terms, -constant, loads)


def _linear(tree: Tree) -> dict | None:
    """An integer tree as a sum: {node: factor}, the constant under None."""
    found: dict[int, dict | None] = {}
    for node in postorder([tree], _terms, id):
        below = [found[id(term)] for term in _terms(node)]
        known = [term for term in below if term is not None]
        if node[0] == "const":
            found[id(node)] = {None: int(node[1])}
        elif node[0] == "index":
            found[id(node)] = {("index", node[1]): 1} if node[1] else {}
        elif node[0] == "outside" or (node[0] == "load" and not any(node[2])):
            found[id(node)] = {node: 1}
        elif not below or len(known) < len(below):
            found[id(node)] = None
        elif len(known) == 1:
            found[id(node)] = known[0]
        else:
            (a, b), sign = known, 1 if node[1] == "arith.addi" else -1
            found[id(node)] = {key: a.get(key, 0) + sign * b.get(key, 0) for key in {**a, **b}}
    return found[id(tree)]


def _terms(tree: Tree) -> tuple[Tree, ...]:
    """The integers that one is the sum, the difference or a copy of."""
    return tree[4:] if tree[0] == "op" and tree[1] in (*_SAME_NUMBER, "arith.addi", "arith.subi") else ()
