"""What a simulated run gives: time, and for each stage time, waits and traffic; as words, figures and a timeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.machine.target import Target
from kitsune_mlir.runtime.explain import size
from kitsune_mlir.runtime.timeline import Panel
from kitsune_mlir.simulation.program import SimProgram
from kitsune_mlir.simulation.run import Spans
from kitsune_mlir.simulation.traffic import Traffic

__all__ = ["Simulation", "StageFigures"]


@dataclasses.dataclass(frozen=True)
class StageFigures:
    """One task of the program; seconds and bytes.

    Attributes:
        name, engine, tiles: as in the program.
        first, last: begin of the first tile's work, end of the last.
        working, waiting: of all blocks together.
        share: of the machine's time that it works.
        dram_bytes, l2_bytes, edge_bytes: to and from memory; between L2 and multiprocessors; of these handed from task to task.
    """

    name: str
    engine: str
    tiles: int
    first: float
    last: float
    working: float
    waiting: float
    share: float
    dram_bytes: float
    l2_bytes: float
    edge_bytes: float


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """A run of `program` on `machine` with `blocks` blocks. Times are seconds."""

    program: SimProgram
    machine: Target
    spans: Spans
    traffic: Sequence[Traffic]
    blocks: int

    @property
    def kernel_seconds(self) -> float:
        """From the first block's begin to the last one's end."""
        return float(self.spans.end.max(initial=0.0))

    @property
    def seconds(self) -> float:
        """The same with what a launch takes: comparable to CUDA events around a replayed graph."""
        return self.kernel_seconds + self.machine.launch_seconds

    @property
    def idle(self) -> float:
        """Share of the multiprocessors' time in which none of their blocks works on a tile."""
        return 1.0 - self.occupancy

    @property
    def occupancy(self) -> float:
        """Share of all multiprocessors' time in which one of their blocks works on a tile."""
        busy = 0.0
        places = self.spans.block % self.machine.workers
        for place in np.unique(places):
            mine = places == place
            order = np.argsort(self.spans.ready[mine])
            begins, ends = self.spans.ready[mine][order], np.maximum.accumulate(self.spans.end[mine][order])
            starts = np.maximum(begins, np.concatenate([[0.0], ends[:-1]]))
            busy += float(np.maximum(0.0, ends - starts).sum())
        return busy / max(1e-12, self.kernel_seconds * self.machine.workers)

    @property
    def dram_bytes(self) -> float:
        """To and from memory."""
        return sum(t.dram for t in self.traffic)

    @property
    def stages(self) -> list[StageFigures]:
        """Figures of each task, in order of the program."""
        found = []
        for number, (task, traffic) in enumerate(zip(self.program.tasks, self.traffic, strict=True)):
            mine = self.spans.task == number
            begin, ready, end = (times[mine] for times in (self.spans.begin, self.spans.ready, self.spans.end))
            working = float((end - ready).sum())
            found.append(
                StageFigures(
                    *(task.name, task.engine, task.tiles, float(ready.min()), float(end.max())),
                    *(working, float((ready - begin).sum()), working / max(1e-12, self.kernel_seconds * self.blocks)),
                    *(traffic.dram, traffic.l2, traffic.between),
                )
            )
        return found

    def panel(self) -> Panel:
        """The run as spans, one a tile; rows are multiprocessors, several for each where several blocks share one."""
        spans, workers = self.spans, self.machine.workers
        row = spans.block % workers * self.program.resident + spans.block // workers
        row = np.unique(row, return_inverse=True)[1]
        tasks = [(task.name, task.engine, task.tiles) for task in self.program.tasks]
        times = (1e6 * spans.begin, 1e6 * spans.ready, 1e6 * spans.end)
        return Panel(f"predicted for {self.machine.name}", tasks, row, spans.task, *times)

    def table(self) -> str:
        """A line a stage, and the totals; microseconds."""
        head = f"{'task':20s} {'engine':9s} {'tiles':>6s} {'first':>8s} {'last':>8s} {'work':>6s} {'wait':>6s}"
        lines = [f"{head} {'memory':>9s} {'L2':>9s}"]
        whole = max(1e-12, self.kernel_seconds * self.blocks)
        for stage in self.stages:
            lines.append(
                f"{stage.name:20s} {stage.engine:9s} {stage.tiles:6d} {1e6 * stage.first:8.1f} {1e6 * stage.last:8.1f} "
                f"{stage.working / whole:6.1%} {stage.waiting / whole:6.1%} "
                f"{size(stage.dram_bytes):>9s} {size(stage.l2_bytes):>9s}"
            )
        edges = sum(t.between for t in self.traffic)
        rings = sum(t.ring for t in self.traffic)
        through = f" ({size(rings)} through rings)" if rings else ""
        of_rate = self.dram_bytes / max(1e-12, self.kernel_seconds) / self.machine.dram_rate
        lines.append(
            f"{1e6 * self.seconds:.1f} us on {self.machine.name} ({1e6 * self.kernel_seconds:.1f} us in the kernel), "
            f"{self.blocks} blocks, multiprocessors idle {self.idle:.0%} of the time; "
            f"memory {size(self.dram_bytes)} ({of_rate:.0%} of its rate), L2 {size(sum(t.l2 for t in self.traffic))}, "
            f"between stages {size(edges)}{through}."
        )
        return "\n".join(lines)
