"""Tensors that a graph makes of nothing but numbers, on the CPU, and then moves to the device."""

from __future__ import annotations

import torch
from torch import fx

__all__ = ["made_in_place"]


def made_in_place(graph: fx.Graph) -> None:
    """Let such tensors be made where they are moved to; in place. A program's constants lie on its device anyway.

    An input that is moved stays one that PyTorch moves.
    """
    given: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or given.intersection(node.all_input_nodes):
            given.add(node)
        elif node.op == "call_function" and node.target is torch.ops.prims.device_put.default:
            node.target, node.args, node.kwargs = torch.ops.aten.clone.default, node.args[:1], {}
