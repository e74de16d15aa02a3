"""What a program for many sizes takes, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from kitsune_mlir.runtime.signature import Weight
from kitsune_mlir.sized.expressions import Size, size_at

__all__ = ["Range", "SizedInput", "SizedSignature"]


@dataclasses.dataclass(frozen=True)
class Range:
    """The values of a size that changes.

    Attributes:
        symbol: what shapes call it.
        name: what the user calls it.
        least, most: inclusive; None is without an end.
    """

    symbol: str
    name: str
    least: int
    most: int | None

    def __str__(self) -> str:
        return f"{self.least} to {self.most}" if self.most is not None else f"{self.least} or more"


@dataclasses.dataclass(frozen=True)
class SizedInput:
    """A tensor that the caller supplies.

    Attributes:
        name, position: as of `runtime.signature.Input`.
        shape: sizes, which may depend on symbols.
        dtype: as MLIR spells it.
        order: of dimensions in memory, outermost first; empty is row-major.
        changes: whether the model writes to it.
    """

    name: str
    position: int
    shape: tuple[Size, ...]
    dtype: str
    order: tuple[int, ...] = ()
    changes: bool = False


@dataclasses.dataclass(frozen=True)
class SizedSignature:
    """The calling convention of a program for many sizes.

    Attributes:
        weights: what the model supplies, in the graph's order; they come before inputs.
        inputs: in the graph's order.
        ranges: the sizes that change.
        fixed, in_spec, out_spec, parameters: as of `runtime.signature.Signature`.
    """

    weights: tuple[Weight, ...]
    inputs: tuple[SizedInput, ...]
    ranges: tuple[Range, ...]
    fixed: tuple[tuple[int, Any], ...]
    in_spec: str
    out_spec: str
    parameters: tuple[str, ...] = ()

    def largest(self) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs, by name, at the largest size of each range, or the least of one without an end."""
        values = {each.symbol: each.least if each.most is None else each.most for each in self.ranges}
        return {one.name: tuple(size_at(size, values) for size in one.shape) for one in self.inputs}
