"""What torch.compile makes of a model: its graphs, which parts of them are programs, what PyTorch runs, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport

__all__ = ["Explanation", "explain"]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What became of a model.

    Attributes:
        graphs: in the order in which they were compiled.
        breaks: why Dynamo ended a graph, and how often.
    """

    graphs: Sequence[GraphReport]
    breaks: Mapping[str, int]

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graphs" if len(self.graphs) != 1 else "1 graph"]
        for reason, count in self.breaks.items():
            lines.append(f"graph break ({count} x): {reason.strip().partition(chr(10))[0]}")
        for number, graph in enumerate(self.graphs):
            lines.append(f"\n[{number}] {graph.details()}")
        return "\n".join(lines)


def explain(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    backward: bool = False,
) -> Explanation:
    """Call a model once through torch.compile and say what was compiled.

    Args:
        model: a module or a function; as it is for the call (`eval()`, `torch.no_grad()`).
        args, kwargs: of the call.
        mode, options: as for `torch.compile`.
        backward: compute gradients too, of parameters and of arguments that ask for them: a backward graph is compiled once it
            is needed. `grad` of the tensors stays as it is.

    Raises:
        ArgumentError: there is no such mode or option.
    """
    found: list[GraphReport] = []
    asked = options_of_backend(mode, options)
    before = dict(torch._dynamo.utils.counters["graph_break"])
    compiled = torch.compile(model, backend=lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=found.append))
    outputs = compiled(*args, **(kwargs or {}))
    if backward:
        _differentiate(outputs, [*getattr(model, "parameters", list)(), *tree_leaves((args, kwargs))])
    after = torch._dynamo.utils.counters["graph_break"]
    return Explanation(found, {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)})


def _differentiate(outputs: Any, inputs: Sequence[Any]) -> None:
    ends = [value for value in tree_leaves(outputs) if isinstance(value, torch.Tensor) and value.requires_grad]
    starts = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    if ends and starts:
        torch.autograd.grad(ends, starts, [torch.ones_like(value) for value in ends], allow_unused=True)
