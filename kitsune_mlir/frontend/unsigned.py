"""Unsigned bytes as what their operators compute with: torch-mlir's lowerings extend them as if they had a sign."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["widen_bytes"]

aten, prims = torch.ops.aten, torch.ops.prims

_WRONG = {
    *(aten.abs.default, aten.neg.default, aten.sort.default, aten.sort.stable, aten.topk.default, aten.kthvalue.default),
    *(aten.fmod.Tensor, aten.fmod.Scalar),
}
"""Operators that give bytes, and are lowered as if these had a sign, or by way of floats that no byte is."""
_RIGHT = {
    aten._to_copy.default,
    prims.convert_element_type.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.where.self,
}
"""Operators that give other types, and are lowered right, or take bytes as masks."""


def widen_bytes(graph: fx.Graph) -> None:
    """Give operators unsigned bytes as 32-bit integers, in place, where their results depend on the sign.

    The results have the types that they had.
    """
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        target = node.target
        bytes_ = [source for source in node.all_input_nodes if _dtype(source) == torch.uint8]
        if bytes_ and isinstance(target, torch._ops.OpOverload) and _looks_at_signs(node, target):
            _widen(graph, node, bytes_)


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None


def _looks_at_signs(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    if target in _WRONG:
        return True
    given = [value.dtype for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    views = any(argument.alias_info is not None for argument in target._schema.arguments)
    like = torch.uint8 in given or not given or set(given) == {torch.bool}
    return target.namespace in ("aten", "prims") and not (like or views or target in _RIGHT or "like" in target.__name__)


def _widen(graph: fx.Graph, node: fx.Node, sources: list[fx.Node]) -> None:
    """Cast what an operator is given, and back what it gives."""
    wide: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(node):
        for source in sources:
            wide[source] = _cast(source, torch.int32)
    before = node.meta["val"]
    node.args = fx.map_arg(node.args, lambda source: wide.get(source, source))  # type: ignore[assignment]
    node.kwargs = fx.map_arg(node.kwargs, lambda source: wide.get(source, source))  # type: ignore[assignment]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])  # type: ignore[misc]
    node.meta.pop("tensor_meta", None)  # torch-mlir would look there first
    node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    if isinstance(before, Tensor):
        _cast_back(graph, node, before.dtype)
        return
    for part in list(node.users):  # getitem
        number = part.args[1]
        part.meta.pop("tensor_meta", None)
        part.meta["val"] = node.meta["val"][number]
        _cast_back(graph, part, before[number].dtype)  # type: ignore[index]


def _cast(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    return call_with_value(aten._to_copy.default, node, dtype=dtype, stack_trace=node.meta.get("stack_trace", ""))


def _cast_back(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    if _dtype(node) == dtype:
        return
    users = list(node.users)
    with graph.inserting_after(node):
        cast = _cast(node, dtype)
    for user in users:
        user.replace_input_with(node, cast)
