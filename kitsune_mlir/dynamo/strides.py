"""Tensors with the strides that eager gives them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.frontend.aten import is_dense
from kitsune_mlir.frontend.rows.axes import expression
from kitsune_mlir.runtime.results import inverse, strides
from kitsune_mlir.sized.restride import same_strides

__all__ = ["inputs_in_memory_order", "outputs_in_memory_order", "without_empty_views"]

aten = torch.ops.aten


def inputs_in_memory_order(graph: fx.Graph, weights: Set[str]) -> list[Sequence[int] | None]:
    """Lets a part take its inputs in the order in which their elements lie in memory; in place.

    Args:
        weights: names of inputs that are left as they are.

    Returns:
        For each other input, the order in which its dimensions are to be given; None for one as it is.
    """
    taken: list[Sequence[int] | None] = []
    placeholders = [node for node in graph.find_nodes(op="placeholder") if node.name not in weights]
    for node in placeholders:
        value = node.meta["val"]
        order = _order(value)
        taken.append(order)
        if order is not None:
            after = next(other for other in graph.nodes if other.op != "placeholder")
            with graph.inserting_before(after):
                seen = graph.call_function(aten.permute.default, (node, inverse(order)))
            seen.meta = {"val": value}
            writes = [user for user in node.users if user.target is aten.copy_.default and user.args[0] is node]
            for user in [user for user in node.users if user is not seen and user not in writes]:
                user.replace_input_with(node, seen)
            node.meta = {"val": value.permute(order)}
            for user in writes:
                with graph.inserting_before(user):
                    written = graph.call_function(aten.permute.default, (user.args[1], order))
                written.meta = {"val": node.meta["val"]}
                user.update_arg(1, written)
    return taken


def outputs_in_memory_order(graph: fx.Graph) -> list[tuple[Tensor, Sequence[int] | None]]:
    """Lets a part give its outputs in the order in which their elements lie in memory; in place.

    Returns:
        For each output, what it is to be (its `meta["val"]`), and the order in which its dimensions are given, or None.
    """
    output = next(iter(graph.find_nodes(op="output")))
    given, wanted = [], []
    for node in output.args[0]:  # type: ignore[union-attr]
        value = node.meta["val"]  # type: ignore[union-attr]
        order = _order(value)
        if order is not None:
            with graph.inserting_before(output):
                node = graph.call_function(aten.permute.default, (node, order))
            node.meta = {"val": value.permute(order)}
        given.append(node)
        wanted.append((value, order))
    output.args = (tuple(given),)
    return wanted


def _order(value: Tensor) -> list[int] | None:
    """The order of a dense tensor's dimensions in memory; None where it is row-major, or no order makes it so.

    Images with channels innermost are left as they are: programs know such.
    """
    size, stride = tuple(value.shape), tuple(value.stride())
    if same_strides(size, stride, strides(size)) or not is_dense(size, stride):
        return None
    if len(size) == 4 and value.is_contiguous(memory_format=torch.channels_last):
        return None
    return sorted(range(len(size)), key=lambda dim: -stride[dim])


def without_empty_views(graph: fx.Graph) -> None:
    """Takes out views that are no other look at what a graph computes, which PyTorch would have to make; in place.

    One stays where its source is an output too, or another view of it is: they are tensors of their own.
    """
    output = next(iter(graph.find_nodes(op="output")))
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        if not is_view(node) or not isinstance(source, fx.Node) or source.op != "call_function" or is_view(source):
            continue
        new, old = node.meta.get("val"), source.meta.get("val")
        if not isinstance(new, Tensor) or not isinstance(old, Tensor) or _lie(new) != _lie(old):
            continue
        if not any(user is output or is_view(user) for user in source.users if user is not node):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _lie(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor's elements lie in memory, and are read from there; sizes may be symbols."""
    sizes = (tuple(map(expression, n)) for n in (tensor.shape, tensor.stride(), (tensor.storage_offset(),)))
    return tensor.dtype, tensor.is_conj(), tensor.is_neg(), *sizes
