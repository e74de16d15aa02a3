"""A program of torch.export with gradients: forward and backward, compiled."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from kitsune_mlir.dynamo.compile import DRAWS, compile_graph
from kitsune_mlir.dynamo.decisions import copied
from kitsune_mlir.dynamo.flat_graph import FlatGraph, autograd_traces, flat_graph, memory_order
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.recomputed import partitioned
from kitsune_mlir.dynamo.report import GraphReport, logger
from kitsune_mlir.dynamo.torch_api import aot_autograd, boxed, compiling, fake_inputs
from kitsune_mlir.dynamo.torch_metadata import differentiable_outputs
from kitsune_mlir.errors import ArgumentError, CompileError, FrontendError
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.gradients.whole import kept_whole
from kitsune_mlir.frontend.imported import dtype_name
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import Weight
from kitsune_mlir.runtime.structure import structure_text
from kitsune_mlir.sized.compiled import Backward, Compiled
from kitsune_mlir.sized.gradient_program import GradientProgram
from kitsune_mlir.sized.known import Known, exact_key
from kitsune_mlir.sized.signature import SizedInput, SizedSignature

__all__ = ["compile_gradients"]

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Halves:
    """Forward and backward of a graph.

    Attributes:
        forward: gives outputs, then what the backward takes.
        backward: takes that, then gradients of outputs; gives gradients of weights and inputs.
        kept: how many tensors the backward takes from the forward.
        tangents: of the outputs that have gradients their numbers, and gradients like those that it takes.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    kept: int
    tangents: tuple[tuple[int, Tensor], ...]


def compile_gradients(
    program: ExportedProgram,
    machine: Target,
    options: Options,
    trained: Collection[int],
    parameters: Sequence[str] = (),
    bound: Mapping[int, Any] | None = None,
) -> GradientProgram:
    """Compile forward and backward of a program of fixed sizes.

    Args:
        trained: positions of the inputs that need gradients; of weights those that do.
        parameters: names of the positional arguments.
        bound: inputs that are bound into the program, by position.

    Raises:
        ArgumentError: nothing needs gradients.
        CompileError: the compiler failed.
        FrontendError: an operator has no lowering, or an output shares memory with another one or an input; names it.
    """
    start = time.perf_counter()
    flat = flat_graph(program, bound or {})
    wanted = [flat.kinds[name] == "parameter" and tensor.requires_grad for name, tensor in flat.weights.items()]
    wanted += [position in trained for _, position in flat.inputs]
    numbers = tuple(n for n, each in enumerate(wanted) if each)
    if not numbers:
        raise ArgumentError("no parameter and no example argument needs gradients (requires_grad)")
    output = next(iter(flat.graph.graph.find_nodes(op="output")))
    leaves: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    plain = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, fx.Node))
    output.args = (tuple(leaf for leaf in leaves if isinstance(leaf, fx.Node)),)
    flat.graph.recompile()
    inputs = [_like(value, need) for value, need in zip(fake_inputs(flat.graph), wanted, strict=True)]
    halves = _halves(flat.graph, inputs)
    seconds = {"import": time.perf_counter() - start}
    signature = _signature(program, flat, inputs, halves.forward, parameters)  # before the graph is changed
    start, programs = time.perf_counter(), list[tuple[str, Program]]()

    def compiled(kind: str, graph: fx.GraphModule) -> Callable[..., Sequence[Any]]:
        report = GraphReport(kind, 0)
        with compiling():
            run = compile_graph(graph, frozenset(), machine, options, report, frozenset(), GraphOptions())
        if report.gave_up:
            raise CompileError(f"the model's {kind} cannot be compiled: {report.gave_up}")
        for island in report.islands:
            if island.reason != DRAWS:
                raise FrontendError(str(island), operator=island.operator, location=island.location)
        logger.info("%s", report)
        programs.extend((kind if len(report.programs) == 1 else f"{kind} {n}", one) for n, one in enumerate(report.programs))
        return run

    forward = compiled("forward", halves.forward)
    tangents = tuple((n, tuple(t.shape), t.stride()) for n, t in halves.tangents)
    count = len(output.args[0])  # type: ignore[arg-type]
    backward = Backward(compiled("backward", halves.backward), halves.kept, numbers, count, plain, tangents)
    seconds["compile"] = time.perf_counter() - start
    known = Known({}, exact={exact_key(inputs): forward})
    found = Compiled(forward, known, lambda: programs, backward=backward)
    device = next((tensor.device for tensor in inputs), torch.device("cpu"))
    specs = program.call_spec.in_spec, program.call_spec.out_spec
    return GradientProgram(machine.name, signature, flat.weights, found, device, seconds, specs)


def _like(value: Tensor, trained: bool) -> Tensor:
    with torch.no_grad(), value.fake_mode:  # type: ignore[attr-defined]
        return value.detach().clone().requires_grad_(trained)


def _halves(gm: fx.GraphModule, inputs: Sequence[Tensor]) -> _Halves:
    """What AOTAutograd makes of a graph, functional but for writes to inputs at the end of the forward, decomposed."""
    found: list[tuple[fx.GraphModule, fx.GraphModule, int]] = []
    differentiable: list[int] = []

    def cut(joint: fx.GraphModule, given: Sequence[Any], **how: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = partitioned(joint, given, **how)
        found.append((copied(forward), copied(backward), how["num_fwd_outputs"]))
        return forward, backward

    def take(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        differentiable.extend(differentiable_outputs())
        return boxed(graph.forward)

    compiled = aot_autograd(
        fw_compiler=take,
        bw_compiler=lambda graph, _: boxed(graph.forward),
        decompositions=traced_table(late=False),
        partition_fn=cut,
        keep_inference_input_mutations=True,
    )
    with autograd_traces(gm, training=True), kept_whole():
        compiled(gm, list(inputs))
    if not found or not differentiable:
        raise ArgumentError("no output depends on what needs gradients")
    forward, backward, count = found[0]
    end = next(iter(forward.graph.find_nodes(op="output")))
    given = list(backward.graph.find_nodes(op="placeholder"))
    kept = [node for node in given if not node.name.startswith("tangents")]
    named = {node.name: node for node in forward.graph.nodes}
    end.args = ((*end.args[0][:count], *(named[node.name] for node in kept)),)  # type: ignore[index]
    forward.recompile()
    like = [node.meta["val"] for node in given[len(kept) :]]
    return _Halves(forward, backward, len(kept), tuple(zip(differentiable, like, strict=True)))


def _signature(
    program: ExportedProgram,
    flat: FlatGraph,
    inputs: Sequence[Tensor],
    forward: fx.GraphModule,
    parameters: Sequence[str],
) -> SizedSignature:
    weights = [Weight(n, flat.kinds[n], tuple(t.shape), dtype_name(t.dtype)) for n, t in flat.weights.items()]
    places = forward.graph.find_nodes(op="placeholder")
    written = {node.args[0] for node in forward.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    count, taken = len(weights), []
    for (name, position), like, place in zip(flat.inputs, inputs[count:], [*places][count:], strict=True):
        order = tuple(memory_order(like.shape, like.stride()))
        taken.append(SizedInput(name, position, tuple(like.shape), dtype_name(like.dtype), order, place in written))
    texts = structure_text(program.call_spec.in_spec), structure_text(program.call_spec.out_spec)
    return SizedSignature(tuple(weights), tuple(taken), (), tuple(flat.fixed), *texts, tuple(parameters))
