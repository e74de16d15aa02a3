"""A program of torch.export as one graph of weights and inputs, flat."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from kitsune_mlir.dynamo.above_autograd import composites_replaced
from kitsune_mlir.dynamo.torch_api import tracing_context
from kitsune_mlir.errors import DynamicShapeError, FrontendError, KitsuneError

__all__ = ["FlatGraph", "autograd_traces", "flat_graph", "memory_order"]

aten = torch.ops.aten

_WEIGHTS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}
_CHANGES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclasses.dataclass(frozen=True)
class FlatGraph:
    """A program as a graph of weights, then of the caller's tensors.

    Attributes:
        graph: the graph.
        weights: by name.
        kinds: of weights.
        inputs: names and positions of the other inputs.
        fixed: leaves of the arguments that are no tensors.
    """

    graph: fx.GraphModule
    weights: Mapping[str, Tensor]
    kinds: Mapping[str, str]
    inputs: Sequence[tuple[str, int]]
    fixed: Sequence[tuple[int, Any]]


@contextmanager
def autograd_traces(gm: fx.GraphModule, training: bool) -> Iterator[None]:
    """While it is entered, AOTAutograd takes a graph apart, with gradients or without.

    Raises:
        FrontendError: it cannot.
    """
    with tracing_context(gm), torch.set_grad_enabled(training), composites_replaced(training):
        try:
            yield
        except KitsuneError:
            raise
        except Exception as error:  # PyTorch's own assertions among them
            raise FrontendError(f"AOTAutograd cannot trace the program: {type(error).__name__}: {error}") from error


def memory_order(sizes: Sequence[int], steps: Sequence[int]) -> list[int]:
    """The order of dimensions in memory, outermost first; empty where it is row-major, or none."""
    order = sorted(range(len(sizes)), key=lambda dim: -steps[dim])
    return [] if order == list(range(len(sizes))) or 0 in sizes or 0 in steps else order


def flat_graph(program: ExportedProgram, bound: Mapping[int, Any]) -> FlatGraph:
    """A program's graph, as it was exported; what it changes is written back at its end.

    Args:
        bound: inputs that are bound into the program, by position.

    Raises:
        DynamicShapeError, FrontendError: an input is none that programs take; names it.
    """
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    returned: Any = graph.graph_copy(program.graph, copied)  # type: ignore[arg-type]
    signature = program.graph_signature
    places = {node.name: copied[node] for node in program.graph.find_nodes(op="placeholder")}
    weights, kinds, inputs, fixed, position = dict[str, Tensor](), dict[str, str](), [], [], 0
    for spec in signature.input_specs:
        node = places[spec.arg.name]
        if spec.kind in _WEIGHTS and (spec.kind is not InputKind.PARAMETER or node.users):
            name = str(spec.target)
            if not node.users:
                graph.erase_node(node)
                continue
            held = program.state_dict if name in program.state_dict else program.constants
            weights[name], kinds[name] = held[name], _WEIGHTS[spec.kind]  # type: ignore[assignment]
        elif spec.kind in _WEIGHTS:
            graph.erase_node(node)
        elif spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            if node.users:
                node.replace_all_uses_with(spec.arg.value)  # type: ignore[arg-type]
            graph.erase_node(node)
            fixed.append((position, bound.get(position, spec.arg.value)))
            position += 1
        elif spec.kind is InputKind.USER_INPUT and isinstance(node.meta.get("val"), Tensor):
            inputs.append((spec.arg.name, position))
            position += 1
        elif spec.kind is InputKind.USER_INPUT:
            value = f"input '{spec.arg.name}' is a number that changes; only sizes of tensors may"
            raise DynamicShapeError(value, value=spec.arg.name)
        else:
            raise FrontendError(f"input '{spec.arg.name}' is no tensor but a {spec.kind.name.lower()}")
    outputs = []
    for spec, value in zip(signature.output_specs, returned, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(value)
        elif spec.kind in _CHANGES:
            target = next(s.arg.name for s in signature.input_specs if spec.target in (s.target, s.arg.name))
            graph.call_function(aten.copy_.default, (places[target], value)).meta["val"] = places[target].meta["val"]
        else:
            raise FrontendError(f"an output of the program is a {spec.kind.name.lower()}")
    graph.output(tuple(outputs))
    return FlatGraph(fx.GraphModule(program.graph_module, graph), weights, kinds, inputs, fixed)
