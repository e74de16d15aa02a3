"""Dimensions as products of factors, so that reshapes are nothing but another grouping of the same factors.

A reshape of [2, 4, 256] into [2, 2, 512] says that 4 = 2 x 2' and that 512 = 2' x 256. Every dimension is written as a list
of factors, outermost first; where two dimensions are found to be the same, their lists are refined until they agree. What
is left are the loops that a nest around several reshapes really has. A dimension of extent 1 has no factors.
"""

from __future__ import annotations

from collections.abc import Sequence

from .match_failure import MatchFailure

__all__ = ["Factor", "Factors", "Flat", "flat", "fresh", "unify"]


class Factor:
    """A factor of extents. Two factors are the same once they were unified; one that was split is a list of others."""

    __slots__ = ("parts", "same", "size")

    def __init__(self, size: int):
        self.size = size
        self.same: Factor | None = None
        self.parts: list[Factor] | None = None

    def __repr__(self) -> str:
        return f"<{self.size}>"


Factors = list[Factor]
"""A dimension as it was first seen; `flat` says what it is now."""

Flat = tuple[Factor, ...]
"""The final factors of a dimension, outermost first."""


def fresh(size: int) -> Factors:
    """A new dimension of extent `size`."""
    return [] if size == 1 else [Factor(size)]


def flat(factors: Sequence[Factor]) -> Flat:
    """What a dimension is now."""
    found: list[Factor] = []
    pending = list(reversed(factors))
    while pending:
        factor = _last(pending.pop())
        if factor.parts is None:
            found.append(factor)
        else:
            pending += reversed(factor.parts)
    return tuple(found)


def _last(factor: Factor) -> Factor:
    """What a factor was unified with in the end; the way there is short the next time."""
    last = factor
    while last.same is not None:
        last = last.same
    while factor.same is not None:
        factor.same, factor = last, factor.same
    return last


def unify(first: Sequence[Factor], second: Sequence[Factor]) -> None:
    """State that two dimensions are walked by the same loops.

    Raises:
        MatchFailure: their factors do not divide each other.
    """
    left, right = list(flat(first)), list(flat(second))
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if a is b:
            continue
        if a.size != b.size:
            large, small = (a, b) if a.size > b.size else (b, a)
            if large.size % small.size:
                raise MatchFailure(f"extents {large.size} and {small.size} do not divide each other")
            large.parts = [Factor(small.size), Factor(large.size // small.size)]
            outer, inner = large.parts
            (left if large is a else right).insert(0, inner)
            outer.same = small
            continue
        a.same = b
    if left or right:
        raise MatchFailure("two dimensions have different extents")
