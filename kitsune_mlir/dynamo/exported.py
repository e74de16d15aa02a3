"""A program of torch.export with sizes that change, compiled for all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from kitsune_mlir.dynamo.compile import compile_graph
from kitsune_mlir.dynamo.flat_graph import FlatGraph, autograd_traces, flat_graph, memory_order
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.report import GraphReport, logger
from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
from kitsune_mlir.dynamo.torch_api import aot_autograd, boxed, compiling, fake_inputs
from kitsune_mlir.dynamo.torch_metadata import traced_outputs
from kitsune_mlir.errors import CompileError, FrontendError
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.imported import dtype_name
from kitsune_mlir.frontend.rows.axes import expression, plain, size_at
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.results import strides
from kitsune_mlir.runtime.signature import Weight
from kitsune_mlir.runtime.structure import structure_text
from kitsune_mlir.sized.compiled import Compiled
from kitsune_mlir.sized.program import SizedProgram
from kitsune_mlir.sized.signature import Range, SizedInput, SizedSignature

__all__ = ["compile_exported", "has_changing_sizes"]

aten = torch.ops.aten

Names = Mapping[tuple[int, int], str]
"""What sizes are called, by the position of a leaf of the arguments and its dimension."""


def has_changing_sizes(program: ExportedProgram) -> bool:
    """Whether an input has a size that is not known."""
    return is_symbolic(program.graph_module)


def compile_exported(
    program: ExportedProgram,
    machine: Target,
    options: Options,
    parameters: Sequence[str] = (),
    names: Names | None = None,
    bound: Mapping[int, Any] | None = None,
) -> SizedProgram:
    """Compile a program for all sizes that it was exported for.

    Where rows are independent, programs for few sizes serve all, which are compiled at once if sizes have an end; else each
    size has its own, and the one of the example is compiled at once.

    Args:
        parameters: names of the positional arguments.
        names: what the user calls sizes.
        bound: inputs that are bound into the program, by position.

    Raises:
        CompileError: the compiler failed.
        FrontendError: an operator has no lowering; names it and the source line.
    """
    start = time.perf_counter()
    captured = _captured(program, bound or {})
    seconds = {"import": time.perf_counter() - start}
    gm = captured.graph
    made: dict[int, tuple[Any, list[tuple[str, Program]]]] = {}  # by what runs them

    def compile_static(graph: fx.GraphModule, sizes: str, same_outputs: bool) -> Callable[..., Any]:
        report = GraphReport("inference", 0, sizes=sizes)
        placeholders = graph.graph.find_nodes(op="placeholder")
        places = list(graph.meta.get("taken") or range(len(placeholders)))
        weights = {node.name for node, n in zip(placeholders, places, strict=False) if n < len(captured.weights)}
        with compiling():
            run = compile_graph(graph, weights, machine, options, report, frozenset(), GraphOptions())
        if report.gave_up:
            raise CompileError(f"the model {sizes} cannot be compiled: {report.gave_up}")
        for island in report.islands:
            raise FrontendError(str(island), operator=island.operator, location=island.location)
        logger.info("%s", report)
        made[id(run)] = run, [(sizes.partition(" (")[0], program) for program in report.programs]
        return run

    def programs() -> list[tuple[str, Program]]:
        known = [*(one.run for one in run.known.larger.values()), *run.known.exact.values()]
        for key in made.keys() - {*map(id, known)}:  # forgotten, as there were too many
            del made[key]
        return [one for key in map(id, known) for one in made[key][1]]

    start = time.perf_counter()
    run = Specialized(gm, compile_static, GraphOptions(require_full=True), on_gpu=machine.is_gpu)
    signature, examples = _described(program, captured, run, names or {}, parameters)
    _prepare(run, signature, examples)
    seconds["compile"] = time.perf_counter() - start
    specs = program.call_spec.in_spec, program.call_spec.out_spec
    device = next((t.device for t in examples({})), torch.device("cpu"))
    found = Compiled(run, run.known, programs, run.why)
    return SizedProgram(machine.name, signature, captured.weights, found, device, seconds, specs)


def _captured(program: ExportedProgram, bound: Mapping[int, Any]) -> FlatGraph:
    """A program's graph, functional but for writes to inputs at its end, decomposed."""
    flat = flat_graph(program, bound)
    gm = flat.graph
    outputs = len(next(iter(gm.graph.find_nodes(op="output"))).args[0])  # type: ignore[arg-type]
    found: list[fx.GraphModule] = []

    def take(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(gm)
        if traced_outputs() != outputs:
            raise FrontendError("the model changes an input's size or strides, which programs for many sizes cannot")
        return boxed(gm.forward)

    compiled = aot_autograd(
        fw_compiler=take, inference_compiler=take, decompositions=traced_table(late=True), keep_inference_input_mutations=True
    )
    with autograd_traces(gm, training=False):
        compiled(gm, fake_inputs(gm))
    if len(found[0].graph.find_nodes(op="placeholder")) != len(flat.weights) + len(flat.inputs):
        raise FrontendError("the model changes an input that is another one's view, which programs for many sizes cannot")
    return dataclasses.replace(flat, graph=found[0])


Examples = Callable[[Mapping[str, int]], list[Tensor]]


def _described(
    program: ExportedProgram, captured: FlatGraph, run: Specialized, names: Names, parameters: Sequence[str]
) -> tuple[SizedSignature, Examples]:
    """The calling convention; and arguments like those that it was exported with, of sizes that are asked for."""
    count, nodes = len(captured.weights), list(captured.graph.graph.find_nodes(op="placeholder"))
    written = {n.args[0] for n in captured.graph.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    hints: dict[str, int] = {}
    inputs, like = [], []
    for (name, position), node in zip(captured.inputs, nodes[count:], strict=True):
        value: Tensor = node.meta["val"]
        hinted = [int(n.node.hint) if isinstance(n, torch.SymInt) else int(n) for n in value.shape]
        steps = [int(n.node.hint) if isinstance(n, torch.SymInt) else int(n) for n in value.stride()]
        told = [(s, dim, times) for s, (n, dim, times) in run.known.places.items() if n == count + len(inputs)]
        hints |= {symbol: hinted[dim or 0] // times for symbol, dim, times in told}
        order = memory_order(hinted, steps)
        shape = tuple(map(expression, value.shape))
        given = tuple(map(plain, shape)), dtype_name(value.dtype), tuple(order), node in written
        inputs.append(SizedInput(name, position, *given))
        like.append((shape, order, value.dtype, value.device))
    ranges = tuple(_range(program, captured, run, symbol, names) for symbol in run.known.places)
    held = list(captured.weights.values())
    weights = [Weight(n, captured.kinds[n], tuple(t.shape), dtype_name(t.dtype)) for n, t in captured.weights.items()]

    def examples(values: Mapping[str, int]) -> list[Tensor]:
        values = {**hints, **values}
        sizes = [([size_at(n, values) for n in shape], order, *rest) for shape, order, *rest in like]
        made = [torch.empty_strided(n, strides(n, order), dtype=dtype, device=device) for n, order, dtype, device in sizes]
        return [*held, *made]

    texts = structure_text(program.call_spec.in_spec), structure_text(program.call_spec.out_spec)
    signature = SizedSignature(tuple(weights), tuple(inputs), ranges, tuple(captured.fixed), *texts, tuple(parameters))
    return signature, examples


def _range(program: ExportedProgram, captured: FlatGraph, run: Specialized, symbol: str, names: Names) -> Range:
    limits = next((r for s, r in program.range_constraints.items() if str(s) == symbol), None)
    least, most = (limits.lower, limits.upper) if limits is not None else (1, sympy.oo)
    n, dim, _ = run.known.places[symbol]
    name, position = captured.inputs[n - len(captured.weights)]
    called = names.get((position, dim or 0), f"{name}.shape[{dim}]")
    end = int(most) if isinstance(most, int | sympy.Integer) and most < 1 << 48 else None
    return Range(symbol, called, max(1, int(least)), end)


def _prepare(run: Specialized, signature: SizedSignature, examples: Examples) -> None:
    """Compile what will be called: for the largest sizes, where there are such, the smallest, and then those that nothing
    serves that was compiled for smaller ones; else for the sizes of the example."""
    least, most = {r.symbol: r.least for r in signature.ranges}, {r.symbol: r.most for r in signature.ranges}
    if run.why or any(end is None for end in most.values()):
        run.prepare(examples({}))
        return
    values = {symbol: int(end or 0) for symbol, end in most.items()}
    run.prepare(examples(values))
    values = least
    while (served := run.prepare(examples(values))) is not None and served.sizes != most:
        values = {symbol: min(served.sizes[symbol] + 1, int(most[symbol] or 0)) for symbol in values}
