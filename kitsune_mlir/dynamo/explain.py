"""What torch.compile makes of a model: its graphs, which parts of them are programs, what PyTorch runs, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.runtime.explain import explain_text

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
            lines.append(f"\n[{number}] {graph}")
            for program in graph.programs:
                lines.append("  " + explain_text(program.summary).replace("\n", "\n  "))
        return "\n".join(lines)


def explain(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """Call a model once through torch.compile and say what was compiled.

    Args:
        model: a module or a function; as it is for the call (`eval()`, `torch.no_grad()`).
        args, kwargs: of the call. Where gradients are on, backward graphs are compiled only once they are needed: with the
            first `backward()` of what a training step gives.
        mode, options: as for `torch.compile`.

    Raises:
        ArgumentError: there is no such mode or option.
    """
    found: list[GraphReport] = []
    asked = options_of_backend(mode, options)
    before = dict(torch._dynamo.utils.counters["graph_break"])
    compiled = torch.compile(model, backend=lambda gm, inputs: compiled_graph(gm, inputs, *asked, keep=found.append))
    compiled(*args, **(kwargs or {}))
    after = torch._dynamo.utils.counters["graph_break"]
    return Explanation(found, {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)})
