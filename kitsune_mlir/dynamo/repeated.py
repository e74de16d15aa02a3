"""An operator that stands for a graph: what is done alike to many tensors is traced once, and written out for each behind
AOTAutograd, which traces every node that it is given, twice.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.torch_api import compiling, functional, tracing_context
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.own_operators import define, implement

__all__ = ["OtherTensors", "RepeatedGraph", "layout_of", "written_out"]


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatedGraph:
    """A functional graph of ATen's operators, for tensors like those that it was made for.

    Attributes:
        graph: of tensors; it gives new values for some of them, then results. Nodes have their results without values as
            metadata.
        changed: the numbers of the tensors that have new values.
        number: the operator's argument, for as long as this is there.
    """

    graph: fx.GraphModule
    changed: tuple[int, ...]
    number: int

    @functools.cached_property
    def inputs(self) -> list[fx.Node]:
        """Nodes of the graph's inputs."""
        return list(self.graph.graph.find_nodes(op="placeholder"))

    @functools.cached_property
    def results(self) -> list[fx.Node]:
        """Nodes of what it gives beside new values."""
        (output,) = self.graph.graph.find_nodes(op="output")
        return list(output.args[0][len(self.changed) :])

    @staticmethod
    def of(graph: fx.GraphModule) -> RepeatedGraph:
        """Of a graph that may change its inputs in place; `torch_api.tracing_lock` is held."""
        with tracing_context(graph), torch.no_grad():
            made = functional(graph, traced_table(late=True))
        inputs = list(made.graph.find_nodes(op="placeholder"))
        writes = list(made.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default))
        (output,) = made.graph.find_nodes(op="output")
        output.args = ([*(write.args[1] for write in writes), *output.args[0]],)
        changed = tuple(inputs.index(write.args[0]) for write in writes)
        for write in writes:
            made.graph.erase_node(write)
        made.recompile()
        found = RepeatedGraph(made, changed, next(_numbers))
        _GRAPHS[found.number] = found
        return found

    def __call__(self, tensors: Sequence[Tensor]) -> None:
        """Change tensors as the graph says, by one node of the graph that is being traced, which must hold this."""
        for n, value in zip(self.changed, torch.ops.kitsune.repeated(list(tensors), self.number), strict=True):
            tensors[n].copy_(value)


_numbers = itertools.count()
_GRAPHS: weakref.WeakValueDictionary[int, RepeatedGraph] = weakref.WeakValueDictionary()


class OtherTensors(Exception):
    """A graph that has results is asked for tensors unlike those that it was made for: operators become other ones of them."""


def layout_of(node: fx.Node) -> Any:
    """All of a node's tensor that decides what becomes of an operator which is given it."""
    value = node.meta["val"]
    return value.shape, value.stride(), value.dtype


def _shaped(tensors: Sequence[Tensor], graph: int) -> list[Tensor]:
    repeated = _GRAPHS[graph]
    changed = [torch.empty_like(tensors[n]) for n in repeated.changed]
    values = [node.meta["val"] for node in repeated.results]
    return changed + [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta") for v in values]


def _computed(tensors: Sequence[Tensor], graph: int) -> list[Tensor]:
    return list(_GRAPHS[graph].graph(*tensors))


define("repeated(Tensor[] tensors, int graph) -> Tensor[]", _shaped)  # type: ignore[arg-type]
implement("repeated", _computed)  # type: ignore[arg-type]


def written_out(gm: fx.GraphModule) -> None:
    """Put in the place of each node that stands for a graph that graph's nodes.

    Raises:
        OtherTensors: AOTAutograd has made others of what such a node takes.
    """
    nodes = list(gm.graph.find_nodes(op="call_function", target=torch.ops.kitsune.repeated.default))
    if not nodes:
        return
    mode = next(node.meta["val"].fake_mode for node in gm.graph.find_nodes(op="placeholder"))
    with compiling():
        for node in nodes:
            tensors, repeated = node.args[0], _GRAPHS[node.args[1]]
            if repeated.results and [*map(layout_of, tensors)] != [*map(layout_of, repeated.inputs)]:
                raise OtherTensors
            with gm.graph.inserting_before(node):
                results = _copied(repeated.graph, gm, tensors, mode)
            for user in list(node.users):  # each takes one of the results
                _replace(user, results[user.args[1]])
            gm.graph.erase_node(node)
    gm.recompile()


def _replace(node: fx.Node, by: fx.Node) -> None:
    """Put a node in another's place, and in that of copies of it that are like it."""
    for user in list(node.users):
        if user.target is torch.ops.aten.copy.default and user.args[1] is node:
            copy, value = user.meta["val"], by.meta["val"]
            if (copy.dtype, copy.shape, copy.stride()) == (value.dtype, value.shape, value.stride()):
                _replace(user, by)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _copied(graph: fx.GraphModule, into: fx.GraphModule, inputs: Sequence[fx.Node], mode: FakeTensorMode) -> list[fx.Node]:
    """Copies of a graph's nodes at the insertion point of another, for these inputs; the nodes of its results."""
    copies: dict[fx.Node, fx.Node] = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for node in graph.graph.nodes:
        if node.op == "output":
            return [copies[result] for result in node.args[0]]
        if node.op == "placeholder":
            continue
        # Without the number: of names that end in one, torch.fx tries all numbers from one on.
        name, given = node.name.rstrip("_0123456789"), fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        copy = copies[node] = into.graph.create_node(node.op, node.target, *given, name, node.type)
        copy.meta = dict(node.meta)
        if node.op == "get_attr":
            copy.target = f"_repeated_{len(copies)}_{id(graph)}"
            setattr(into, copy.target, getattr(graph, node.target))
        else:
            copy.meta["val"] = _value(node, copy, mode)
    raise AssertionError("a graph ends with its output")


def _value(node: fx.Node, copy: fx.Node, mode: FakeTensorMode) -> Any:
    """What the copy of a node gives: with memory of its own or an operand's, as which tensors share it is read off there."""
    value = node.meta["val"]
    given = [tensor for operand in node.all_input_nodes for tensor in tree_leaves(operand.meta["val"])]
    shared = {tensor.untyped_storage()._cdata for tensor in given if isinstance(tensor, Tensor)}
    if isinstance(value, FakeTensor) and value.untyped_storage()._cdata not in shared:
        # An operator's own way to it takes a third of a millisecond.
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, empty, value.device)

    def meta(operand: fx.Node) -> Any:
        return operand.meta["val"]

    operator: Any = node.target
    with mode:
        return operator(*fx.map_arg(copy.args, meta), **fx.map_arg(copy.kwargs, meta))
