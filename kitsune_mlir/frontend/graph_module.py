"""Import of the graphs that Dynamo hands to a `torch.compile` backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.traceback import preserve_node_meta
from torch_mlir import ir

from kitsune_mlir.errors import DynamicShapeError
from kitsune_mlir.frontend.imported import ImportedModel
from kitsune_mlir.frontend.importer import import_model

__all__ = ["import_graph_module"]


class _Interpreted(torch.nn.Module):
    """Runs a graph node by node, so that what is traced keeps each node's source line."""

    def __init__(self, graph_module: fx.GraphModule):
        super().__init__()
        self.graph_module = graph_module

    def forward(self, *inputs: Any) -> Any:
        with preserve_node_meta():
            return fx.Interpreter(self.graph_module).run(*inputs)


def import_graph_module(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, context: ir.Context | None = None
) -> ImportedModel:
    """Imports a graph of torch functions, methods and modules.

    Args:
        graph_module: as Dynamo makes it: flat inputs, among them the parameters; it is not changed.
        example_inputs: one per placeholder: real or fake tensors, or numbers.
        context: as for `import_model`.

    Returns:
        As `import_model`; every placeholder is an input, and tensors held as attributes are weights.

    Raises:
        DynamicShapeError, FrontendError: as `import_model`; also for a symbolic size among the inputs.
    """
    for node, value in zip(graph_module.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise DynamicShapeError(
                f"input '{node.name}' is a number ({value}) that is known only at run time; compile with dynamic=False",
                value=node.name,
            )
    return import_model(_Interpreted(graph_module), tuple(example_inputs), context=context)
