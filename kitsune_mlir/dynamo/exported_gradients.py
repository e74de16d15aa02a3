"""A program of torch.export with gradients: forward and backward, compiled."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from kitsune_mlir.dynamo.decisions import copied
from kitsune_mlir.dynamo.drawn import draws_of
from kitsune_mlir.dynamo.exported import Names, described, device_of, examples_of, prepare
from kitsune_mlir.dynamo.exported_parts import GraphPrograms
from kitsune_mlir.dynamo.flat_graph import autograd_traces, flat_graph
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.padding import input_sizes
from kitsune_mlir.dynamo.recomputed import partitioned
from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
from kitsune_mlir.dynamo.torch_api import aot_autograd, boxed, fake_inputs
from kitsune_mlir.dynamo.torch_metadata import differentiable_outputs
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.gradients.whole import kept_whole
from kitsune_mlir.frontend.rows.axes import expression, plain
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.sized.compiled import Backward, Compiled
from kitsune_mlir.sized.drawn import Drawn
from kitsune_mlir.sized.expressions import Size
from kitsune_mlir.sized.gradient_program import GradientProgram
from kitsune_mlir.sized.known import Known, exact_key

__all__ = ["compile_gradients"]

_WHOLE = GraphOptions(require_full=True)


@dataclasses.dataclass(frozen=True)
class _Halves:
    """Forward and backward of a graph.

    Attributes:
        forward: gives outputs, then what the backward takes.
        backward: takes that, then gradients of outputs; gives gradients of weights and inputs.
        kept: how many tensors and numbers the backward takes from the forward.
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
    names: Names | None = None,
    bound: Mapping[int, Any] | None = None,
) -> GradientProgram:
    """Compile forward and backward of a program. Where sizes change each has programs as `compile_exported` makes them.

    Args:
        trained: positions of the inputs that need gradients; of weights those that do.
        parameters: names of the positional arguments.
        names: what the user calls sizes.
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
    plain_leaves = tuple((place, leaf) for place, leaf in enumerate(leaves) if not isinstance(leaf, fx.Node))
    output.args = (tuple(leaf for leaf in leaves if isinstance(leaf, fx.Node)),)
    flat.graph.recompile()
    inputs = [_like(value, need) for value, need in zip(fake_inputs(flat.graph), wanted, strict=True)]
    halves = _halves(flat.graph, inputs)
    seconds = {"import": time.perf_counter() - start}
    start = time.perf_counter()
    both = [GraphPrograms(machine, options, kind) for kind in ("forward", "backward")]
    graphs = halves.forward, halves.backward
    captured = dataclasses.replace(flat, graph=halves.forward)
    known = Known(input_sizes(halves.forward))
    signature, hints = described(program, captured, known, names or {}, parameters)  # before the graph is changed
    tangents = tuple((n, _plain(like.shape), _plain(like.stride())) for n, like in halves.tangents)
    changing, why = any(map(is_symbolic, graphs)), ""
    draws = [draws_of(graph) if changing else None for graph in graphs]
    sized: list[Specialized] = []
    if changing:
        prepared = [examples_of(graph) for graph in graphs]
        sized = [Specialized(gm, each, _WHOLE, on_gpu=machine.is_gpu) for gm, each in zip(graphs, both, strict=True)]
        known, why = sized[0].known, "; ".join(dict.fromkeys(one.why for one in sized if one.why))
        prepare(signature.ranges, hints, list(zip(sized, prepared, strict=True)))
    runs: list[Any] = sized or [compile(graph) for compile, graph in zip(both, graphs, strict=True)]
    runs = [run if each is None else Drawn(run, each) for run, each in zip(runs, draws, strict=True)]
    if not changing:
        known.exact[exact_key(inputs)] = runs[0]
    count = len(output.args[0])  # type: ignore[arg-type]
    of_backward = (sized[1].known, _ranks(halves.backward)) if sized else (None, ())
    backward = Backward(runs[1], halves.kept, numbers, count, plain_leaves, tangents, *of_backward)
    seconds["compile"] = time.perf_counter() - start

    def programs() -> list[tuple[str, Program]]:
        of = [one.known for one in sized] or [None, None]
        return [one for compile, each in zip(both, of, strict=True) for one in compile.programs(each)]

    found = Compiled(runs[0], known, programs, why, backward, draws[0])
    specs = program.call_spec.in_spec, program.call_spec.out_spec
    return GradientProgram(machine.name, signature, flat.weights, found, device_of(halves.forward), seconds, specs)


def _plain(sizes: Sequence[int | torch.SymInt]) -> tuple[Size, ...]:
    return tuple(plain(expression(n)) for n in sizes)


def _ranks(gm: fx.GraphModule) -> tuple[int | None, ...]:
    values = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return tuple(value.dim() if isinstance(value, Tensor) else None for value in values)


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
