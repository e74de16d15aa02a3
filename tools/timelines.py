"""Predicted and measured timelines as files: what `kitsune simulate` and `kitsune explain --timeline` write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.runtime.timeline import Panel, trace_of
from kitsune_mlir.runtime.timeline_page import page_of

__all__ = ["simulated", "write_page", "write_timelines", "write_trace"]


def simulated(program: Any, machine: str, cold: bool = False) -> Any:
    """A simulated run; ArgumentError for a package that was stored without its texts."""
    if "tiles" not in program.levels and program.summary.get("stages"):
        raise ArgumentError("the package holds no tile program: save it with ir=True, or name the model instead")
    import kitsune_mlir

    return kitsune_mlir.simulate(program, machine, cold)


def write_page(path: str, title: str, panels: Sequence[Panel], text: str) -> None:
    """Write an HTML page."""
    Path(path).write_text(page_of(title, panels, text))


def write_trace(path: str, panels: Sequence[Panel]) -> None:
    """Write a trace for ui.perfetto.dev."""
    Path(path).write_text(json.dumps(trace_of(panels)))


def write_timelines(
    program: Any, machine: str, path: str, arguments_of: Callable[[Any], tuple[list[Any], dict[str, Any]]]
) -> str:
    """Write a page with the predicted run, and with a measured one where the program can run and records times.

    Returns a sentence on what is shown.
    """
    predicted = simulated(program, machine)
    panels, texts = [predicted.panel()], [predicted.table()]
    try:
        args, kwargs = arguments_of(program)
        for _ in range(3):  # the first call loads the kernel, and finds nothing in L2
            program(*args, **kwargs)
        measured = program.timeline()
        panels.append(measured.panel())
        texts.append(measured.table())
        found = f"predicted {1e6 * predicted.kernel_seconds:.1f} us in the kernel, measured {measured.total:.1f} us"
    except (KitsuneError, RuntimeError) as error:  # torch has errors of its own, such as that memory is used up
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        found = f"predicted {1e6 * predicted.kernel_seconds:.1f} us in the kernel; not measured: {reason}"
    write_page(path, f"{program.target}: {len(predicted.program.tasks)} tasks", panels, "\n\n".join(texts))
    return f"{path}: {found}"
