"""Which dimension of every value is a symbolic one, and what mixes its elements.

A graph that was traced with symbolic sizes is followed from its inputs. Rows are what a symbol counts: samples, tokens, nodes.
They are independent where each row of each value depends on the same row of the inputs only. Where they are not, but no valid
element depends on one that a larger size would add, the graph may still be run at a larger size and its results be cut: some
operators have to be told the number of rows for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from kitsune_mlir.frontend.rows.axes import Unclear, axis_of, expression, grows, names_in, same_size, sizes_of
from kitsune_mlir.frontend.rows.node import Crossing, Node
from kitsune_mlir.frontend.rows.registry import rule_of

__all__ = ["Rows", "rows_of"]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What is known of a graph's rows.

    Attributes:
        symbols: of the inputs' sizes, and inputs that are integers.
        axes: by node that gives a tensor, its dimensions; by one that gives several, those of each.
        crossings: where rows are not independent, in the graph's order.
    """

    symbols: tuple[str, ...]
    axes: Mapping[str, Any]
    crossings: Sequence[Crossing]

    def of(self, symbol: str) -> list[Crossing]:
        """Where these rows are not independent."""
        return [crossing for crossing in self.crossings if crossing.symbol == symbol]

    def is_independent(self, symbol: str) -> bool:
        """Whether each row of each value depends on the same row of inputs only, and not on how many there are."""
        return not self.of(symbol)

    def is_paddable(self, symbol: str) -> bool:
        """Whether results for n rows are among those for more, given that what needs the number of rows is told it."""
        return all(crossing.kind != "never" for crossing in self.of(symbol))


def rows_of(graph: fx.Graph) -> Rows:
    """Follow rows through a graph.

    Args:
        graph: of ATen's operators, functional but for `copy_` to inputs; each node has its value in `meta["val"]`, of symbolic
            sizes.
    """
    axes: dict[str, Any] = {}
    crossings: list[Crossing] = []
    symbols: dict[str, None] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            found = sizes_of(value) if isinstance(value, Tensor) else ()
            if isinstance(value, torch.SymInt):
                symbols.update(dict.fromkeys(sorted(names_in([expression(value)]))))
            symbols.update(dict.fromkeys(sorted(names_in(found))))
            axes[node.name] = tuple(map(axis_of, found))
        elif node.op == "get_attr" and isinstance(value, Tensor):
            axes[node.name] = tuple(map(axis_of, sizes_of(value)))
        elif node.op == "call_function" and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            seen = Node(node, axes, crossings)
            before = len(crossings)
            try:
                axes[node.name] = _checked(rule_of(node)(seen), value)
                if unseen := seen.unseen():
                    raise Unclear(f"what the number {unseen[0]} does is not known")
            except Unclear as error:
                del crossings[before:]
                axes[node.name] = tree_map(lambda v: tuple(map(axis_of, sizes_of(v))) if isinstance(v, Tensor) else (), value)
                around = [v for n in (node, *node.all_input_nodes) for v in tree_leaves(n.meta.get("val"))]
                seen.crosses(names_in(_expressions(around)), str(error), "never")
    unknown = {name for name in (c.symbol for c in crossings)} - symbols.keys()
    if unknown:  # sizes that depend on data: whatever they do is not known for any rows
        crossings += [
            dataclasses.replace(c, symbol=s, what="a size depends on data", kind="never")
            for c in [c for c in crossings if c.symbol in unknown][:1]
            for s in symbols
        ]
    return Rows(tuple(symbols), axes, tuple(crossings))


def _expressions(values: Sequence[Any]) -> list[Any]:
    tensors = [size for v in values if isinstance(v, Tensor) for size in sizes_of(v)]
    return tensors + [expression(v) for v in values if isinstance(v, torch.SymInt | torch.SymFloat)]


def _checked(found: Any, value: Any) -> Any:
    """What a rule found, if it has the right sizes."""
    several = not isinstance(value, Tensor)
    for axes, one in zip(found if several else [found], value if several else [value], strict=True):
        if isinstance(one, Tensor):
            sizes = sizes_of(one)
            if len(axes) != len(sizes) or not all(map(same_size, (axis.size for axis in axes), sizes)):
                raise Unclear(f"its size is {[str(size) for size in sizes]}, which was not to be expected")
            if not all(map(grows, sizes)):
                raise Unclear(f"its size is {[str(size) for size in sizes]}, which is not larger for more rows")
    return tuple(found)
