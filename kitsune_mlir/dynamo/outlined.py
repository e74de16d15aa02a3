"""A traced graph in which one node stands for each of the layers that are alike (`repeated.RepeatedGraph`).

AOTAutograd then takes one of them apart. Layers are found as stretches of nodes that repeat themselves at once: operators with
the same constants, from the same source line, of tensors of the same shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.repeated import RepeatedGraph, layout_of
from kitsune_mlir.dynamo.repeats import Repeat, repeats
from kitsune_mlir.dynamo.torch_api import graph_module

__all__ = ["outlined"]

LEAST = 100
"""Nodes that a stretch of layers saves, if it is to be outlined."""

NEAR = 32
"""Nodes between an operand and its use, up to which two nodes are unlike if it is another number."""


def outlined(gm: fx.GraphModule) -> tuple[fx.GraphModule, list[RepeatedGraph]]:
    """A graph that does what one of `torch_api.traced_whole` does, and what has to be held as long as it is used.

    `torch_api.tracing_lock` is held. Where nothing repeats itself the graph is the same one.
    """
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    if not all(map(_is_known, nodes)):
        return gm, []
    place = {node: n for n, node in enumerate(nodes)}
    kinds, memory = [_kind(node, place) for node in nodes], Memory(gm.graph)
    calls: dict[fx.Node, tuple[Block, RepeatedGraph, Sequence[int]]] = {}
    held: list[RepeatedGraph] = []
    for repeat in repeats(kinds, LEAST):
        alike: dict[Any, list[Block]] = {}
        for block in _blocks(nodes, place, repeat):
            alike.setdefault(block.signature, []).append(block)
        for some in alike.values():
            results = sorted({n for block in some for n in block.results})
            if len(some) > 1 and all(_may_stand_alone(block, results, memory) for block in some):
                repeated = RepeatedGraph.of(some[0].graph(gm, results))
                if [*map(layout_of, repeated.results)] != [layout_of(some[0].nodes[n]) for n in results]:
                    # Taken apart, an operator gives a tensor of another type or layout: what reads it was traced for others.
                    return gm, []
                held.append(repeated)
                calls |= {block.nodes[0]: (block, repeated, results) for block in some}
    return (_written(gm, calls), held) if calls else (gm, [])


def _is_known(node: fx.Node) -> bool:
    """Whether it is known which of its tensors a node changes."""
    return node.target is operator.getitem or (
        isinstance(node.target, torch._ops.OpOverload) and torch.Tag.inplace_view not in node.target.tags
    )


def _shape(node: fx.Node) -> Any:
    """What a node gives, but for values."""
    leaves = tree_leaves(node.meta.get("val"))
    return tuple(
        (v.shape, v.stride(), v.dtype, v.device, v.storage_offset()) if isinstance(v, Tensor) else str(v) for v in leaves
    )


def _kind(node: fx.Node, place: Mapping[fx.Node, int]) -> Any:
    """What is equal of nodes that may be at the same place of layers that are alike."""

    def operand(given: fx.Node) -> str:
        distance = place[node] - place.get(given, -NEAR)
        return f"%{distance}" if distance < NEAR else f"${_shape(given)}"

    wired = str(fx.map_arg((node.args, node.kwargs), operand))
    return node.target, wired, _shape(node), node.meta.get("stack_trace"), node.target is torch.ops.kitsune.repeated.default


class Block:
    """Nodes that stand one behind the other.

    Attributes:
        nodes: all of them.
        inputs: nodes outside that they take, by first use.
        results: numbers of those that others take.
        signature: what is equal of blocks that do the same.
    """

    def __init__(self, nodes: Sequence[fx.Node]):
        self.nodes = nodes
        own = {node: n for n, node in enumerate(nodes)}
        numbers: dict[fx.Node, int] = {}

        def name(node: fx.Node) -> str:
            return f"%{own[node]}" if node in own else f"${numbers.setdefault(node, len(numbers))}"

        wired = tuple([(node.target, str(fx.map_arg((node.args, node.kwargs), name))) for node in nodes])
        self.inputs = list(numbers)
        self.results = [n for n, node in enumerate(nodes) if any(user not in own for user in node.users)]
        self.signature = wired, tuple(map(_shape, (*nodes, *self.inputs)))

    def graph(self, root: fx.GraphModule, results: Sequence[int]) -> fx.GraphModule:
        """The nodes as a graph of their inputs."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {"val": node.meta["val"]}
        for node in self.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[self.nodes[n]] for n in results))
        return graph_module(root, graph)


def _blocks(nodes: Sequence[fx.Node], place: Mapping[fx.Node, int], repeat: Repeat) -> list[Block]:
    """A stretch cut into its layers, where fewest tensors go from one to the next and nothing else does."""
    crossing = {n: 0 for n in range(repeat.start, repeat.start + repeat.period)}
    for n, node in enumerate(nodes[: repeat.start + repeat.period]):
        last = max((place.get(user, len(nodes)) for user in node.users), default=n)
        alone = isinstance(node.meta.get("val"), Tensor)
        for cut in range(max(n + 1, repeat.start), min(last + 1, repeat.start + repeat.period)):
            crossing[cut] += 1 if alone else len(nodes)
    start = min(crossing, key=lambda n: (crossing[n], n))
    cuts = range(start, repeat.stop - repeat.period + 1, repeat.period)
    return [Block(nodes[cut : cut + repeat.period]) for cut in cuts]


class Memory:
    """Which nodes of a graph have and change which memory; places of nodes in the whole graph."""

    def __init__(self, graph: fx.Graph):
        self.place = {node: n for n, node in enumerate(graph.nodes)}
        self.sharing: dict[int, list[fx.Node]] = {}
        self.writes: dict[int, list[tuple[fx.Node, fx.Node]]] = {}
        for node in graph.nodes:
            for number in self.of(node):
                self.sharing.setdefault(number, []).append(node)
            for changed in _changed(node):
                for number in self.of(changed):
                    self.writes.setdefault(number, []).append((node, changed))

    @staticmethod
    def of(node: fx.Node) -> set[int]:
        """The memories of what a node gives."""
        return {v.untyped_storage()._cdata for v in tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)}


def _changed(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that a node changes in place."""
    schema = getattr(node.target, "_schema", None)
    if node.op == "call_function" and schema is not None and schema.is_mutable:
        for n, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[n] if n < len(node.args) else node.kwargs.get(argument.name)
                yield from [leaf for leaf in tree_leaves(given) if isinstance(leaf, fx.Node)]


def _may_stand_alone(block: Block, results: Sequence[int], memory: Memory) -> bool:
    """Whether nobody sees that a block's results are tensors of their own, and that it changes its inputs at its end."""
    nodes, inputs = block.nodes, block.inputs
    if any(node.target is torch.ops.kitsune.repeated.default for node in nodes):
        return False  # it does not have nodes itself
    values = [node.meta.get("val") for node in (*inputs, *(nodes[n] for n in results))]
    tensors = [value for value in values if isinstance(value, Tensor) and value.layout == torch.strided]
    if len(tensors) < len(values) or len({tensor.device for tensor in tensors}) > 1:
        return False
    given = [number for node in inputs for number in memory.of(node)]
    made = [number for n in results for number in memory.of(nodes[n])]
    own, place, begin = set(nodes), memory.place, memory.place[nodes[0]]
    for number in {*given, *made}:
        writes = [(node, changed) for node, changed in memory.writes.get(number, ()) if place[node] >= begin]
        if not writes:
            continue
        if any(node in own for node, _ in writes) and number in given and (given.count(number) > 1 or number in made):
            return False
        if number not in made or (number not in given and made.count(number) == 1):
            continue
        # A result is another look at memory that is changed later: all who look at it must be through by then.
        first, changed = writes[0]
        if number not in given or changed.op != "placeholder":
            return False
        looks = [node for node in memory.sharing[number] if node.op != "placeholder" and place[node] < place[first]]
        if any(place[user] > place[first] for look in looks for user in look.users):
            return False
    return True


def _written(gm: fx.GraphModule, calls: Mapping[fx.Node, tuple[Block, RepeatedGraph, Sequence[int]]]) -> fx.GraphModule:
    """A graph with calls in the place of blocks, by first node of the block."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    inside = {node for block, _, _ in calls.values() for node in block.nodes}
    for node in gm.graph.nodes:
        if node in calls:
            block, repeated, results = calls[node]
            given = [copies[one] for one in block.inputs]
            call = graph.call_function(torch.ops.kitsune.repeated.default, (given, repeated.number))
            for n, changed in enumerate(repeated.changed):
                graph.call_function(
                    torch.ops.aten.copy_.default, (given[changed], graph.call_function(operator.getitem, (call, n)))
                )
            for n, result in enumerate(results, len(repeated.changed)):
                copies[block.nodes[result]] = graph.call_function(operator.getitem, (call, n))
        elif node not in inside:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph_module(gm, graph)
