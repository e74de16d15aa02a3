"""How long a pipeline takes in each mode, from the costs of its stages: what `kitsune-partition-streams` chooses by. No IR.

A small run of the tiles, without the program: blocks take tiles in turn, as the executor does; a tile starts when its block is
free and when what it reads has been handed over. (`kitsune_mlir.simulation` runs the finished tile program in full.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from .allocation import Budget, Flow, Stage

__all__ = ["LAUNCH_GAP", "busy_seconds", "limits_of", "separate_seconds", "temporal_seconds"]

LAUNCH_GAP = 0.7e-6
"""Seconds from one kernel's last tile to the start of the next one's tiles with programmatic dependent launch, where launches
are queued (2 µs in the replay of a single graph, whose nodes are fetched one by one; bench/results/modes-h200.json)."""

STREAMED = 1.0e-6
"""The same between tasks of one kernel whose weights come through one ring, whatever the activations do."""


def temporal_seconds(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> float:
    """One kernel: every block runs tiles of every stage, in the order of the stages."""
    free = np.zeros(budget.workers)
    ends: list[np.ndarray] = []
    offset = 0
    for number, stage in enumerate(stages):
        ready = _ready(number, stages, flows, ends, budget)
        posting = dataclasses.replace(stage, first=stage.first + stage.posting, step=stage.step + stage.posting)
        ends.append(_run(posting, ready, free, offset, budget))
        offset = (offset + stage.tiles) % budget.workers
    return float(free.max())


def separate_seconds(stages: Sequence[Stage], budget: Budget) -> float:
    """A kernel for each stage, one after the other."""
    total = (len(stages) - 1) * LAUNCH_GAP
    for stage in stages:
        free = np.zeros(budget.workers)
        _run(stage, np.zeros(stage.tiles), free, 0, budget)
        total += float(free.max())
    return total


def _ready(
    number: int, stages: Sequence[Stage], flows: Sequence[Flow], ends: Sequence[np.ndarray], budget: Budget
) -> np.ndarray:
    """When each tile of a stage has what it reads."""
    tiles = stages[number].tiles
    ready = np.zeros(tiles)
    for flow in flows:
        if flow.consumer != number:
            continue
        made = ends[flow.producer]
        hand_off = STREAMED if flow.streamed else budget.hand_off
        if flow.whole:
            ready = np.maximum(ready, made.max() + hand_off)
            continue
        # Tiles of both walk the same rows: the first n-th part of one needs the first n-th part of the other.
        last = np.ceil(np.arange(1, tiles + 1) * (len(made) / tiles)).astype(int) - 1
        ready = np.maximum(ready, np.maximum.accumulate(made)[np.clip(last, 0, len(made) - 1)] + hand_off)
    return ready


def _run(stage: Stage, ready: np.ndarray, free: np.ndarray, offset: int, budget: Budget) -> np.ndarray:
    """Let blocks run a stage's tiles, in waves; `free` is when each block can go on, and is brought up to date."""
    workers = budget.workers
    moving = max(stage.dram_bytes / budget.dram_rate, stage.l2_bytes / budget.l2_rate)
    # All tiles together are no faster than memory: each takes its share of the time that its wave has.
    least = moving / max(1.0, stage.tiles / workers)
    ends = np.empty(stage.tiles)
    for wave in range(math.ceil(stage.tiles / workers)):
        tiles = np.arange(wave * workers, min(stage.tiles, (wave + 1) * workers))
        blocks = (tiles + offset) % workers
        ends[tiles] = np.maximum(free[blocks], ready[tiles]) + max(least, stage.first if wave == 0 else stage.step)
        free[blocks] = ends[tiles]
    return ends


def busy_seconds(stages: Sequence[Stage], budget: Budget) -> float:
    """What all multiprocessors need if none ever waits and memory is no faster than it is: no mode takes less."""
    work = sum(stage.tiles * min(stage.first, stage.step) for stage in stages) / budget.workers
    return max(work, *(sum(getattr(s, what) for s in stages) / rate for what, rate in _rates(budget)))


def _rates(budget: Budget) -> list[tuple[str, float]]:
    return [("dram_bytes", budget.dram_rate), ("l2_bytes", budget.l2_rate)]


def limits_of(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> list[tuple[str, float]]:
    """(what, the least seconds that it allows a temporal pipeline), slowest first: the bottleneck, and the next one."""
    workers = budget.workers
    through = {flow.consumer for flow in flows}
    limits = [
        ("DRAM bandwidth", sum(s.dram_bytes for s in stages) / budget.dram_rate),
        ("L2 bandwidth", sum(s.l2_bytes for s in stages) / budget.l2_rate),
        ("tensor cores", sum(s.tensor for s in stages) / workers),
        ("SIMT pipes", sum(s.vector for s in stages) / workers),
        ("first tiles and hand-offs", sum(s.first + budget.hand_off * (n in through) for n, s in enumerate(stages))),
    ]
    return sorted(limits, key=lambda limit: -limit[1])
