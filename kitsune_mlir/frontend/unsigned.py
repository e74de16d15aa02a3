"""Unsigned bytes and truth values as what their operators compute with: torch-mlir's lowerings extend them as if they had a
sign, and add truth values as bits."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.frontend.dtypes import CASTS
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["widen_bytes"]

aten = torch.ops.aten

_COMPARED = {aten.gt.Tensor, aten.ge.Tensor, aten.lt.Tensor, aten.le.Tensor}
"""Operators that are lowered as if all operands had no sign where one is a truth value."""
_CRASH = {
    *(aten.eq.Tensor, aten.ne.Tensor, aten.maximum.default, aten.minimum.default, aten.where.self, aten.cat.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.remainder.Tensor, aten.fmod.Tensor),
}
"""Operators that end the process where truth values are beside bytes."""
_RIGHT = {
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.bitwise_not.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor),
    *(aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar),
    *(aten.clone.default, aten.copy.default, aten.cat.default, aten.stack.default, aten.repeat.default, aten.flip.default),
    *(aten.roll.default, aten.where.self, aten.masked_fill.Scalar, aten.tril.default, aten.triu.default),
    *(aten.gather.default, aten.index_select.default, aten.index.Tensor, aten.index_put.default, aten.embedding.default),
    *(aten.scatter.src, aten.scatter.value, aten.select_scatter.default, aten.slice_scatter.default),
    *(aten.index_copy.default, aten.constant_pad_nd.default, aten.fill.Scalar),
}
"""Operators that move bytes, or give the same bits whether these have a sign or not, where their results are bytes too."""


def widen_bytes(graph: fx.Graph) -> None:
    """Give operators unsigned bytes as 32-bit integers, in place, where their results depend on the sign.

    The results have the types that they had.
    """
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if node.target in CASTS and _dtype(node) == torch.uint8 and _dtype(node.args[0]).is_floating_point:  # type: ignore[union-attr]
            with graph.inserting_before(node):
                node.args = (_cast(node.args[0], torch.int32), *node.args[1:])  # type: ignore[arg-type]
        if node.target in CASTS and _is_complex(node) and _dtype(node.args[0]) in (torch.uint8, torch.bool):
            with graph.inserting_before(node):
                node.args = (_cast(node.args[0], torch.float32), *node.args[1:])  # type: ignore[arg-type]
        if node.target is aten.add.Tensor and isinstance(node.args[1], bool) and _dtype(node) == torch.bool:
            _add_truth(graph, node)
            continue
        narrow = _misread(node)
        if sources := [source for source in _operands(node) if _dtype(source) in narrow]:
            _widen(graph, node, sources)


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else None


def _is_complex(node: fx.Node) -> bool:
    kind = _dtype(node)
    return kind is not None and kind.is_complex


def _add_truth(graph: fx.Graph, node: fx.Node) -> None:
    """What a tensor of truth values is with one added to all: true, where that is."""
    x, added = node.args[:2]
    with graph.inserting_before(node):
        if added and node.kwargs.get("alpha", 1):
            made = call_with_value(aten.eq.Tensor, x, x, stack_trace=node.meta.get("stack_trace", ""))
        else:
            made = call_with_value(aten.clone.default, x, stack_trace=node.meta.get("stack_trace", ""))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _operands(node: fx.Node) -> list[fx.Node]:
    """What an operator computes with: of `where` not the mask, which may be a value too."""
    if node.target is aten.where.self:
        return [*dict.fromkeys(value for value in node.args[1:] if isinstance(value, fx.Node))]
    return node.all_input_nodes


def _misread(node: fx.Node) -> Set[torch.dtype]:
    """The types whose operands an operator has to be given as wider ones."""
    given = {_dtype(source) for source in _operands(node)}
    if node.target in _CRASH and torch.bool in given and given & {torch.int8, torch.uint8}:
        return {torch.bool, torch.int8, torch.uint8}
    if not isinstance(node.target, torch._ops.OpOverload) or not _looks_at_signs(node, node.target):
        return set()
    return {torch.uint8, torch.bool} if node.target in _COMPARED and len(given) > 1 else {torch.uint8}


def _looks_at_signs(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    if target.namespace not in ("aten", "prims") or target in CASTS or "_like" in target.__name__:
        return False
    if any(argument.alias_info is not None for argument in target._schema.arguments):  # a view
        return False
    if target in (aten.index.Tensor, aten.index_put.default) and _dtype(node) != torch.uint8:  # by a mask
        return False
    return target not in _RIGHT or _dtype(node) != torch.uint8


def _widen(graph: fx.Graph, node: fx.Node, sources: list[fx.Node]) -> None:
    """Cast what an operator is given, and back what it gives."""
    wide: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(node):
        for source in sources:
            wide[source] = _cast(source, torch.int32)
    before, mask = node.meta["val"], node.args[0] if node.args else None
    node.args = fx.map_arg(node.args, lambda source: wide.get(source, source))  # type: ignore[assignment]
    node.kwargs = fx.map_arg(node.kwargs, lambda source: wide.get(source, source))  # type: ignore[assignment]
    if node.target is aten.where.self:
        node.args = (mask, *node.args[1:])
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
