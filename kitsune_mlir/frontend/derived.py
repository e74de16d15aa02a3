"""What a model computes from its weights alone is taken out of the program: it is computed once, and when a weight changes.

Such are weights that a decomposition reorders (a transposed convolution's), batch norms that are multiplied into a convolution,
products of parameters, casts to narrower types. What only looks at a weight differently stays, for that costs a program
nothing; so does what would take much more memory than the weights that it is made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import fx

from kitsune_mlir.frontend import prepare
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.imported import dtype_name
from kitsune_mlir.frontend.source import target_name
from kitsune_mlir.runtime.derived import CASTS, FACTORIES, OPERATORS, VIEWS

__all__ = ["derive_weights"]

MOST_GROWTH = 2
"""Times the bytes of its sources that a derived weight may have ..."""
SMALL_BYTES = 1 << 16
"""... or so many."""
_WHERE = ("device", "layout", "pin_memory", "memory_format", "non_blocking")
"""Keyword arguments that say where a result is, and not what."""


def derive_weights(
    graph: fx.Graph, weights: dict[str, torch.Tensor], names: dict[str, str], changed: Set[str]
) -> dict[str, str]:
    """Replace what is computed from weights alone by new placeholders.

    Args:
        graph: of ATen's operators; changed in place.
        weights: placeholder name → the weight; the new ones are added, of device meta: a program computes them.
        names: the weights' names in the model, by placeholder; the new ones, named after their largest source, are added.
        changed: placeholders of weights that the model overwrites.

    Returns:
        The recipes of the new placeholders (`runtime.derived`).
    """
    own: dict[fx.Node, frozenset[fx.Node]] = {}  # nodes made of weights alone, and which
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in weights and node.name not in changed:
            own[node] = frozenset([node])
        elif (
            node.op == "call_function"
            and _is_allowed(node)
            and not _is_returned(node)
            and all(n in own for n in node.all_input_nodes)
        ):
            own[node] = frozenset[fx.Node]().union(*(own[n] for n in node.all_input_nodes))
    ends = [node for node, sources in own.items() if sources and any(user not in own for user in node.users)]
    worked: set[fx.Node] = set()
    for node in own:
        if node.op != "placeholder" and (_works(node) or not worked.isdisjoint(node.all_input_nodes)):
            worked.add(node)
    recipes: dict[str, str] = {}
    kept = list(dict.fromkeys(made for end in ends for made in _worth_keeping(end, own, worked)))
    # All recipes before any replacement: one that is part of another is named by what it is made of there.
    for node, recipe in [(node, _recipe(node, own, names)) for node in kept]:
        names_of = {source: names.get(source.name, source.name) for source in own if source in own[node]}
        value = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype, device="meta")
        place = prepare.add_constant(graph, weights, f"d_{node.name}", value)
        place.meta["stack_trace"] = node.meta.get("stack_trace")
        node.replace_all_uses_with(place)
        name = names_of[max(names_of, key=_bytes)] + ".derived"
        names[place.name] = name + "_" * sum(known.rstrip("_") == name for known in names.values())
        recipes[place.name] = recipe
    drop_dead(graph)
    return recipes


def _is_allowed(node: fx.Node) -> bool:
    name = target_name(node)
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or name not in OPERATORS or not (node.all_input_nodes or name in FACTORIES):
        return False
    try:
        _encoded([node.args, _kwargs(node)], lambda n: {})
    except TypeError:
        return False
    return value.layout == torch.strided


def _is_returned(node: fx.Node) -> bool:
    """Whether the model returns it: each call gives its caller a tensor of its own."""
    return any(user.op == "output" for user in node.users)


def _worth_keeping(end: fx.Node, own: Mapping[fx.Node, frozenset[fx.Node]], worked: Set[fx.Node]) -> Iterator[fx.Node]:
    """The last nodes on the way to `end` that work went into, and that do not repeat much of their sources."""
    open_, seen = [end], set()
    while open_:
        node = open_.pop()
        if node in seen or node not in worked or not own[node]:
            continue
        seen.add(node)
        most = max(SMALL_BYTES, MOST_GROWTH * sum(_bytes(source) for source in own[node]))
        if _repeats(node) or _bytes(node) > most:
            open_ += node.all_input_nodes
        else:
            yield node


def _works(node: fx.Node) -> bool:
    """Whether a program would spend time on a node: views and wider types are free where a number is read."""
    name = target_name(node)
    if name == "aten.clone.default":
        return not node.all_input_nodes[0].meta["val"].is_contiguous()
    return name not in VIEWS and not _repeats(node)


def _repeats(node: fx.Node) -> bool:
    """Whether the result is larger than what it is made of, and has nothing more."""
    name = target_name(node)
    if name in CASTS:
        return node.meta["val"].element_size() >= node.all_input_nodes[0].meta["val"].element_size()
    return name == "aten.expand.default"


def _bytes(node: fx.Node) -> int:
    return node.meta["val"].numel() * node.meta["val"].element_size()


def _recipe(node: fx.Node, own: Mapping[fx.Node, frozenset[fx.Node]], names: Mapping[str, str]) -> str:
    needed, open_ = {node}, [node]
    while open_:
        new = [n for n in open_.pop().all_input_nodes if n.op != "placeholder" and n not in needed]
        needed.update(new)
        open_ += new
    numbers: dict[fx.Node, int] = {}
    steps = []

    def reference(n: fx.Node) -> dict[str, Any]:
        return {"weight": names.get(n.name, n.name)} if n.op == "placeholder" else {"step": numbers[n]}

    for one in own:  # in the graph's order
        if one in needed:
            steps.append([target_name(one), *_encoded([list(one.args), _kwargs(one)], reference)])
            numbers[one] = len(steps) - 1
    return json.dumps(steps)


def _kwargs(node: fx.Node) -> dict[str, Any]:
    return {key: value for key, value in node.kwargs.items() if key not in _WHERE}


def _encoded(value: Any, reference: Any) -> Any:
    if isinstance(value, fx.Node):
        return reference(value)
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, dict):
        return {key: _encoded(part, reference) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(part, reference) for part in value]
    if isinstance(value, int | float | bool | None):
        return value
    raise TypeError(type(value).__name__)
