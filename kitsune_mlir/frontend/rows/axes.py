"""Sizes with symbols in them, and what a dimension of such a size is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloatTrueDiv, FloorDiv, IntTrueDiv, Mod, PythonMod, ToFloat
from torch.utils._sympy.functions import Max as TorchMax
from torch.utils._sympy.functions import Min as TorchMin

from kitsune_mlir.sized.expressions import LARGEST_POWER, Size

__all__ = [
    "Axis",
    "Unclear",
    "axis_of",
    "expression",
    "grows",
    "names_in",
    "plain",
    "regrouped",
    "same_size",
    "size_at",
    "sizes_of",
]


class Unclear(Exception):
    """What a node does to rows is not known; says why."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A dimension as a product, outermost factor first: batch and tokens merged are `(b, t)`, eight heads of each row `(b, 8)`.

    A factor is a number, or an expression with symbols. Where programs run with larger values of the symbols than a call has,
    those elements are valid whose coordinate in each factor is below the call's own value of it.

    Attributes:
        factors: no ones; numbers stand nowhere next to each other. None of them: a dimension of one.
    """

    factors: tuple[sympy.Expr, ...] = ()

    @property
    def size(self) -> sympy.Expr:
        """How many elements it has."""
        return sympy.Mul(*self.factors)

    @property
    def symbols(self) -> frozenset[str]:
        """What its size depends on."""
        return names_in(self.factors)

    @property
    def is_prefix(self) -> bool:
        """Whether its valid elements are its first ones, so that an index means the same whatever it is padded to."""
        return not names_in(self.factors[1:])

    def block(self, symbol: str) -> tuple[sympy.Expr, sympy.Expr] | None:
        """How rows lie in it: how often all rows come one after the other, and how many elements of a row lie together.

        None where the symbol itself is no factor, or is one twice.
        """
        at = [n for n, factor in enumerate(self.factors) if factor.is_Symbol and str(factor) == symbol]
        if len(at) != 1 or sum(symbol in names_in([factor]) for factor in self.factors) != 1:
            return None
        return sympy.Mul(*self.factors[: at[0]]), sympy.Mul(*self.factors[at[0] + 1 :])

    def __str__(self) -> str:
        return " × ".join(map(str, self.factors)) or "1"


def names_in(values: Iterable[sympy.Expr]) -> frozenset[str]:
    """Names of the symbols in expressions."""
    return frozenset(str(symbol) for value in values for symbol in value.free_symbols)


def expression(value: Any) -> sympy.Expr:
    """A number, or a `SymInt`, as an expression."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return _simplified(value.node.expr)
    return sympy.sympify(value)


def sizes_of(tensor: torch.Tensor) -> tuple[sympy.Expr, ...]:
    """A tensor's shape."""
    return tuple(map(expression, tensor.shape))


def _simplified(value: Any) -> Any:
    return value.replace(lambda e: isinstance(e, FloorDiv | CleanDiv), _divided)


def _divided(value: sympy.Expr) -> sympy.Expr:
    """`(k·n + k - 1) // k` is n, for what is positive."""
    over, by = value.args
    whole, left = sympy.Integer(0), sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(over)):
        ratio = sympy.cancel(term / by)
        if _is_whole(ratio):
            whole += ratio
        else:
            left += term
    if left == 0 or (left.is_Integer and by.is_Integer and 0 <= left < by):
        return whole
    return whole - 1 if left == -1 else value


def same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for all values of their symbols."""
    return sympy.expand(sympy.sympify(one) - sympy.sympify(other)) == 0


@functools.lru_cache(4096)
def axis_of(size: sympy.Expr) -> Axis:
    """The dimension of this size whose valid elements are its first ones."""
    if size == 1:
        return Axis()
    if not size.free_symbols:
        return Axis((size,))
    content, rest = sympy.expand(size).primitive()
    return Axis((rest, content)) if content.is_Integer and content > 1 else Axis((sympy.expand(size),))


def merged(factors: Iterable[sympy.Expr]) -> Axis:
    """A dimension out of factors as they come."""
    kept: list[sympy.Expr] = []
    for factor in factors:
        if factor == 1:
            continue
        if kept and kept[-1].is_Integer and factor.is_Integer:
            kept[-1] *= factor
        else:
            kept.append(factor)
    return Axis(tuple(kept))


def regrouped(axes: Sequence[Axis], sizes: Sequence[sympy.Expr]) -> tuple[Axis, ...]:
    """The same elements in the same order, as dimensions of other sizes.

    Raises:
        Unclear: a dimension begins or ends within a factor that is no number.
    """
    left = [factor for axis in axes for factor in axis.factors][::-1]
    found = []
    for size in sizes:
        taken: list[sympy.Expr] = []
        missing = sympy.expand(size)
        while missing != 1:
            if not left:
                raise Unclear(f"its dimension of {size} elements is no product of its operand's")
            factor = left.pop()
            ratio = sympy.cancel(missing / factor)
            if _is_whole(ratio):
                taken.append(factor)
                missing = sympy.expand(ratio)
            elif factor.is_Integer and missing.is_Integer and factor % missing == 0:
                taken.append(missing)
                left.append(factor // missing)
                missing = sympy.Integer(1)
            elif factor.is_Integer and (common := sympy.igcd(factor, missing.primitive()[0])) > 1 and missing.free_symbols:
                raise Unclear(f"its dimension of {size} elements takes {common} of {factor} that lie together")
            else:
                raise Unclear(f"its dimension of {size} elements divides one of {factor}")
        found.append(merged(taken))
    if any(factor != 1 for factor in left):
        raise Unclear("its dimensions are no products of its operand's")
    return tuple(found)


def _is_whole(ratio: sympy.Expr) -> bool:
    if not ratio.free_symbols:
        return bool(ratio.is_Integer)
    return bool(ratio.is_polynomial()) and all(c.is_Integer for c in sympy.Poly(ratio).coeffs())


def grows(size: Any) -> bool:
    """Whether a size is known to be no smaller for larger values of its symbols, which are no less than zero."""
    size = sympy.expand(size)
    if isinstance(size, sympy.Add | sympy.Max | sympy.Min | TorchMax | TorchMin):
        return all(map(grows, size.args))
    if isinstance(size, FloorDiv | CleanDiv):
        return grows(size.args[0]) and size.args[1].is_number and bool(size.args[1] > 0)  # type: ignore[operator]
    if isinstance(size, sympy.Mul):
        return all(factor >= 0 if factor.is_number else grows(factor) for factor in size.args)  # type: ignore[operator]
    if isinstance(size, sympy.Pow):
        return grows(size.base) and bool(size.exp.is_Integer and size.exp > 0)
    return bool(size.is_number or size.is_Symbol)


def size_at(size: sympy.Expr, values: Mapping[str, int]) -> int:
    """A size for values of its symbols."""
    return int(size.subs({symbol: values[str(symbol)] for symbol in size.free_symbols}))


_PLAIN: Mapping[type, str] = {
    sympy.Add: "+", sympy.Mul: "*", sympy.Pow: "**", FloorDiv: "//", CleanDiv: "//", IntTrueDiv: "/", FloatTrueDiv: "/",
    Mod: "%", PythonMod: "%", sympy.Mod: "%", ToFloat: "float", sympy.Max: "max", TorchMax: "max", sympy.Min: "min",
    TorchMin: "min",
}  # fmt: skip


def plain(size: Any) -> Size:
    """A size as plain data.

    Raises:
        NotImplementedError: it has a function that plain sizes have not.
    """
    if size.is_Integer:
        return int(size)
    if size.is_Symbol:
        return str(size)
    if size.is_Rational:
        return ["/", int(size.p), int(size.q)]
    if size.is_Float:
        return float(size)
    how = _PLAIN.get(type(size))
    if how is None or (how == "**" and not (size.args[1].is_Integer and 0 <= size.args[1] <= LARGEST_POWER)):
        raise NotImplementedError(f"the size {size}")
    return [how, *(plain(part) for part in size.args)]
