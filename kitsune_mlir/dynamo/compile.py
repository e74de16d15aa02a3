"""A graph of AOTAutograd as a function that calls programs: whole if it can be, else cut into parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.decisions import copied, text_of_graph
from kitsune_mlir.dynamo.devices import made_in_place
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.partition import NAMESPACES, Partition, is_view, partition
from kitsune_mlir.dynamo.parts import NoPart, compile_part
from kitsune_mlir.dynamo.peak import peak_bytes
from kitsune_mlir.dynamo.randoms import draw_in_front, is_random
from kitsune_mlir.dynamo.recorded import written_in
from kitsune_mlir.dynamo.report import GraphReport, Island
from kitsune_mlir.dynamo.strides import without_empty_views
from kitsune_mlir.dynamo.timed_choice import Peer, Rules, TimedChoice
from kitsune_mlir.dynamo.worth import computing, seconds_in_program, seconds_in_pytorch
from kitsune_mlir.errors import FrontendError, KitsuneError
from kitsune_mlir.frontend.aten import late_operators
from kitsune_mlir.frontend.source import origin_of_node, target_name
from kitsune_mlir.frontend.valid_rows import without_valid_rows
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.arguments import copied_uncounted
from kitsune_mlir.runtime.weights import WeightCopy
from kitsune_mlir.sized.part import Part

__all__ = ["DRAWS", "compile_graph", "copies_in"]

DRAWS = "it draws random numbers, which PyTorch does"
DEVICES = ("cpu", "cuda")
"""Kinds of devices that programs run on."""
ROUNDS = 24
"""Partitions that are tried, each without an operator that the one before had to give up."""


def compile_graph(
    gm: fx.GraphModule,
    weights: Set[str],
    machine: Target,
    options: Options,
    report: GraphReport,
    regenerated: Set[int] = frozenset(),
    graphs: GraphOptions = GraphOptions(),  # noqa: B008  (it is frozen)
    rules: Rules | None = None,
    compile_part: Callable[..., Part] = compile_part,
) -> Callable[..., Any]:
    """Compile a graph of static shapes.

    Args:
        gm: of ATen's operators, functional but for `copy_` to inputs at its end; it is changed.
        weights: names of placeholders that are the same tensors at most calls.
        report: what comes out of it is written there.
        regenerated: numbers of outputs that the caller makes himself as views of inputs.
        graphs: how it is to be cut.
        rules: how parts that are not all of the graph are timed beside PyTorch; None where they are not.
        compile_part: as `parts.compile_part`; a `NoPart` of it is not dealt with.

    Returns:
        A function of flat inputs that gives the outputs as a sequence.
    """
    start = time.perf_counter()
    draw_in_front(gm.graph)
    without_empty_views(gm.graph)
    made_in_place(gm.graph)
    gm.graph.eliminate_dead_code()
    report.nodes = sum(node.op == "call_function" for node in gm.graph.nodes)
    written = {node.args[0].name for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)}
    refused = {name: "option 'run_in_torch' names it" for name in graphs.run_in_torch}
    known: dict[str, Part] = {}  # by the part's text: most parts stay as they are when another one is cut
    problem: Exception | None = None
    for _ in range(ROUNDS):
        cut = partition(gm, lambda node: _reason(node, refused) is None, regenerated)
        if cut.islands and without_valid_rows(gm.graph):  # PyTorch looks at all rows, at indices among them
            continue
        parts, copies, problem = dict[str, Part](), dict[str, fx.GraphModule](), None
        small: dict[str, str] = {}
        for name, graph in cut.parts.items():
            # Before it is compiled, which changes it.
            if cut.islands:
                small.update(_too_small(graph.graph, machine, graphs))
            operators = {node.name: str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
            text = str(graph.graph)
            if rules is not None:
                copies[name] = copied(graph)
            try:
                if text not in known:
                    known[text] = compile_part(graph, weights - written, machine, options)
                parts[name] = known[text]
            except NoPart:
                raise
            except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
                problem = error
                _refuse(operators, error, refused)
                break
        if problem is None and not small:
            break
        if problem is None:  # not before all that cannot be compiled is known, which has other reasons
            refused.update(small)
    else:
        report.gave_up = f"after {ROUNDS} attempts there are still operators that cannot be compiled; the last: {problem}"
        return gm.forward
    report.islands = [Island(target_name(node), _reason(node, refused) or "", origin_of_node(node)) for node in cut.islands]
    report.programs = [parts[name].program for name in sorted(parts, key=lambda name: int(name.removeprefix("part_")))]
    report.between = peak_bytes(cut.whole.graph)
    report.seconds = time.perf_counter() - start
    counts_changes = report.kind == "backward"  # of inputs; before the others AOTAutograd counts them
    if not counts_changes:
        for program in report.programs:
            program.uncounted()
    if rules is None or (len(parts) == 1 and not cut.islands):
        return _assembled(cut, parts, counts_changes)
    timed = {name: _timed(name, part.forward, copies[name], rules, report) for name, part in parts.items()}
    return _assembled(cut, timed, counts_changes)


def copies_in(run: Callable[..., Any]) -> Iterator[WeightCopy]:
    """Of a function that `compile_graph` gave, the copies of weights that it used in its last call."""
    owner = getattr(run, "__self__", run)
    for held in [owner, *vars(owner).values(), *getattr(owner, "_modules", {}).values()]:
        part = getattr(held.own, "__self__", None) if isinstance(held, TimedChoice) else held
        if isinstance(part, Part):
            yield from part.copies()


def _too_small(graph: fx.Graph, machine: Target, options: GraphOptions) -> Iterator[tuple[str, str]]:
    """The operators of a part that is to run in PyTorch, by name of their nodes, with the reason."""
    own = computing(graph)
    many = f"a part of {len(own)} operators" if len(own) != 1 else "a part of one operator"
    if options.min_part is not None:
        why = f"{many}: option 'min_part' is {options.min_part}" if len(own) < options.min_part else ""
    else:
        program, pytorch = seconds_in_program(graph, machine), seconds_in_pytorch(graph, machine)
        why = f"{many} takes {1e6 * program:.1f} us in a program, {1e6 * pytorch:.1f} us in PyTorch (predicted)"
        why = why if pytorch < program else ""
    return ((node.name, why) for node in own if why)


def _timed(name: str, run: Callable[..., Any], gm: fx.GraphModule, rules: Rules, report: GraphReport) -> TimedChoice:
    """A part beside its operators in PyTorch."""
    written = written_in(gm)
    peer = Peer("eager", lambda _: gm.forward)
    return TimedChoice(name, run, peer, lambda: text_of_graph(gm), written, rules, report.timed.append)


def _assembled(cut: Partition, parts: Mapping[str, Part | TimedChoice], counts_changes: bool) -> Callable[..., Any]:
    whole = cut.whole
    for name, part in parts.items():
        delattr(whole, name)
        setattr(whole, name, part)
    if not counts_changes:
        for node in whole.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            node.target = copied_uncounted
        whole.recompile()
    output = next(iter(whole.graph.find_nodes(op="output")))
    inputs, returned = list(whole.graph.find_nodes(op="placeholder")), list(output.args[0])
    if len(parts) == 1 and len(whole.graph.nodes) == len(inputs) + len(returned) + 2:
        call = next(iter(whole.graph.find_nodes(op="call_module")))
        if list(call.args) == inputs and [getattr(node, "args", None) for node in returned] == [
            (call, n) for n in range(len(returned))
        ]:
            part = parts["part_0"]
            return part.forward if isinstance(part, Part) else part
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
    if target.namespace not in NAMESPACES:
        return "it is an operator of a library, which PyTorch runs"
    if is_random(node):
        return DRAWS
    if target._schema.is_mutable:
        return "it changes a tensor in place"
    if str(target) in refused:
        return refused[str(target)]
    for source in (node, *node.all_input_nodes):
        for value in tree_leaves(source.meta.get("val")):
            numbers = value.shape if isinstance(value, Tensor) else [value]
            if any(isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) for number in numbers):
                return "a size or number that it takes or gives is known only when it runs"
            if isinstance(value, Tensor) and (value.layout != torch.strided or value.is_complex()):
                kind = value.dtype if value.layout == torch.strided else value.layout
                return f"programs have no tensors of {kind}"
            if isinstance(value, Tensor) and value.device.type not in DEVICES:
                return f"programs run on {' and '.join(DEVICES)}, not on '{value.device}'"
    return None


def _refuse(operators: Mapping[str, str], error: Exception, refused: dict[str, str]) -> None:
    """Take out of the next partition what an error names, else what the frontend takes apart itself, else all of the part.

    Args:
        operators: of the part, by name of the node.
    """
    said = str(error).strip() if isinstance(error, KitsuneError) else f"a bug in the compiler: {type(error).__name__}: {error}"
    named = error.operator if isinstance(error, FrontendError) else None
    if named is not None and named in operators.values() and named not in refused:  # else it has not helped, as for constants
        refused[named] = said
        return
    late = {str(op) for op in late_operators()} & set(operators.values()) if named is not None else set()
    refused.update(dict.fromkeys(late or operators, said))
