"""Numbers that depend on how many rows are valid, computed of tensors that say it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils._sympy.functions import CleanDiv, FloatTrueDiv, FloorDiv, IntTrueDiv, ToFloat

from kitsune_mlir.frontend.dtypes import worst_of

__all__ = ["filler", "number_of"]


def number_of(value: sympy.Basic, sizes: Mapping[str, int], counts: Mapping[str, Tensor]) -> Any:
    """An expression's own value: a number where it is known, else a tensor without dimensions.

    Args:
        sizes: the values that symbols have.
        counts: those of symbols that are tensors.

    Raises:
        NotImplementedError: it has a function that tensors have not.
    """
    if not {str(s) for s in value.free_symbols} & counts.keys():
        found: Any = value.subs({s: sizes[str(s)] for s in value.free_symbols})
        return int(found) if found.is_integer else float(found)
    if value.is_Symbol:
        return counts[str(value)]
    parts = [number_of(part, sizes, counts) for part in value.args]
    if isinstance(value, sympy.Add | sympy.Mul):
        how = operator.add if isinstance(value, sympy.Add) else operator.mul
        found = parts[0]
        for part in parts[1:]:
            found = how(found, part)
        return found
    if isinstance(value, FloatTrueDiv | IntTrueDiv):
        return operator.truediv(*parts)
    if isinstance(value, FloorDiv | CleanDiv):
        return operator.floordiv(*parts)
    if isinstance(value, ToFloat):
        return parts[0].to(torch.float32)
    if isinstance(value, sympy.Pow) and value.exp.is_Integer and value.exp > 0:
        return operator.pow(*parts)
    raise NotImplementedError(f"the number {value}")


def filler(value: Tensor, fill: Any) -> Tensor:
    """A number of a tensor's type without dimensions; "highest" and "lowest" are the type's."""
    if isinstance(fill, str):
        fill = worst_of(value.dtype, largest=fill == "lowest")
    return torch.full([], fill, dtype=value.dtype, device=value.device)
