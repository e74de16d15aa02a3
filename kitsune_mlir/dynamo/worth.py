"""Whether a part of a graph is worth a program: its predicted time beside that of its operators in PyTorch.

Only what differs is predicted: operators cost PyTorch a call each, and their tensors go through memory; a program costs one
call, and its inputs and outputs go through memory. Arithmetic counts as equal.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.partition import is_made, is_view
from kitsune_mlir.machine.target import Target

__all__ = ["computing", "seconds_in_program", "seconds_in_pytorch"]


def computing(graph: fx.Graph) -> list[fx.Node]:
    """The operators that PyTorch would call, but for views and constants."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return [node for node in nodes if isinstance(node.target, torch._ops.OpOverload) and not (is_view(node) or is_made(node))]


def seconds_in_pytorch(graph: fx.Graph, machine: Target) -> float:
    """Of a graph's operators, one after the other; predicted, without arithmetic."""
    moved = [_bytes([node, *node.all_input_nodes]) for node in computing(graph)]
    return sum(machine.operator_seconds + _seconds(amount, machine) for amount in moved)


def seconds_in_program(graph: fx.Graph, machine: Target) -> float:
    """Of one program for a graph; predicted, without arithmetic."""
    output = next(iter(graph.find_nodes(op="output")))
    return machine.call_seconds + _seconds(_bytes([*graph.find_nodes(op="placeholder"), *output.all_input_nodes]), machine)


def _bytes(nodes: Iterable[fx.Node]) -> int:
    values = [value for node in dict.fromkeys(nodes) for value in tree_leaves(node.meta.get("val"))]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return sum(value.element_size() * value.numel() for value in tensors)


def _seconds(amount: int, machine: Target) -> float:
    return amount / (machine.cache_rate if amount <= machine.cache_bytes else machine.dram_rate)
