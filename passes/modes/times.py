"""How long a pipeline takes in each mode, from the costs of its stages: what `kitsune-partition-streams` chooses by. No IR.

A small run of the tiles, without the program: blocks take tiles in turn, as the executor does; a tile starts when its block is
free and when what it reads has been handed over. (`kitsune_mlir.simulation` runs the finished tile program in full.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kitsune_mlir.machine import rates
from kitsune_mlir.passes.spatial.allocation import Budget, Flow, Stage

__all__ = ["Launches", "busy_seconds", "launches_of", "limits_of", "separate_seconds", "temporal_seconds"]

MOST_STAGES = 16
"""Of one launch among several: longer ones are not looked at."""
LEAST_GAIN = 0.02
"""Of the time of the launches' mean that one more saves at least, where that is less than `rates.LAUNCH_SAVING`: the model
knows no less, and each has a kernel to build and to start. So the launches of a layer do not depend on the number of layers.
(At 4 % a recommender of 5 launches has 3, a graph net's training step 7 in place of 10: by the model 1.6 and 0.8 % slower.)"""


@dataclasses.dataclass(frozen=True)
class Launches:
    """Stages in several launches: the number of each one's launch, and the seconds of all."""

    numbers: tuple[int, ...]
    seconds: float


def temporal_seconds(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> float:
    """One kernel: every block runs tiles of every stage, in the order of the stages."""
    kernel = _Kernel(stages, _by_consumer(flows), budget, 0)
    for number in range(len(stages)):
        kernel.add(number)
    return kernel.seconds


def separate_seconds(stages: Sequence[Stage], budget: Budget) -> float:
    """A kernel for each stage, one after the other."""
    total = (len(stages) - 1) * rates.LAUNCH_GAP
    for number in range(len(stages)):
        kernel = _Kernel(stages, {}, budget, number)
        kernel.add(number)
        total += kernel.seconds
    return total


def launches_of(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> Launches:
    """The cuts between stages that take the least time, at least one: what runs in one launch is temporal there.

    Of choices that take about as long (`LEAST_GAIN`) the one with fewer launches. One that reads nothing that others make, and
    is over before a graph has started the next one (`rates.LAUNCH_SHORT`), has to save more: casts of weights that a training
    step has between its products.
    """
    seconds = _seconds_within(stages, flows, budget)
    first = _fastest(len(stages), seconds, lambda *_: 0.0)
    mean = first.seconds / (first.numbers[-1] + 1)
    saving = min(LEAST_GAIN * mean, rates.LAUNCH_SAVING)
    inputs = _by_consumer(flows)
    earliest = [min((flow.producer for flow in inputs.get(number, ())), default=number) for number in range(len(stages))]

    def least(begin: int, end: int) -> float:
        short = seconds[begin][end - begin - 1] < rates.LAUNCH_SHORT
        return rates.LAUNCH_SAVING if short and min(earliest[begin:end]) >= begin else saving

    return _fastest(len(stages), seconds, least)


def _seconds_within(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> list[list[float]]:
    """For each stage that a launch may begin with the seconds of the launch, by how many stages more it has."""
    count, inputs, found = len(stages), _by_consumer(flows), []
    for begin in range(count):
        kernel, taken, apart = _Kernel(stages, inputs, budget, begin), list[float](), True
        most = min(count, begin + MOST_STAGES)
        for number in range(begin, most if begin or count == 1 else min(most, count - 1)):
            kernel.add(number)
            apart = apart and stages[number].crowd > 1 and all(f.producer < begin for f in inputs.get(number, ()))
            sharing = _sharing(stages[begin : number + 1], budget) if apart else math.inf
            taken.append(min(kernel.seconds, sharing))
        found.append(taken)
    return found


def _fastest(count: int, seconds: Sequence[Sequence[float]], least: Callable[[int, int], float]) -> Launches:
    """The cuts of least time.

    Args:
        least: what a launch of the stages from a number to before another has to save at least, beside what lies between two.
    """
    best = [0.0, *[math.inf] * count]  # of the first n stages, with what launches have to save
    begins, times = [0] * (count + 1), [0.0] * (count + 1)
    for begin in range(count):
        for end, taken in enumerate(seconds[begin], begin + 1):
            alone = taken + (rates.LAUNCH_GAP if begin else 0.0)
            if (until := best[begin] + alone + (least(begin, end) if begin else 0.0)) < best[end]:
                best[end], begins[end], times[end] = until, begin, times[begin] + alone
    numbers, end, starts = [0] * count, count, []
    while end:
        starts.append(begins[end])
        end = begins[end]
    for launch, begin in enumerate(reversed(starts)):
        numbers[begin:] = [launch] * (count - begin)
    return Launches(tuple(numbers), times[count])


def _sharing(stages: Sequence[Stage], budget: Budget) -> float:
    """A kernel of stages that do not wait for each other, whose blocks share multiprocessors: the loads of some come while
    others compute and store.

    In a kernel with products, whose blocks have a multiprocessor each, tiles of memory-bound stages wait for their loads one
    after the other. (On an H200, one kernel and several: a map of 4 GB between products takes twice as long; DeepFM 52 and 41
    us, Mamba's block 171 and 131, a scatter of messages 25 and 20.)
    """
    blocks = budget.workers * min(stage.crowd for stage in stages)
    tiles = sum(stage.tiles for stage in stages)
    mean = sum(stage.tiles * stage.first for stage in stages) / tiles
    moving = max(sum(getattr(stage, what) for stage in stages) / rate for what, rate in _rates(budget))
    arithmetic = sum(stage.vector for stage in stages) / budget.workers
    return max(stage.first for stage in stages) + max(moving, arithmetic, (math.ceil(tiles / blocks) - 1) * mean)


def _by_consumer(flows: Sequence[Flow]) -> Mapping[int, Sequence[Flow]]:
    found: dict[int, list[Flow]] = {}
    for flow in flows:
        found.setdefault(flow.consumer, []).append(flow)
    return found


class _Kernel:
    """One kernel's run, stage by stage, from stage number `begin` on; what was made by kernels before is there."""

    def __init__(self, stages: Sequence[Stage], inputs: Mapping[int, Sequence[Flow]], budget: Budget, begin: int):
        self.stages, self.inputs, self.budget, self.begin = stages, inputs, budget, begin
        self.free = self.earlier = np.zeros(budget.workers)
        self.ends: dict[int, np.ndarray] = {}
        self.offset = self.place = 0

    def add(self, number: int) -> None:
        """Run the tiles of the next stage."""
        before = number - 1
        if before in self.ends and self.stages[before].posting:  # who comes after it may wait for its posts
            stage = self.stages[before]
            slower = dataclasses.replace(stage, first=stage.first + stage.posting, step=stage.step + stage.posting)
            self.free, self.offset = self.earlier, self.place
            self._run(before, slower)
        self.earlier, self.place = self.free.copy(), self.offset
        self._run(number, self.stages[number])

    def _run(self, number: int, stage: Stage) -> None:
        ready = _ready(number, self.stages, self.inputs.get(number, ()), self.ends, self.budget)
        self.ends[number] = _run(stage, ready, self.free, self.offset, self.budget)
        self.offset = (self.offset + stage.tiles) % self.budget.workers

    @property
    def seconds(self) -> float:
        """Until the last block is free."""
        return float(self.free.max())


def _ready(
    number: int, stages: Sequence[Stage], inputs: Sequence[Flow], ends: Mapping[int, np.ndarray], budget: Budget
) -> np.ndarray:
    """When each tile of a stage has what it reads by `inputs`; `ends`: of the stages that its kernel has run."""
    tiles = stages[number].tiles
    ready = np.zeros(tiles)
    for flow in inputs:
        if flow.producer not in ends:
            continue
        made = ends[flow.producer]
        hand_off = rates.STREAMED_HAND_OFF if flow.streamed else budget.hand_off
        if flow.named:
            ready = np.maximum(ready, _last_named(made, tiles, flow.named) + hand_off)
            continue
        if flow.whole:
            ready = np.maximum(ready, made.max() + stages[flow.producer].settling + hand_off)
            continue
        # Tiles of both walk the same rows: the first n-th part of one needs the first n-th part of the other.
        last = np.ceil(np.arange(1, tiles + 1) * (len(made) / tiles)).astype(int) - 1
        ready = np.maximum(ready, np.maximum.accumulate(made)[np.clip(last, 0, len(made) - 1)] + hand_off)
    return ready


def _last_named(made: np.ndarray, tiles: int, named: int) -> np.ndarray:
    """When, for each tile, the last of so many of a producer's tiles is made, if indices name any of them alike.

    The largest of n places has the n-th root of a place's distribution; consumers' tiles get all of its quantiles, in an order
    that has nothing to do with their own.
    """
    quantiles = (np.random.default_rng(0).permutation(tiles) + 0.5) / tiles
    places = np.ceil(quantiles ** (1 / named) * len(made)).astype(int) - 1
    return np.sort(made)[np.clip(places, 0, len(made) - 1)]


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
