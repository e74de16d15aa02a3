"""A graph of AOTAutograd as a function that calls programs: whole if it can be, else cut into parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.partition import Partition, is_view, partition
from kitsune_mlir.dynamo.parts import Part, compile_part
from kitsune_mlir.dynamo.randoms import draw_in_front, is_random
from kitsune_mlir.dynamo.report import GraphReport, Island
from kitsune_mlir.errors import FrontendError, KitsuneError, UnsupportedError
from kitsune_mlir.frontend.aten import late_operators
from kitsune_mlir.frontend.source import origin_of_node, target_name
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options

__all__ = ["compile_graph"]

ROUNDS = 24
"""Partitions that are tried, each without an operator that the one before had to give up."""

_NAMESPACES = ("aten", "prims", "kitsune")


def compile_graph(
    gm: fx.GraphModule,
    weights: Set[str],
    machine: Target,
    options: Options,
    report: GraphReport,
    regenerated: Set[int] = frozenset(),
    graphs: GraphOptions | None = None,
) -> Callable[..., Any]:
    """Compile a graph of static shapes.

    Args:
        gm: of ATen's operators, functional but for `copy_` to inputs at its end; it is changed.
        weights: names of placeholders that are the same tensors at most calls.
        report: what comes out of it is written there.
        regenerated: numbers of outputs that the caller makes himself as views of inputs.
        graphs: how it is to be cut.

    Returns:
        A function of flat inputs that gives the outputs as a sequence.
    """
    start = time.perf_counter()
    draw_in_front(gm.graph)
    gm.graph.eliminate_dead_code()
    report.nodes = sum(node.op == "call_function" for node in gm.graph.nodes)
    written = {node.args[0].name for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    graphs = graphs or GraphOptions()
    refused = {name: "option 'run_in_torch' names it" for name in graphs.run_in_torch}
    parts: dict[str, Part] = {}
    cut = partition(gm, lambda node: _reason(node, refused) is None, regenerated)
    for _ in range(ROUNDS):
        problem = None
        for name, graph in cut.parts.items():
            # Before it is compiled, which changes it.
            operators = {node.name: str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
            if cut.islands and len(operators) < graphs.min_part:
                problem = UnsupportedError(f"a part of {len(operators)} operators", f"option 'min_part' is {graphs.min_part}")
                _refuse(operators, problem, refused)
                break
            try:
                parts[name] = compile_part(graph, weights - written, machine, options)
            except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
                problem = error
                _refuse(operators, error, refused)
                break
        if problem is None:
            break
        parts.clear()
        cut = partition(gm, lambda node: _reason(node, refused) is None, regenerated)
    else:
        report.gave_up = f"after {ROUNDS} attempts there are still operators that cannot be compiled; the last: {problem}"
        return gm.forward
    report.islands = [
        Island(target_name(node), _reason(node, refused) or "it is among what others are", origin_of_node(node))
        for node in cut.islands
    ]
    report.programs = [parts[name].program for name in sorted(parts, key=lambda name: int(name.removeprefix("part_")))]
    report.seconds = time.perf_counter() - start
    return _assembled(cut, parts)


def _assembled(cut: Partition, parts: dict[str, Part]) -> Callable[..., Any]:
    whole = cut.whole
    for name, part in parts.items():
        setattr(whole, name, part)
    output = next(iter(whole.graph.find_nodes(op="output")))
    inputs, returned = list(whole.graph.find_nodes(op="placeholder")), list(output.args[0])
    if len(parts) == 1 and len(whole.graph.nodes) == len(inputs) + len(returned) + 2:
        call = next(iter(whole.graph.find_nodes(op="call_module")))
        if list(call.args) == inputs and [getattr(node, "args", None) for node in returned] == [
            (call, n) for n in range(len(returned))
        ]:
            return parts["part_0"].forward
    return whole.forward


def _reason(node: fx.Node, refused: dict[str, str]) -> str | None:
    """Why a node is not put into a part; None if it is."""
    target = node.target
    if node.name in refused:
        return refused[node.name]
    if isinstance(node.args[0] if node.args else None, fx.Node) and target_name(node) == "getitem":
        return None if is_view(node) else _reason(node.args[0], refused)  # type: ignore[arg-type]
    if not isinstance(target, torch._ops.OpOverload):
        return f"it is no operator of ATen but {getattr(target, '__name__', target)}, which PyTorch runs"
    if target.namespace not in _NAMESPACES:
        return "it is an operator of a library, which PyTorch runs"
    if is_random(node):
        return "it draws random numbers, which PyTorch does"
    if target._schema.is_mutable:
        return "it changes a tensor in place"
    if str(target) in refused:
        return refused[str(target)]
    for source in (node, *node.all_input_nodes):
        for value in tree_leaves(source.meta.get("val")):
            if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_complex()):
                kind = value.dtype if value.layout == torch.strided else value.layout
                return f"programs have no tensors of {kind}"
    return None


def _refuse(operators: Mapping[str, str], error: Exception, refused: dict[str, str]) -> None:
    """Take out of the next partition what an error names, else what the frontend takes apart itself, else all of the part.

    Args:
        operators: of the part, by name of the node.
    """
    said = str(error).strip() if isinstance(error, KitsuneError) else f"a bug in the compiler: {type(error).__name__}: {error}"
    named = error.operator if isinstance(error, FrontendError) else None
    if named is not None and named in operators.values():
        refused[named] = said
        return
    late = {str(op) for op in late_operators()} & set(operators.values()) if named is not None else set()
    refused.update(dict.fromkeys(late or operators, said))
