"""The `kitsune` backend of torch.compile (PyTorch finds it through the package's entry point)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import KitsuneError

__all__ = ["kitsune"]


def kitsune(gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured: static shapes, inference.

    Args:
        gm: the captured `torch.fx.GraphModule`.
        example_inputs: one for each of its placeholders.
        options: fields of `kitsune_mlir.Options` (`torch.compile(..., options={"threads": 1})`).

    A graph that needs gradients, or that cannot be compiled, runs as PyTorch would run it, with a warning that says why.
    """
    import torch

    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.frontend import import_graph_module
    from kitsune_mlir.pipeline import Options, Phases, choose_target, compile_imported
    from kitsune_mlir.target import find_target

    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in example_inputs):
        warnings.warn(
            "kitsune: a graph that needs gradients runs in PyTorch; call the model under torch.no_grad()", stacklevel=2
        )
        return gm.forward
    chosen = Options(**(options or {}))
    try:
        imported = import_graph_module(gm, list(example_inputs), context=new_context())
        return compile_imported(imported, find_target(choose_target(gm, example_inputs)), chosen, Phases(chosen.on_phase))
    except KitsuneError as error:
        warnings.warn(f"kitsune: a graph of {len(gm.graph.nodes)} nodes runs in PyTorch: {error}", stacklevel=2)
        return gm.forward
