"""What became of graphs, among PyTorch's structured traces: tlparse shows it beside the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.dynamo.torch_api import trace_artifact

__all__ = ["trace"]


def trace(report: GraphReport, levels: Sequence[str]) -> None:
    """Add a graph's report, `kitsune_KIND_graph`, and each program's text at these levels, `kitsune_KIND_program_N_LEVEL`."""
    trace_artifact(f"kitsune_{report.kind}_graph", report.details)
    for number, program in enumerate(report.programs):
        for level in levels:
            if level in program.levels:
                text = lambda program=program, level=level: program.ir(level)  # noqa: E731
                trace_artifact(f"kitsune_{report.kind}_program_{number}_{level}", text)
