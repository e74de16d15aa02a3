"""When each block of a kernel worked on each task: as a table, as a Perfetto trace, and as a page (`timeline_page`)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["Panel", "Timeline", "trace_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """Spans of one run, measured or predicted: what traces and pages are made of.

    Attributes:
        title: which run it is.
        tasks: (name, engine, tiles) of each task.
        row, task: of each span: the block, and the number of the task.
        begin, ready, end: of each span in microseconds: the block waits in [begin, ready) and works in [ready, end).
    """

    title: str
    tasks: Sequence[tuple[str, str, int]]
    row: np.ndarray
    task: np.ndarray
    begin: np.ndarray
    ready: np.ndarray
    end: np.ndarray

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.row.max(initial=-1)) + 1

    @property
    def total(self) -> float:
        """Microseconds to the last end."""
        return float(self.end.max(initial=0.0))


def trace_of(panels: Sequence[Panel]) -> dict:
    """Runs in the trace-event format that ui.perfetto.dev and chrome://tracing open: a process a run, a row a block."""
    events = []
    for number, panel in enumerate(panels):
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": panel.title}})
        columns = (panel.row, panel.task, panel.begin, panel.ready, panel.end)
        for row, task, begin, ready, end in zip(*(c.tolist() for c in columns), strict=True):
            name, engine, _ = panel.tasks[task]
            place = {"ph": "X", "pid": number, "tid": row}
            if ready > begin:
                events.append({"name": f"wait ({name})", "cat": "wait", **place, "ts": begin, "dur": ready - begin})
            if end > ready:
                events.append({"name": name, "cat": engine, **place, "ts": ready, "dur": end - ready})
    return {"traceEvents": events, "displayTimeUnit": "ns"}


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The times of one run.

    Attributes:
        tasks: (name, engine, tiles) of each task, in the order in which blocks walk them.
        times: microseconds from the first start, [blocks, tasks, 2]: start and end. A block that has no tile of a task passes
            it in no time.
        waits: microseconds of that spent in waits, [blocks, tasks]; None where they were not recorded.
    """

    tasks: Sequence[tuple[str, str, int]]
    times: np.ndarray
    waits: np.ndarray | None = None

    @property
    def total(self) -> float:
        """Microseconds from the first start to the last end."""
        return float(self.times.max())

    def table(self) -> str:
        """One line a task: when the first block began it, the median start and end, the last end, all in microseconds.

        The last columns are the shares of all blocks' time that the task took, waits included, and that its waits took.
        """
        head = f"{'task':24s} {'engine':10s} {'tiles':>6s} {'first':>8s} {'start':>8s} {'end':>8s} {'last':>8s} {'share':>6s}"
        lines = [head + (f" {'wait':>6s}" if self.waits is not None else "")]
        whole = max(1e-9, self.total * len(self.times))
        spent = (self.times[:, :, 1] - self.times[:, :, 0]).sum(axis=0)
        for number, (name, engine, tiles) in enumerate(self.tasks):
            start, end = self.times[:, number, 0], self.times[:, number, 1]
            waited = f" {self.waits[:, number].sum() / whole:6.1%}" if self.waits is not None else ""
            lines.append(
                f"{name:24s} {engine:10s} {tiles:6d} {start.min():8.1f} {np.median(start):8.1f} {np.median(end):8.1f} "
                f"{end.max():8.1f} {spent[number] / whole:6.1%}{waited}"
            )
        return "\n".join(lines)

    def panel(self, title: str = "measured") -> Panel:
        """The run's spans, one a block and task. Waits are shown at the beginning, wherever in the task they were."""
        blocks, tasks = self.times.shape[:2]
        row, task = (a.ravel() for a in np.meshgrid(np.arange(blocks), np.arange(tasks), indexing="ij"))
        begin, end = self.times[:, :, 0].ravel(), self.times[:, :, 1].ravel()
        waits = self.waits.ravel() if self.waits is not None else np.zeros_like(begin)
        kept = end > begin
        spans = (row, task, begin, np.minimum(begin + waits, end), end)
        return Panel(title, self.tasks, *(values[kept] for values in spans))

    def trace(self) -> dict:
        """The run in the trace-event format, see `trace_of`."""
        return trace_of([self.panel()])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON."""
        Path(path).write_text(json.dumps(self.trace()))
