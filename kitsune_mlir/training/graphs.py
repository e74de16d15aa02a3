"""What is looked for in traced graphs, and taken out of them."""

from __future__ import annotations

import math

from torch import fx
from torch.utils._pytree import tree_leaves

__all__ = ["has_nan", "only_used"]


def has_nan(gm: fx.GraphModule) -> bool:
    """Whether an argument of an operator is a number that is none (`Number` is one for code which does not ask it)."""
    found = [value for node in gm.graph.nodes for value in tree_leaves((node.args, node.kwargs))]
    return any(isinstance(value, float) and math.isnan(value) for value in found)


def only_used(gm: fx.GraphModule) -> list[int]:
    """Take inputs out of a graph that it does not read; the numbers of the others."""
    for node in reversed(gm.graph.nodes):
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "profiler":
            gm.graph.erase_node(node)
    used = []
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if node.users:
            used.append(number)
        else:
            gm.graph.erase_node(node)
    gm.recompile()
    return used
