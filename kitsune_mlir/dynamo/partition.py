"""Cuts a graph into parts that programs run, and islands that PyTorch runs between them.

A node is in part n if n islands, one behind the other, lie on its way from the inputs: so parts are as few as they can be, and
none waits for a later one. Views cost nothing: each part has those that it needs, and those that lead to outputs or islands are
PyTorch's, which makes them what eager makes them.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

from kitsune_mlir.dynamo.randoms import is_random
from kitsune_mlir.dynamo.torch_api import graph_module

__all__ = ["NAMESPACES", "Partition", "is_made", "is_outside", "is_view", "partition", "views_in"]

aten = torch.ops.aten

NAMESPACES = ("aten", "prims", "kitsune")
"""Whose operators do nothing but what their schema says."""

Place = tuple[int, bool]
"""Number of the part; or of the part behind which an island comes, and True. Inputs come behind part -1."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """A graph cut into parts.

    Attributes:
        whole: what PyTorch runs: islands and views, and for each part a call of the module of its name, which gives a tuple.
        parts: the parts' graphs by name; inputs and outputs are tensors, with `meta["val"]`.
        islands: nodes of the graph that are in no part, but for views and writes to inputs.
    """

    whole: fx.GraphModule
    parts: dict[str, fx.GraphModule]
    islands: tuple[fx.Node, ...]


def views_in(gm: fx.GraphModule) -> list[int]:
    """Numbers of a graph's outputs that are views."""
    output = next(iter(gm.graph.find_nodes(op="output")))
    nodes = enumerate(output.args[0])  # type: ignore[arg-type]
    return [n for n, node in nodes if isinstance(node, fx.Node) and node.op == "call_function" and is_view(node)]


def is_view(node: fx.Node) -> bool:
    """Whether a node gives another look at its first operand's memory."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.arguments or not node.args:
        return False
    first = schema.arguments[0].alias_info
    return first is not None and not first.is_write and isinstance(node.args[0], fx.Node)


def is_made(node: fx.Node) -> bool:
    """Whether a node's value is made of nothing, and the same each time."""
    return node.op == "get_attr" or (
        isinstance(node.target, torch._ops.OpOverload) and not node.all_input_nodes and not _has_effects(node)
    )


def is_outside(node: fx.Node) -> bool:
    """Whether a node calls what is no operator of PyTorch's own that computes: nobody knows what else it does."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    return target.namespace not in NAMESPACES


def _has_effects(node: fx.Node) -> bool:
    """Whether an island must keep its place among others that do."""
    if is_outside(node):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and (is_random(node) or node.target._schema.is_mutable)


def partition(gm: fx.GraphModule, supported: Callable[[fx.Node], bool], regenerated: Iterable[int] = ()) -> Partition:
    """Cut a graph.

    Args:
        gm: functional, but that `copy_` writes to placeholders at its end; views may be added to it.
        supported: whether a node that computes may be in a part.
        regenerated: numbers of outputs that the caller makes himself as views of inputs, of which he needs shape and strides.
    """
    return _Cut(gm, supported, regenerated).result()


def _writes(node: fx.Node) -> bool:
    """Whether a node is a write to an input, at the end of the graph."""
    first = node.args[0] if node.args else None
    return node.target is aten.copy_.default and isinstance(first, fx.Node) and first.op == "placeholder"


def _places(graph: fx.Graph, supported: Callable[[fx.Node], bool]) -> dict[fx.Node, Place]:
    places: dict[fx.Node, Place] = {}
    effects = -1  # the place of the last island with effects
    for node in graph.nodes:
        if node.op == "placeholder" or is_made(node):
            places[node] = (-1, True)
        elif node.op == "call_function":
            given = [places[source] for source in node.all_input_nodes]
            if node.target is operator.getitem or (is_view(node) and supported(node)):
                places[node] = places[node.args[0]]  # type: ignore[index]
            elif _writes(node):  # what was there may be read until the end
                places[node] = (len(graph.nodes), True)
            elif supported(node):
                places[node] = (max((number + after for number, after in given), default=0), False)
            else:
                number = max((number for number, _ in given), default=-1)
                if _has_effects(node):
                    number = effects = max(number, effects)
                places[node] = (number, True)
    return places


class _Cut:
    """One graph being cut: from its end, so that what a part hands out is known when it is made."""

    def __init__(self, gm: fx.GraphModule, supported: Callable[[fx.Node], bool], regenerated: Iterable[int]):
        self.gm, self.supported, self.places = gm, supported, _places(gm.graph, supported)
        self.order = {node: n for n, node in enumerate(gm.graph.nodes)}
        self.output = next(iter(gm.graph.find_nodes(op="output")))
        self.handed: dict[int, dict[fx.Node, None]] = {}  # by part, what others need of it
        self.written: dict[int, list[fx.Node]] = {}  # by part, the writes to inputs that it does itself
        self.parts: dict[str, fx.GraphModule] = {}
        self.returned = list(self.output.args[0])  # type: ignore[arg-type]
        self._give_writes(regenerated)

    def result(self) -> Partition:
        gm, places = self.gm, self.places
        islands = [n for n in gm.graph.nodes if n.op == "call_function" and places[n][1] and not self._free(n)]
        alone = [n for n in islands if n.target is not operator.getitem and not _writes(n) and not is_view(n)]
        own = {write for writes in self.written.values() for write in writes}
        roots = [n for n in islands if n not in own] + [n for n in self.returned if isinstance(n, fx.Node)]
        outer = self._needed(roots, None)
        inputs: dict[int, list[fx.Node]] = {}
        for number in sorted({places[n][0] for n in places if not places[n][1]}, reverse=True):
            if self.handed.get(number) or self.written.get(number):
                inputs[number] = self._part(number)
        return Partition(self._whole(outer, inputs), self.parts, tuple(alone))

    def _free(self, node: fx.Node) -> bool:
        """Whether whoever needs a node can have it as his own."""
        if node.target is operator.getitem and is_view(node):
            return self._free(node.args[0])  # type: ignore[arg-type]
        return is_made(node) or (is_view(node) and self.supported(node))

    def _give_writes(self, regenerated: Iterable[int]) -> None:
        """Lets parts write to inputs, where nothing reads the input as it was after that."""
        for write in [n for n in self.gm.graph.nodes if n.op == "call_function" and _writes(n)]:
            changed, value = write.args[:2]
            assert isinstance(changed, fx.Node)
            if not isinstance(value, fx.Node) or self.places[value][1]:
                continue
            number = self.places[value][0]
            if any(self._reads_after(user, number) for user in changed.users if user is not write):
                continue
            if changed.meta["val"].dtype != value.meta["val"].dtype or changed.meta["val"].shape != value.meta["val"].shape:
                continue
            self.written.setdefault(number, []).append(write)
            for n in regenerated:
                self.returned[n] = self._of_input(self.returned[n], value, changed)

    def _of_input(self, node: Any, value: fx.Node, changed: fx.Node) -> Any:
        """An output that is a view of what is written to an input, as one of the input."""
        chain = []
        while isinstance(node, fx.Node) and node is not value and is_view(node):
            chain.append(node)
            node = node.args[0]
        if node is not value:
            return chain[0] if chain else node
        made = changed
        with self.gm.graph.inserting_before(self.output):
            for view in reversed(chain):
                made = self.gm.graph.node_copy(view, lambda n, given=view.args[0], own=made: own if n is given else n)
                self.places[made], self.order[made] = (len(self.order), True), len(self.order)
        return made

    def _reads_after(self, node: fx.Node, number: int) -> bool:
        """Whether a node, or one that reads a view that it is, runs after part `number`, or may."""
        if node.op == "output" or _writes(node):
            return True
        place, after = self.places[node]
        if self._free(node):
            return any(self._reads_after(user, number) for user in node.users)
        return place > number or (after and place >= number)

    def _needed(self, roots: Iterable[fx.Node], part: int | None) -> set[fx.Node]:
        """What one context holds to compute the roots; what it gets from parts is noted as handed out by them."""
        found, waiting = set[fx.Node](), list(roots)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            place, after = self.places[node]
            if self._free(node) or (is_view(node) or after if part is None else (place, after) == (part, False)):
                found.add(node)
                waiting += node.all_input_nodes
            elif part is None or not after:
                self.handed.setdefault(place, {})[node] = None
        return found

    def _part(self, number: int) -> list[fx.Node]:
        """Makes a part's graph; gives the nodes that are its inputs."""
        writes = self.written.get(number, [])
        handed = sorted(self.handed.get(number, ()), key=self.order.__getitem__)
        values = [write.args[1] for write in writes]
        own = sorted(self._needed([*handed, *values], number), key=self.order.__getitem__)  # type: ignore[list-item]
        taken = {source for node in (*own, *writes) for source in node.all_input_nodes} - set(own)
        inputs = sorted(taken, key=self.order.__getitem__)
        graph, place = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in inputs:
            place[node] = graph.placeholder(node.name)
            place[node].meta = dict(node.meta)
        for node in (*own, *writes):
            place[node] = graph.node_copy(node, place.__getitem__)
        graph.output(tuple(place[node] for node in handed))
        self.parts[f"part_{number}"] = graph_module(self.gm, graph)
        return inputs

    def _whole(self, outer: set[fx.Node], inputs: dict[int, list[fx.Node]]) -> fx.GraphModule:
        graph, place = fx.Graph(), {}
        for node in self.gm.graph.find_nodes(op="placeholder"):
            place[node] = graph.node_copy(node)
        steps = [(self.places[node][0], 1, self.order[node], node) for node in outer if node.op != "placeholder"]
        steps += [(number, 0, 0, None) for number in inputs]
        for number, _, _, node in sorted(steps, key=lambda step: step[:3]):
            if node is not None:
                place[node] = graph.node_copy(node, place.__getitem__)
                continue
            call = graph.call_module(f"part_{number}", tuple(place[source] for source in inputs[number]))
            for n, handed in enumerate(sorted(self.handed.get(number, ()), key=self.order.__getitem__)):
                place[handed] = graph.call_function(operator.getitem, (call, n))
                place[handed].meta = dict(handed.meta)
        graph.output(fx.map_arg(tuple(self.returned), place.__getitem__))
        root = torch.nn.Module()
        for node in graph.find_nodes(op="get_attr"):
            setattr(root, str(node.target), getattr(self.gm, str(node.target)))
        for name in self.parts:
            setattr(root, name, torch.nn.Identity())
        return fx.GraphModule(root, graph)
