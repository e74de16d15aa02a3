"""Functions of which a call has fewer rows than they are compiled for, as programs for a GPU that are not assembled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.cache.compiled import kept_or_compiled
from kitsune_mlir.frontend import traced_model
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options
from kitsune_mlir.pipeline import compile_imported
from test.gpu.unassembled import unassembled

__all__ = ["compiled", "ends"]


def compiled(function: Callable[..., tuple[Tensor, ...]], *args: Tensor, **options: Any) -> Any:
    """The program of a function that says itself how many rows are valid."""
    graph = make_fx(function, traced_table(late=False), "fake")(*args)
    output = next(iter(graph.graph.find_nodes(op="output")))
    output.args = (tuple(output.args[0]),)
    wanted = Options(cache=False, **{"schedule": "temporal", **options})
    with unassembled():
        return kept_or_compiled(lambda: traced_model(graph), find_target("sm_90a"), wanted, compile_imported)


def ends(program: Any) -> list[str]:
    """What `explain` says of where each stage's tiles end."""
    return [engine["parameters"].get("tiles end", "") for engine in program.summary["engines"]]
