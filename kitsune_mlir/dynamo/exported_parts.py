"""Programs of the graphs that an exported model is taken apart into."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from kitsune_mlir.dynamo.compile import DRAWS, compile_graph
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.report import GraphReport, logger
from kitsune_mlir.dynamo.torch_api import compiling
from kitsune_mlir.errors import CompileError, FrontendError
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.sized.known import Known

__all__ = ["GraphPrograms"]


class GraphPrograms:
    """Compiles graphs without symbols that come from one graph, and knows which programs they became.

    Args:
        kind: "inference", "forward" or "backward".
        weights: numbers of the inputs that are weights.
    """

    def __init__(self, machine: Target, options: Options, kind: str, weights: Collection[int] = ()):
        self._machine, self._options, self._kind, self._weights = machine, options, kind, weights
        self._made: dict[int, tuple[Any, list[tuple[str, Program]]]] = {}  # by what runs them

    def __call__(self, graph: fx.GraphModule, sizes: str = "", same_outputs: bool = True) -> Callable[..., Sequence[Any]]:
        """What runs a graph; random numbers are drawn by PyTorch in front of it.

        Args:
            sizes: for which ones it is, in words.

        Raises:
            CompileError: the compiler failed.
            FrontendError: an operator has no lowering.
        """
        report = GraphReport(self._kind, 0, sizes=sizes)
        placeholders = graph.graph.find_nodes(op="placeholder")
        places = list(graph.meta.get("taken") or range(len(placeholders)))
        weights = {node.name for node, n in zip(placeholders, places, strict=False) if n in self._weights}
        with compiling():
            run = compile_graph(graph, weights, self._machine, self._options, report, frozenset(), GraphOptions())
        what = "model" if self._kind == "inference" else f"model's {self._kind}"
        if report.gave_up:
            raise CompileError(f"the {what}{sizes and ' '}{sizes} cannot be compiled: {report.gave_up}")
        for island in report.islands:
            if self._kind == "inference" or island.reason != DRAWS:
                raise FrontendError(str(island), operator=island.operator, location=island.location)
        logger.info("%s", report)
        parts = [self._kind] * (self._kind != "inference") + [sizes.partition(" (")[0]] * bool(sizes)
        words, many = " ".join(parts), len(report.programs) > 1 and not sizes
        self._made[id(run)] = run, [(f"{words} {n}" if many else words, one) for n, one in enumerate(report.programs)]
        return run

    def programs(self, known: Known | None = None) -> list[tuple[str, Program]]:
        """All that there are, with words that tell them apart; without those that are no longer known."""
        if known is None:
            return [one for _, each in self._made.values() for one in each]
        held = [*(one.run for one in known.larger.values()), *known.exact.values()]
        for key in self._made.keys() - {*map(id, held)}:  # forgotten, as there were too many
            del self._made[key]
        return [one for key in map(id, held) for one in self._made[key][1]]
