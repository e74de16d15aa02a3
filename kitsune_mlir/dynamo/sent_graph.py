"""Graphs of ATen's operators as plain data, for another process: nodes, what is known of their values, source lines."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

__all__ = ["SentGraph", "received", "sent"]


@dataclasses.dataclass(frozen=True)
class SentGraph:
    """A graph.

    Attributes:
        nodes: operation, name, target, arguments, keyword arguments, value and traceback of each.
        tensors: those that it holds itself, by name.
    """

    nodes: tuple[tuple[Any, ...], ...]
    tensors: dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class _Node:
    name: str


@dataclasses.dataclass(frozen=True)
class _Value:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def sent(gm: fx.GraphModule) -> SentGraph | None:
    """A graph as data; None where something in it cannot travel: a function that is no operator, a tensor on a device."""
    tensors = {str(node.target): getattr(gm, str(node.target)) for node in gm.graph.find_nodes(op="get_attr")}
    if any(not isinstance(held, Tensor) or held.device.type != "cpu" for held in tensors.values()):
        return None
    nodes = []
    for node in gm.graph.nodes:
        target = node.target
        if node.op == "call_function":
            if isinstance(target, torch._ops.OpOverload):
                target = (target.namespace, target._schema.name.partition("::")[2], target._overloadname)
            elif target is not operator.getitem:
                return None
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda one: _Node(one.name))  # type: ignore[arg-type]
        value = tree_map(_described, node.meta.get("val"))
        nodes.append((node.op, node.name, target, args, kwargs, value, node.meta.get("stack_trace")))
    return SentGraph(tuple(nodes), {name: held.detach().clone() for name, held in tensors.items()})


def received(data: SentGraph) -> fx.GraphModule:
    """The graph, with values that have no data."""
    root, graph, made = torch.nn.Module(), fx.Graph(), dict[str, fx.Node]()
    for name, held in data.tensors.items():
        root.register_buffer(name, held)

    def taken(value: Any) -> Any:
        return made[value.name] if isinstance(value, _Node) else value

    with FakeTensorMode(allow_non_fake_inputs=True):
        for op, name, target, args, kwargs, value, trace in data.nodes:
            if isinstance(target, tuple):
                target = getattr(getattr(getattr(torch.ops, target[0]), target[1]), target[2])
            args, kwargs = tree_map(taken, (args, kwargs))
            made[name] = graph.create_node(op, target, tuple(args), dict(kwargs), name)
            made[name].meta["val"] = tree_map(_fake, value)
            if trace is not None:
                made[name].meta["stack_trace"] = trace
    return fx.GraphModule(root, graph)


def _described(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Value(tuple(value.shape), tuple(value.stride()), value.dtype, value.device)


def _fake(value: Any) -> Any:
    if not isinstance(value, _Value):
        return value
    return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device=value.device)
