"""A program of torch.export with sizes that change, compiled for all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from kitsune_mlir.dynamo.exported_parts import GraphPrograms
from kitsune_mlir.dynamo.flat_graph import FlatGraph, autograd_traces, flat_graph, memory_order
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
from kitsune_mlir.dynamo.torch_api import aot_autograd, boxed, fake_inputs
from kitsune_mlir.dynamo.torch_metadata import traced_outputs
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.imported import dtype_name
from kitsune_mlir.frontend.rows.axes import expression, plain, size_at
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.results import strides
from kitsune_mlir.runtime.signature import Weight
from kitsune_mlir.runtime.structure import structure_text
from kitsune_mlir.sized.compiled import Compiled
from kitsune_mlir.sized.known import Known
from kitsune_mlir.sized.program import SizedProgram
from kitsune_mlir.sized.signature import Range, SizedInput, SizedSignature

__all__ = ["Names", "compile_exported", "described", "device_of", "examples_of", "has_changing_sizes", "prepare"]

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
    compile = GraphPrograms(machine, options, "inference", range(len(captured.weights)))
    start = time.perf_counter()
    run = Specialized(captured.graph, compile, GraphOptions(require_full=True), on_gpu=machine.is_gpu)
    signature, hints = described(program, captured, run.known, names or {}, parameters)
    prepare(signature.ranges, hints, [(run, examples_of(captured.graph, captured.weights.values()))])
    seconds["compile"] = time.perf_counter() - start
    specs = program.call_spec.in_spec, program.call_spec.out_spec
    found = Compiled(run, run.known, lambda: compile.programs(run.known), run.why)
    return SizedProgram(machine.name, signature, captured.weights, found, device_of(captured.graph), seconds, specs)


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


Examples = Callable[[Mapping[str, int]], list[Any]]
"""Arguments of a graph for values of its symbols; what is in tensors does not matter."""


def described(
    program: ExportedProgram, captured: FlatGraph, known: Known, names: Names, parameters: Sequence[str]
) -> tuple[SizedSignature, dict[str, int]]:
    """The calling convention; and what symbols are in the arguments that it was exported with."""
    count, nodes = len(captured.weights), list(captured.graph.graph.find_nodes(op="placeholder"))
    written = {n.args[0] for n in captured.graph.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    hints: dict[str, int] = {}
    inputs = []
    for (name, position), node in zip(captured.inputs, nodes[count:], strict=True):
        value: Tensor = node.meta["val"]
        hinted, steps = [*map(_hint, value.shape)], [*map(_hint, value.stride())]
        told = [(s, dim, times) for s, (n, dim, times) in known.places.items() if n == count + len(inputs)]
        hints |= {symbol: hinted[dim or 0] // times for symbol, dim, times in told}
        order = tuple(memory_order(hinted, steps))
        shape = tuple(plain(expression(n)) for n in value.shape)
        inputs.append(SizedInput(name, position, shape, dtype_name(value.dtype), order, node in written))
    ranges = tuple(_range(program, captured, known, symbol, names) for symbol in known.places)
    weights = [Weight(n, captured.kinds[n], tuple(t.shape), dtype_name(t.dtype)) for n, t in captured.weights.items()]
    texts = structure_text(program.call_spec.in_spec), structure_text(program.call_spec.out_spec)
    given = tuple(weights), tuple(inputs), ranges, tuple(captured.fixed), *texts, tuple(parameters)
    return SizedSignature(*given), hints


def _hint(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def examples_of(gm: fx.GraphModule, first: Iterable[Tensor] = ()) -> Examples:
    """Makes arguments of a graph.

    Args:
        first: its first inputs, as they are.
    """
    held = list(first)
    like = [node.meta["val"] for node in list(gm.graph.find_nodes(op="placeholder"))[len(held) :]]

    def made(value: Any, values: Mapping[str, int]) -> Any:
        if not isinstance(value, Tensor):
            return size_at(expression(value), values)
        size, steps = [size_at(expression(n), values) for n in value.shape], [*map(_hint, value.stride())]
        order = memory_order([*map(_hint, value.shape)], steps)
        return torch.empty_strided(size, strides(size, order), dtype=value.dtype, device=value.device)

    return lambda values: [*held, *(made(value, values) for value in like)]


def device_of(gm: fx.GraphModule) -> torch.device:
    """Where a graph's first tensor is."""
    values = (node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder"))
    return next((value.device for value in values if isinstance(value, Tensor)), torch.device("cpu"))


def _range(program: ExportedProgram, captured: FlatGraph, known: Known, symbol: str, names: Names) -> Range:
    limits = next((r for s, r in program.range_constraints.items() if str(s) == symbol), None)
    least, most = (limits.lower, limits.upper) if limits is not None else (1, sympy.oo)
    n, dim, _ = known.places[symbol]
    name, position = captured.inputs[n - len(captured.weights)]
    called = names.get((position, dim or 0), f"{name}.shape[{dim}]")
    end = int(most) if isinstance(most, int | sympy.Integer) and most < 1 << 48 else None
    return Range(symbol, called, max(1, int(least)), end)


def prepare(ranges: Sequence[Range], hints: Mapping[str, int], runs: Sequence[tuple[Specialized, Examples]]) -> None:
    """Compile what will be called: for the largest sizes, where there are such, the smallest, and then those that nothing
    serves that was compiled for smaller ones; else for the sizes of the example.

    Args:
        hints: values of symbols in the example.
        runs: what takes arguments, and what makes some.
    """
    least, most = {r.symbol: r.least for r in ranges}, {r.symbol: r.most for r in ranges}
    for run, examples in runs:
        if run.why or any(end is None for end in most.values()):
            run.prepare(examples(hints))
            continue
        run.prepare(examples({symbol: int(end or 0) for symbol, end in most.items()}))
        values = least
        while (served := run.prepare(examples(values))) is not None and any(most[s] != n for s, n in served.sizes.items()):
            values = {symbol: min(served.sizes.get(symbol, n) + 1, int(most[symbol] or 0)) for symbol, n in values.items()}
