"""What was compiled of a graph with symbolic sizes, by the sizes that it serves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from kitsune_mlir.sized.padded import PaddedCall, Place, values_of

__all__ = ["Known", "exact_key"]


@dataclasses.dataclass
class Known:
    """What was compiled of a graph.

    Attributes:
        places: where inputs say the values of symbols.
        names: the symbols that programs may be compiled for larger values of.
        larger: programs for those, by the values that they were compiled for.
        exact: programs for sizes as they are.
    """

    places: dict[str, Place]
    names: tuple[str, ...] = ()
    larger: dict[tuple[int, ...], PaddedCall] = dataclasses.field(default_factory=dict)
    exact: dict[tuple[Any, ...], Callable[..., Any]] = dataclasses.field(default_factory=dict)

    def values(self, args: Sequence[Any]) -> tuple[int, ...]:
        """The values of symbols in a call."""
        return values_of(self.places, args)

    def serving(self, values: Sequence[int]) -> PaddedCall | None:
        """Of the programs for larger sizes the smallest that serves these; None where none does."""
        named = dict(zip(self.places, values, strict=True))
        fitting = [(math.prod(sizes), run) for sizes, run in self.larger.items() if run.serves(named)]
        return min(fitting, key=lambda one: one[0])[1] if fitting else None


def exact_key(args: Sequence[Any]) -> tuple[Any, ...]:
    """What a program for sizes as they are depends on."""
    return tuple(map(_sizes, args))


def _sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value if isinstance(value, int | float | bool) else None
