"""A node that rules look at, and what they note of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from torch import SymBool, SymFloat, SymInt, Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.rows.axes import Axis, Unclear, expression, sizes_of
from kitsune_mlir.frontend.source import origin_of_node, target_name

__all__ = ["WITHIN_SAMPLES", "Axes", "Crossing", "Node", "broadcast"]

Axes = tuple[Axis, ...]

Number = SymInt | SymFloat | SymBool
Kind = Literal["reads", "counts", "never"]


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A node in which rows are not independent.

    Attributes:
        symbol: counts the rows.
        node: its name.
        operator: such as `aten.sum.dim_IntList`.
        location: `file:line` of the model's source, if it is known.
        what: what it does to rows, as a sentence about "it".
        kind: "reads": valid elements read others, but only valid ones; "counts": so they do if it is told how many rows there
            are; "never": or it is not known.
    """

    symbol: str
    node: str
    operator: str
    location: str | None
    what: str
    kind: Kind

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        return f"{where}{self.operator}: {self.what}"


WITHIN_SAMPLES = "it mixes elements along dimensions within a sample, as height and width of an image are"
"""What convolutions and pooling do: of such sizes a program for larger ones would have other values at borders."""


class Node:
    """A node that a rule looks at."""

    def __init__(self, node: fx.Node, axes: Mapping[str, Any], crossings: list[Crossing]):
        self.node, self._axes, self._crossings = node, axes, crossings
        self.given: dict[str, Any] = {}
        self._seen: set[str] = set()  # nodes that are numbers, of which a rule knows what they do
        schema = getattr(node.target, "_schema", None)
        for n, argument in enumerate(schema.arguments if schema is not None else ()):
            value = node.args[n] if n < len(node.args) and not argument.kwarg_only else argument.default_value
            self.given[argument.name] = node.kwargs.get(argument.name, value)

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the schema."""
        return self.given.get(name)

    def axes(self, value: Any) -> Any:
        """Of an operand; a number has none."""
        return self._axes.get(value.name, ()) if isinstance(value, fx.Node) else ()

    def operand(self, n: int = 0) -> Axes:
        """The dimensions of an argument by number."""
        return self.axes(self.node.args[n])

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """An argument that says which dimension."""
        rank = len(self.operand()) if rank is None else rank
        return int(self[name]) % max(rank, 1)

    def number(self, value: Any) -> Any:
        """An argument that is a size or an index, as an expression."""
        if isinstance(value, fx.Node):
            self._seen.add(value.name)
        return expression(value.meta["val"] if isinstance(value, fx.Node) else value)

    def says_sizes(self, *names: str) -> None:
        """Note arguments that say nothing but sizes and strides of results."""
        for leaf in tree_leaves([self[name] for name in names]):
            self.number(leaf if leaf is not None else 0)

    def unseen(self) -> list[str]:
        """Names of numbers among the arguments that no rule has looked at: they would stay as they are at one size."""
        self.says_sizes("size", "shape")
        leaves = [leaf for leaf in self.node.all_input_nodes if isinstance(leaf.meta.get("val"), Number)]
        return [leaf.name for leaf in leaves if leaf.name not in self._seen]

    @property
    def results(self) -> Any:
        """Sizes of the result, or of each."""
        value = self.node.meta["val"]
        return sizes_of(value) if isinstance(value, Tensor) else [sizes_of(v) for v in value]

    def crosses(self, names: Any, what: str, kind: Kind) -> None:
        """Note that rows counted by these symbols are not independent here."""
        found = (target_name(self.node), origin_of_node(self.node))
        self._crossings += [Crossing(name, self.node.name, *found, what, kind) for name in sorted(names)]


def broadcast(*operands: Axes) -> Axes:
    """The dimensions of operands brought to one shape.

    Raises:
        Unclear: two of them have rows in another order, or of another kind.
    """
    rank = max(map(len, operands), default=0)
    found = [Axis()] * rank
    for axes in operands:
        for n, axis in enumerate(axes, rank - len(axes)):
            if axis != Axis():
                if found[n] not in (Axis(), axis):
                    raise Unclear(f"its operands have dimensions of {found[n]} and of {axis}")
                found[n] = axis
    return tuple(found)
