"""Random numbers of a graph whose sizes change: PyTorch draws them at each call's own sizes, before anything is padded.

Which numbers a row gets depends on how many rows there are, so a program for more rows cannot draw them. What is drawn becomes
an input, and rows are rows again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.padding import input_sizes
from kitsune_mlir.dynamo.randoms import dropout_as_product, is_random, reads_no_data
from kitsune_mlir.frontend.rows.axes import expression, plain
from kitsune_mlir.sized.drawn import OPERATORS, Draw, Draws
from kitsune_mlir.sized.expressions import Size, size_at
from kitsune_mlir.sized.padded import Place

__all__ = ["draws_of"]


def draws_of(gm: fx.GraphModule) -> Draws | None:
    """Make what a graph with symbols draws into inputs of it, behind the others; in place.

    Returns:
        What draws; None, and the graph stays as it is, where it draws nothing, or something that depends on data.
    """
    places, graph = input_sizes(gm), gm.graph
    randoms = [node for node in graph.nodes if is_random(node)]
    if not randoms or not all(_is_known(node, places) for node in randoms):
        return None
    each = list[Draw]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in randoms:
        seen: Tensor = node.args[0].meta["val"]  # type: ignore[union-attr]
        mask = dropout_as_product(node) if isinstance(node.meta["val"], tuple) else None
        named = {key: value for key, value in node.kwargs.items() if key not in ("device", "layout") or value is None}
        how = *_layout(seen), seen.dtype, tuple(node.args[1:]), named
        each.append(Draw(str(node.target), *how, None if mask is None else 1))
        drawn = node if mask is None else mask
        with graph.inserting_after(last):
            last = graph.placeholder(f"drawn_{len(each)}")
        last.meta["val"] = drawn.meta["val"]
        drawn.replace_all_uses_with(last)
        graph.erase_node(drawn)
        if mask is not None:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    gm.recompile()
    return Draws(places, tuple(each))


def _layout(seen: Tensor) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    return tuple(plain(expression(n)) for n in seen.shape), tuple(plain(expression(n)) for n in seen.stride())


def _is_known(node: fx.Node, places: Mapping[str, Place]) -> bool:
    """Whether inputs say all that random numbers depend on."""
    others = [*node.args[1:], *node.kwargs.values()]
    if not reads_no_data(node) or str(node.target) not in OPERATORS or any(isinstance(value, fx.Node) for value in others):
        return False
    if node.kwargs.get("layout") not in (None, torch.strided):
        return False
    try:
        for size in [size for sizes in _layout(node.args[0].meta["val"]) for size in sizes]:  # type: ignore[union-attr]
            size_at(size, dict.fromkeys(places, 2))
    except (KeyError, NotImplementedError):
        return False
    return True
