"""When each block of a kernel worked on each task: read back from a run, as a table and as a Perfetto trace."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["Timeline"]


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The times of one run.

    Attributes:
        tasks: (name, engine, tiles) of each task, in the order in which blocks walk them.
        times: microseconds from the first start, [blocks, tasks, 2]: start and end. A block that has no tile of a task passes
            it in no time.
    """

    tasks: Sequence[tuple[str, str, int]]
    times: np.ndarray

    @property
    def total(self) -> float:
        """Microseconds from the first start to the last end."""
        return float(self.times.max())

    def table(self) -> str:
        """One line a task: when the first block began it, the median start and end, the last end, all in microseconds.

        The last column is the share of all blocks' time that the task took, waits included.
        """
        lines = [
            f"{'task':24s} {'engine':10s} {'tiles':>6s} {'first':>8s} {'start':>8s} {'end':>8s} {'last':>8s} {'share':>6s}"
        ]
        spent = (self.times[:, :, 1] - self.times[:, :, 0]).sum(axis=0)
        for number, (name, engine, tiles) in enumerate(self.tasks):
            start, end = self.times[:, number, 0], self.times[:, number, 1]
            share = spent[number] / max(1e-9, self.total * len(self.times))
            lines.append(
                f"{name:24s} {engine:10s} {tiles:6d} {start.min():8.1f} {np.median(start):8.1f} {np.median(end):8.1f} "
                f"{end.max():8.1f} {share:6.1%}"
            )
        return "\n".join(lines)

    def trace(self) -> dict:
        """The run in the trace-event format that ui.perfetto.dev and chrome://tracing open: a row a block."""
        events = []
        for block, row in enumerate(self.times):
            for (name, engine, _), (start, end) in zip(self.tasks, row.tolist(), strict=True):
                if end > start:
                    span = {"name": name, "cat": engine, "ph": "X", "pid": 0, "tid": block, "ts": start, "dur": end - start}
                    events.append(span)
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON."""
        Path(path).write_text(json.dumps(self.trace()))
