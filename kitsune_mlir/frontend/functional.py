"""Operators that change their operand in place, as those that make a new tensor, where nothing else sees its memory."""

from __future__ import annotations

import functools
from collections import defaultdict

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["make_functional"]


def make_functional(graph: fx.Graph) -> None:
    """Rewrites a graph as `torch.export.export` makes it.

    What is changed in place stays so if it is an input or a weight, or if views of it are held: that takes functionalization.
    """
    number = {node: place for place, node in enumerate(graph.nodes)}
    holders: dict[StorageWeakRef, list[fx.Node]] = defaultdict(list)
    for node in list(graph.nodes):
        if (made := _functional(node, holders)) is not None:
            operand = node.args[0]
            assert isinstance(operand, fx.Node)
            for user in [user for user in operand.users if number.get(user, -1) > number[node]]:
                user.replace_input_with(operand, made)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
            node = made
        for storage in {_storage(leaf) for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)}:
            holders[storage].append(node)


def _storage(value: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(value.untyped_storage())


def _functional(node: fx.Node, holders: dict[StorageWeakRef, list[fx.Node]]) -> fx.Node | None:
    """A call that makes what `node` changes its first operand to, before it; None if there is none, or others could see it."""
    target, operand = node.target, node.args[0] if node.args else None
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable or not isinstance(operand, fx.Node):
        return None
    changed = [n for n, given in enumerate(target._schema.arguments) if given.alias_info and given.alias_info.is_write]
    name = target._opname
    if changed != [0] or not name.endswith("_") or name.endswith("__") or target.namespace != "aten":
        return None
    other = _with_arguments(name[:-1], target)
    if other is None:
        return None
    value = operand.meta.get("val")
    if operand.op != "call_function" or not isinstance(value, torch.Tensor) or holders[_storage(value)] != [operand]:
        return None
    with node.graph.inserting_before(node):
        made = call_with_value(other, *node.args, stack_trace=node.meta.get("stack_trace") or "", **node.kwargs)
    if made.meta["val"].shape != value.shape or made.meta["val"].dtype != value.dtype:
        node.graph.erase_node(made)
        return None
    return made


@functools.cache
def _with_arguments(name: str, target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload of an operator that takes what `target` takes; `pow.Tensor_Scalar` takes what `pow_.Scalar` does."""
    packet = getattr(torch.ops.aten, name, None)
    wanted = [(given.name, str(given.type)) for given in target._schema.arguments]
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        if [(given.name, str(given.type)) for given in other._schema.arguments] == wanted and not other._schema.is_mutable:
            return other
    return None
