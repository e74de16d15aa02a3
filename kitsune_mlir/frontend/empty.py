"""Tensors without elements: whatever reads only such tensors is a constant, and torch-mlir divides by their sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.source import origin_of_node, target_name

__all__ = ["drop_empty"]

aten = torch.ops.aten

# With nothing to write they return their first operand.
_WRITES = {"index_put", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "slice_scatter", "put"}


def drop_empty(graph: fx.Graph) -> None:
    """Replaces values without elements by `full`, and takes them out of what reads them.

    Raises:
        FrontendError: an operator reads tensors without elements beside others, and is none of those known to cope.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is aten.full.default:
            continue
        inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
        without = [n for n in inputs if n.meta["val"].numel() == 0]
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.numel() == 0:
            _replace(graph, node, 0)
        elif not without or not isinstance(value, Tensor):
            continue
        elif node.target is aten.cat.default:
            node.update_arg(0, [n for n in node.args[0] if n not in without])
        elif len(without) == len(inputs):
            _replace(graph, node, _evaluate(node))
        elif getattr(node.target, "overloadpacket", None) in {getattr(aten, w) for w in _WRITES}:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        else:
            raise FrontendError(
                f"operator '{target_name(node)}' reads '{without[0].name}', which has no elements",
                operator=target_name(node),
                location=origin_of_node(node),
            )
    drop_dead(graph)


def _evaluate(node: fx.Node) -> int | float | bool:
    """The one number that an operator makes of nothing: 0 for a sum, NaN for a mean."""

    def real(value: fx.Node) -> Any:
        meta = value.meta["val"]
        return torch.empty(meta.shape, dtype=meta.dtype) if isinstance(meta, Tensor) else meta

    assert callable(node.target)
    with _disable_current_modes():
        args, kwargs = fx.map_arg((node.args, node.kwargs), real)
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
        out = tree_leaves(node.target(*args, **kwargs))
        first = out[0].reshape(-1)
        if len(out) != 1 or not bool(((first == first[0]) | (first != first)).all()):
            raise FrontendError(
                f"operator '{target_name(node)}' makes more than one number of tensors without elements",
                operator=target_name(node),
                location=origin_of_node(node),
            )
        return first[0].item()


def _replace(graph: fx.Graph, node: fx.Node, number: int | float | bool) -> None:
    value = node.meta["val"]
    with graph.inserting_before(node):
        constant = graph.call_function(
            aten.full.default, (list(value.shape), number), {"dtype": value.dtype, "pin_memory": False}
        )
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
    graph.erase_node(node)
