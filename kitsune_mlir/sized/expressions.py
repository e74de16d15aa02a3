"""Sizes that depend on a call's, as plain data: a number, the name of a size, or `["*", 2, "n"]`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["OPERATORS", "Size", "check_size", "size_at"]

Size = Any
"""An int or a float, the name of a size, or a list of an operator and what it is applied to."""

OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": lambda *values: sum(values),
    "*": lambda *values: math.prod(values),
    "**": operator.pow,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "max": max,
    "min": min,
    "float": float,
}
BINARY = ("**", "//", "/", "%")
DEEPEST, LARGEST_POWER = 32, 8


def size_at(size: Size, values: Mapping[str, int]) -> Any:
    """A size for the values of names."""
    if isinstance(size, str):
        return values[size]
    if isinstance(size, list | tuple):
        return OPERATORS[size[0]](*[size_at(part, values) for part in size[1:]])
    return size


def check_size(size: Size, names: Collection[str], depth: int = DEEPEST) -> None:
    """ValueError where this is no size of these names."""
    if isinstance(size, list | tuple) and size and depth and size[0] in OPERATORS:
        for part in size[1:]:
            check_size(part, names, depth - 1)
        wanted = 2 if size[0] in BINARY else 1 if size[0] == "float" else len(size) - 1
        if wanted and wanted == len(size) - 1 and (size[0] != "**" or size[2] in range(LARGEST_POWER + 1)):
            return
    elif size in names if isinstance(size, str) else type(size) in (int, float):
        return
    raise ValueError(f"{size!r:.60} is no size of {', '.join(names) or 'no names'}")
