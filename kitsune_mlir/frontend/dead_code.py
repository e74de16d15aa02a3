"""Dead code of a graph, found in time that does not grow with what each operator might do."""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["drop_dead"]


def drop_dead(graph: fx.Graph) -> None:
    """`graph.eliminate_dead_code()`, which asks of every node whether it has effects: here only those without users are asked.

    An import takes it a dozen times, and a model of 48 layers has some six thousand nodes.
    """
    if any(isinstance(_child(graph, node), fx.GraphModule) for node in graph.find_nodes(op="get_attr")):
        graph.eliminate_dead_code()  # graphs inside too
        return
    random = True
    if torch._guards.TracingContext.try_get():
        random = torch._inductor.config.fallback_random  # as PyTorch does: its compiler drops random numbers that nobody reads
    for node in reversed(graph.nodes):
        if not node.users and not node.is_impure(random):
            graph.erase_node(node)


def _child(graph: fx.Graph, node: fx.Node) -> object:
    """The direct child of the graph's module that a node names; None where there is none."""
    return getattr(graph.owning_module, str(node.target), None) if graph.owning_module is not None else None
