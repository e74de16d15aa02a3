"""Random numbers that PyTorch draws at each call's own sizes, in front of a program for larger ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.sized.expressions import Size, size_at
from kitsune_mlir.sized.padded import Place, values_of

__all__ = ["OPERATORS", "Draw", "Drawn", "Draws"]

_aten = torch.ops.aten
OPERATORS: Mapping[str, Callable[..., Any]] = {
    str(each): each
    for each in (
        *(_aten.rand_like.default, _aten.randn_like.default, _aten.randint_like.default, _aten.randint_like.low_dtype),
        *(_aten.bernoulli.p, _aten.uniform.default, _aten.normal_functional.default, _aten.native_dropout.default),
        *(_aten.exponential.default, _aten.geometric.default, _aten.cauchy.default, _aten.log_normal.default),
    )
}
"""What draws, by name."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """A call of an operator that reads of its first operand only how that lies in memory.

    Attributes:
        operator: its name in `OPERATORS`.
        size, stride, dtype: of that operand.
        others, named: the other arguments; where it is, is where the call's first tensor is.
        which: of several results.
    """

    operator: str
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    others: tuple[Any, ...]
    named: Mapping[str, Any]
    which: int | None

    def __call__(self, values: Mapping[str, int], device: torch.device) -> Tensor:
        """What is drawn for values of symbols."""
        size, stride = [size_at(n, values) for n in self.size], [size_at(n, values) for n in self.stride]
        operand = torch.empty_strided(size, stride, dtype=self.dtype, device=device)
        found = OPERATORS[self.operator](operand, *self.others, **self.named)
        return found if self.which is None else found[self.which]


@dataclasses.dataclass(frozen=True)
class Draws:
    """What a graph draws, in its order.

    Attributes:
        places: where inputs say the values of symbols.
    """

    places: Mapping[str, Place]
    each: tuple[Draw, ...]

    def __call__(self, args: Sequence[Any]) -> list[Tensor]:
        """What is drawn for a call's arguments."""
        values = dict(zip(self.places, values_of(self.places, args), strict=True))
        device = next((value.device for value in args if isinstance(value, Tensor)), torch.device("cpu"))
        return [draw(values, device) for draw in self.each]


class Drawn:
    """Calls a graph that takes what is drawn behind its other inputs."""

    def __init__(self, run: Callable[..., Any], draws: Draws):
        self.run, self.draws = run, draws

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        return self.run(*args, *self.draws(args))
