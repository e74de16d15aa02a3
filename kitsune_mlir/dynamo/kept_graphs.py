"""Graphs of Dynamo's that are one program, and views of its results: found on disk before AOTAutograd traces them.

Tracing a graph takes longer than reading its program. What is kept says which program it is (`cache/programs.py` has it), and
how that is called. It is kept for inference alone, where a call is a call of the program: no input is changed, outputs are new
tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_structure

from kitsune_mlir.cache.compiled import program_cache, warn_if_slow
from kitsune_mlir.cache.programs import Source
from kitsune_mlir.cache.store import Store, store_of
from kitsune_mlir.dynamo.graph_key import key_text
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.dynamo.torch_api import compiling
from kitsune_mlir.errors import TargetError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.options import Options, Phases
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.settings import choose_target
from kitsune_mlir.sized.part import Part

__all__ = ["KeptGraph", "WholeGraph", "called", "kept_graph", "whole_graph"]

KIND = "graphs"

_VIEWS = ("aten", "prims")
"""Namespaces of operators that make views."""

_Sizes = tuple[int, ...]
_Output = tuple[int, tuple[tuple[str, Any], ...]]


@dataclasses.dataclass(frozen=True)
class WholeGraph:
    """How a graph's program is called.

    Attributes:
        program: the key of the program.
        takes: numbers of the graph's inputs that it takes.
        outputs: which of its results each output is, and what views are made of that: names of operators, and their arguments.
        names, weights, orders, made: as `Part` takes them.
        static: numbers of the inputs that are the same tensors at most calls.
        nodes, between: as `GraphReport` has them.
        stays: why calls cannot be recorded in a CUDA graph; None if they can, empty where that was not asked for.
    """

    program: str
    takes: _Sizes
    outputs: tuple[_Output, ...]
    names: tuple[str, ...]
    weights: tuple[str, ...]
    orders: tuple[_Sizes | None, ...]
    made: tuple[tuple[_Sizes, _Sizes, _Sizes | None], ...]
    static: _Sizes
    nodes: int
    between: int
    stays: str | None


def whole_graph(run: Callable[..., Any], static: Sequence[int], report: GraphReport, stays: str | None) -> WholeGraph | None:
    """How a compiled graph's program is called; None where it is not one program that is kept, and views of what that gives.

    Args:
        run: as `compile_graph` gives it.
    """
    held = getattr(run, "__self__", None)
    if isinstance(held, Part):
        part, takes = held, tuple(range(len(held.given[0])))
        outputs: tuple[_Output, ...] | None = tuple((n, ()) for n in range(len(held.given[3])))
    elif isinstance(held, fx.GraphModule) and len(held.graph.find_nodes(op="call_module")) == 1:
        (call,) = held.graph.find_nodes(op="call_module")
        part, outputs = getattr(held, str(call.target)), _outputs(held.graph, call)
        places = {node: n for n, node in enumerate(held.graph.find_nodes(op="placeholder"))}
        if any(node not in places for node in call.args):
            return None
        takes = tuple(places[node] for node in call.args)
    else:
        return None
    if outputs is None or not isinstance(part, Part) or part.program.kept_as is None:
        return None
    names, weights, orders, given, _ = part.given
    made = tuple((tuple(size), tuple(stride), None if order is None else tuple(order)) for size, stride, order in given)
    parts = takes, outputs, names, tuple(sorted(weights)), orders, made
    return WholeGraph(part.program.kept_as, *parts, tuple(static), report.nodes, report.between, stays)


def _outputs(graph: fx.Graph, call: fx.Node) -> tuple[_Output, ...] | None:
    """Which result of the program each output is, and what views are made of it; None where an output is something else."""
    output = next(iter(graph.find_nodes(op="output")))
    found, seen = [], {call, output, *graph.find_nodes(op="placeholder")}
    for node in output.args[0]:  # type: ignore[union-attr]
        views: list[tuple[str, list[Any]]] = []
        while isinstance(node, fx.Node) and isinstance(node.target, torch._ops.OpOverload):
            args = list(node.args[1:])
            if not is_view(node) or node.target.namespace not in _VIEWS or node.kwargs or json.loads(_json(args)) != args:
                return None
            views.insert(0, (str(node.target), args))
            seen.add(node)
            node = node.args[0]
        if not isinstance(node, fx.Node) or node.target is not operator.getitem or node.args[0] is not call:
            return None
        seen.add(node)
        found.append((node.args[1], tuple(views)))
    return tuple(found) if seen == {*graph.nodes} else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _json(args: Sequence[Any]) -> str:
    """Arguments as text; they come back as others where they are no plain numbers and lists of these."""
    return json.dumps(args, default=str)


@dataclasses.dataclass(frozen=True)
class KeptGraph:
    """Where a graph is kept."""

    store: Store
    key: str
    machine: Target
    options: Options

    def keep(self, whole: WholeGraph) -> None:
        """Keep it."""
        text = json.dumps(dataclasses.asdict(whole))
        self.store.write(KIND, self.key, f"{_digest(text)}\n{text}".encode())

    def find(self, inputs: Sequence[Any]) -> tuple[WholeGraph, Part] | None:
        """How it is called (`called` does that), and the program; None if one of them is not there.

        Args:
            inputs: of the graph.
        """
        data = self.store.read(KIND, self.key)
        if data is None:
            return None
        try:
            digest, _, text = data.decode().partition("\n")
            if digest != _digest(text):
                raise ValueError("a kept graph was altered")
            whole: WholeGraph = record(WholeGraph, json.loads(text), "a kept graph")
        except ValueError:  # of JSON and of UTF-8, too
            self.store.remove(KIND, self.key)
            return None
        phases = Phases(self.options.on_phase)
        with compiling():
            part = phases.run("import", self._part, whole, inputs)
        if part is None:
            return None
        part.program.seconds = dict(phases.seconds)
        warn_if_slow(part.program, stacklevel=5)
        return whole, part

    def _part(self, whole: WholeGraph, inputs: Sequence[Any]) -> Part | None:
        weights = {
            name: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            for name, value in zip(whole.names, [inputs[n] for n in whole.takes], strict=True)
            if name in whole.weights
        }
        given = len(whole.names) - len(weights)
        specs = tree_structure(((0,) * given, {})), tree_structure((0,) * len(whole.made))
        names = tuple(name for name in whole.names if name not in weights)
        cache = program_cache(self.machine, self.options)
        kept = cache.find(whole.program, Source(None, weights, weights.keys(), specs, names)) if cache is not None else None
        if kept is None:
            return None
        program = kept.program.uncounted()
        program.kept_as = whole.program
        return Part(program, whole.names, set(whole.weights), whole.orders, whole.made, self.options.threads)


def called(whole: WholeGraph, part: Part, count: int) -> Callable[..., Any]:
    """A function of the graph's inputs, of which there are so many, as `compile_graph` gave it."""
    if whole.takes == tuple(range(count)) and whole.outputs == tuple((n, ()) for n in range(len(whole.made))):
        return part.forward
    graph = fx.Graph()
    inputs = [graph.placeholder(f"input_{n}") for n in range(count)]
    call = graph.call_module("part_0", tuple(inputs[n] for n in whole.takes))
    returned = []
    for n, views in whole.outputs:
        node = graph.call_function(operator.getitem, (call, n))
        for name, args in views:
            node = graph.call_function(operator.attrgetter(name)(torch.ops), (node, *args))
        returned.append(node)
    graph.output(tuple(returned))
    return fx.GraphModule({"part_0": part}, graph).forward


def kept_graph(gm: fx.GraphModule, inputs: Sequence[Any], graphs: GraphOptions, options: Options) -> KeptGraph | None:
    """Where a graph that Dynamo captured for inference is kept; None where it is to be traced each time.

    Args:
        inputs: one for each placeholder, without values.
    """
    store = store_of(options.cache, options.cache_dir)
    if store is None or options.on_remark is not None or (text := key_text(gm, inputs)) is None:
        return None
    try:
        machine = find_target(choose_target(gm, inputs))
    except TargetError:
        return None
    cache = program_cache(machine, options)
    source = Source("\0".join(["a graph of Dynamo's", repr(graphs), text]), {}, frozenset(), (None, None), ())
    key = cache.key(source) if cache is not None else None
    return KeptGraph(store, key, machine, options) if key is not None else None
