"""How many multiprocessors each stage of a spatial pipeline owns: an integer program, solved by HiGHS. Numbers only, no IR.

Stages run side by side. A stage that needs whole results of another starts when that has ended; one that needs tiles starts
one tile and a hand-off later, and ends no sooner than its last tile after the other's last. What all take from DRAM, L2, the
tensor cores and the SIMT pipes together bounds the time too, and so does what they ask of shared memory and of the rings in L2.
The time of the last end is minimised: the throughput of calls, one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.machine import rates

__all__ = ["Allocation", "Budget", "Flow", "Stage", "allocate", "least_seconds"]

SECONDS = 1.5
"""Most time for the solver; what it has found by then stands."""
GAP = 0.01
"""Relative distance to the best bound at which it may stop: costs are known less well than that."""
CHOICES = 24
"""Numbers of multiprocessors that are tried for a stage."""

DRAM = "DRAM bandwidth"


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a stage needs.

    Attributes:
        name: for messages.
        tiles: that it can be dealt out in.
        first: seconds of one tile from its inputs to its results.
        step: seconds that each further tile of a block adds.
        tensor, vector: seconds of one multiprocessor's tensor cores and SIMT pipes for the whole stage.
        dram_bytes, l2_bytes: of the whole stage.
        posting: seconds that a tile's post takes beyond its writes, as where it waits for atomics; not in separate launches.
        settling: seconds that a block's one post for all its tiles takes so, where every reader waits for the whole stage.
        crowd: blocks that share a multiprocessor where the stage has a launch for itself.
    """

    name: str
    tiles: int
    first: float
    step: float
    tensor: float = 0.0
    vector: float = 0.0
    dram_bytes: float = 0.0
    l2_bytes: float = 0.0
    posting: float = 0.0
    settling: float = 0.0
    crowd: int = 1

    def seconds(self, workers: int) -> float:
        """Time of the stage on so many multiprocessors, if nothing else holds it up."""
        return self.first + (math.ceil(self.tiles / workers) - 1) * self.step


@dataclasses.dataclass(frozen=True)
class Flow:
    """An edge: stage number `producer` hands `bytes` to number `consumer`, whole or in tiles of `tile_bytes` through a ring.

    `streamed`: the consumer streams weights through a ring that fills while it waits, so little stands still at the hand-off.
    `named`: so many rows that indices name, anywhere in the producer, are what each tile waits for; 0: no such edge.
    """

    producer: int
    consumer: int
    bytes: float
    tile_bytes: float
    whole: bool
    streamed: bool = False
    named: int = 0


@dataclasses.dataclass(frozen=True)
class Budget:
    """The machine.

    Attributes:
        workers: multiprocessors.
        dram_rate, l2_rate, ring_rate: bytes a second of the whole machine; the last is of rings that are deep enough.
        ring_bytes: of L2 that rings may take together.
        cache_bytes: of L2: where all edges together are larger, those without a ring go through DRAM.
        hand_off: seconds from a post to the end of a wait for it.
    """

    workers: int
    dram_rate: float
    l2_rate: float
    ring_rate: float
    ring_bytes: int
    cache_bytes: int
    hand_off: float


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The solution.

    Attributes:
        workers: multiprocessors of each stage.
        depths: tiles that each edge's ring holds for a block of its producer; 0 for edges in memory.
        seconds: of one call.
        limits: (what, the least seconds that it allows), slowest first: the bottleneck, and what would be the next one.
    """

    workers: tuple[int, ...]
    depths: tuple[int, ...]
    seconds: float
    limits: tuple[tuple[str, float], ...]


def allocate(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> Allocation | str:
    """The allocation that takes the least time; a sentence where there is none."""
    if len(stages) > budget.workers:
        return f"{len(stages)} stages cannot own {budget.workers} multiprocessors"
    return _Problem(stages, flows, budget).solve()


def least_seconds(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget) -> float:
    """What no allocation stays below: each stage with all multiprocessors but one for every other. Infinity where there are
    too few. The solver takes up to `SECONDS`, this none."""
    most = budget.workers - len(stages) + 1
    if most < 1:
        return math.inf
    problem = _Problem(stages, flows, budget)
    return max(problem.last_end([most] * len(stages)), *(seconds for _, seconds in problem.shared_limits()))


def worker_choices(tiles: int, workers: int) -> list[int]:
    """Numbers of multiprocessors that give a stage different times: the least for each number of rounds, not too many."""
    fewest = math.ceil(tiles / workers)
    found = sorted({math.ceil(tiles / r) for r in range(fewest, min(tiles, fewest + 2 * workers) + 1)} | {1})
    if len(found) > CHOICES:
        places = np.unique(np.geomspace(1, len(found), CHOICES).round().astype(int)) - 1
        found = [found[-1 - place] for place in places]
    return sorted(set(found) | {1})


class _Problem:
    """Columns: for each stage one binary for each choice of workers; for each streamed edge one for each depth, and the bytes
    of its ring; for each stage its start; the time."""

    def __init__(self, stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget):
        self.stages, self.flows, self.budget = stages, flows, budget
        self.scale = sum(s.seconds(budget.workers) for s in stages) or 1.0  # times are counted in this, so that they are near 1
        self.choices = [worker_choices(s.tiles, budget.workers - len(stages) + 1) for s in stages]
        self.streams = [n for n, flow in enumerate(flows) if not flow.whole]
        sizes = [len(c) for c in self.choices]
        self.first = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self.ring = int(self.first[-1])
        self.bytes = self.ring + len(self.streams) * len(rates.RING_SHARES)
        self.start = self.bytes + len(self.streams)
        self.time = self.start + len(stages)
        self.rows: list[dict[int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, row: dict[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def lasts(self, stage: int, sign: float = 1.0) -> dict[int, float]:
        """The stage's duration, as a sum over its choices."""
        own = self.stages[stage]
        return {
            int(self.first[stage]) + n: sign * own.seconds(workers) / self.scale
            for n, workers in enumerate(self.choices[stage])
        }

    def depth(self, place: int, depth: int) -> int:
        return self.ring + place * len(rates.RING_SHARES) + list(rates.RING_SHARES).index(depth)

    def solve(self) -> Allocation | str:
        stages, budget, scale = self.stages, self.budget, self.scale
        for n, choices in enumerate(self.choices):
            self.add({int(self.first[n]) + c: 1.0 for c in range(len(choices))}, 1, 1)
            self.add({self.time: 1.0, self.start + n: -1.0, **self.lasts(n, -1.0)}, 0)
        every = {int(self.first[n]) + c: float(w) for n, choices in enumerate(self.choices) for c, w in enumerate(choices)}
        self.add(every, high=budget.workers)
        hand_off = budget.hand_off / scale
        for flow in self.flows:
            before, after = flow.producer, flow.consumer
            starts = {self.start + after: 1.0, self.start + before: -1.0}
            if flow.whole:
                self.add({**starts, **self.lasts(before, -1.0)}, hand_off)
                continue
            self.add(starts, stages[before].first / scale + hand_off)
            # The consumer's last tile comes after the producer's.
            ends = {**starts, **self.lasts(after)}
            for column, value in self.lasts(before, -1.0).items():
                ends[column] = ends.get(column, 0.0) + value
            self.add(ends, stages[after].first / scale + hand_off)
        self._rings()
        spilled = {self.depth(place, 0): -self._spilled(self.flows[n]) / scale for place, n in enumerate(self.streams)}
        for what, seconds in self.shared_limits():
            self.add({self.time: 1.0, **(spilled if what == DRAM else {})}, seconds / scale)
        return self._run()

    def _rings(self) -> None:
        """One depth for each streamed edge; all rings fit their part of L2; a shallow one takes longer for the same bytes.

        A ring holds `depth` tiles for each block of its producer: a product of two choices, so each pair of an edge and a depth
        has a row that counts only where the depth is chosen.
        """
        budget = self.budget
        for place, n in enumerate(self.streams):
            flow = self.flows[n]
            self.add({self.depth(place, d): 1.0 for d in rates.RING_SHARES}, 1, 1)
            for depth in rates.RING_SHARES:
                one = depth * flow.tile_bytes / budget.ring_bytes
                most = one * budget.workers
                row = {int(self.first[flow.producer]) + c: -one * w for c, w in enumerate(self.choices[flow.producer])}
                self.add({**row, self.bytes + place: 1.0, self.depth(place, depth): -most}, -most)
            slow = {self.depth(place, d): -flow.bytes / (budget.ring_rate * rate) for d, rate in rates.RING_SHARES.items() if d}
            self.add({self.time: self.scale, **slow}, 0)
        if self.streams:
            self.add({self.bytes + place: 1.0 for place in range(len(self.streams))}, high=1.0)

    def _spilled(self, flow: Flow) -> float:
        """Seconds of DRAM that an edge without a ring takes: it is written and read again where L2 does not hold all edges."""
        fits = sum(f.bytes for f in self.flows) <= self.budget.cache_bytes
        return 0.0 if fits else 2 * flow.bytes / self.budget.dram_rate

    def shared_limits(self) -> list[tuple[str, float]]:
        """The least time that each resource allows which all stages share."""
        stages, budget = self.stages, self.budget
        return [
            (DRAM, sum(s.dram_bytes for s in stages) / budget.dram_rate),
            ("L2 bandwidth", sum(s.l2_bytes for s in stages) / budget.l2_rate),
            ("tensor cores", sum(s.tensor for s in stages) / budget.workers),
            ("SIMT pipes", sum(s.vector for s in stages) / budget.workers),
        ]

    def _run(self) -> Allocation | str:
        count = self.time + 1
        entries = [(r, c, v) for r, row in enumerate(self.rows) for c, v in row.items()]
        rows, columns, values = zip(*entries, strict=True)
        # Half a second to import: only where there is something to solve.
        from scipy import sparse
        from scipy.optimize import Bounds, LinearConstraint, milp

        matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(self.rows), count))
        upper = np.full(count, np.inf)
        upper[: self.bytes] = 1
        objective = np.zeros(count)
        objective[self.time] = 1.0
        objective[: self.ring] = [1e-6 * w for choices in self.choices for w in choices]  # of equal ones the frugal
        found = milp(
            objective,
            constraints=LinearConstraint(matrix, self.low, self.high),  # type: ignore[arg-type]  (arrays are taken)
            integrality=np.concatenate([np.ones(self.bytes), np.zeros(count - self.bytes)]),
            bounds=Bounds(np.zeros(count), upper),  # type: ignore[arg-type]
            options={"time_limit": SECONDS, "mip_rel_gap": GAP},
        )
        if found.x is None:  # no time for a first solution
            return self._found(self._proportional(), (0,) * len(self.flows))
        chosen = [choices[int(np.argmax(found.x[self.first[n] : self.first[n + 1]]))] for n, choices in enumerate(self.choices)]
        depths = [0] * len(self.flows)
        for place, n in enumerate(self.streams):
            begin = self.depth(place, 0)
            depths[n] = list(rates.RING_SHARES)[int(np.argmax(found.x[begin : begin + len(rates.RING_SHARES)]))]
        return self._found(chosen, depths)

    def _proportional(self) -> list[int]:
        """Multiprocessors by the time that each stage would take alone."""
        alone = [stage.seconds(1) for stage in self.stages]
        free = self.budget.workers - len(alone)
        return [1 + int(free * seconds / sum(alone)) for seconds in alone]

    def _found(self, workers: Sequence[int], depths: Sequence[int]) -> Allocation:
        shared = [seconds for _, seconds in self.shared_limits()]
        return Allocation(tuple(workers), tuple(depths), max(self.last_end(workers), *shared), self._limits(workers))

    def last_end(self, workers: Sequence[int]) -> float:
        """When the last stage ends, if nothing but the stages before holds one up."""
        starts, ends = [0.0] * len(workers), [0.0] * len(workers)
        for n, stage in enumerate(self.stages):
            edges = [f for f in self.flows if f.consumer == n]
            hand_off = self.budget.hand_off
            begun = [ends[f.producer] if f.whole else starts[f.producer] + self.stages[f.producer].first for f in edges]
            starts[n] = max((t + hand_off for t in begun), default=0.0)
            last = [ends[f.producer] + hand_off + stage.first for f in edges]
            ends[n] = max([starts[n] + stage.seconds(workers[n]), *last])
        return max(ends, default=0.0)

    def _limits(self, workers: Sequence[int]) -> tuple[tuple[str, float], ...]:
        slowest = max(range(len(workers)), key=lambda n: self.stages[n].seconds(workers[n]))
        stage, own = self.stages[slowest], workers[slowest]
        limits = [
            *self.shared_limits(),
            (f"{own} multiprocessors of {stage.name}", stage.seconds(own)),
            ("hand-offs from stage to stage", self._path(workers)),
        ]
        return tuple(sorted(limits, key=lambda limit: -limit[1]))

    def _path(self, workers: Sequence[int]) -> float:
        """The longest way from the first tile to the last if every stage had one tile of each only."""
        ends = [0.0] * len(workers)
        for n, stage in enumerate(self.stages):
            before = [ends[f.producer] + self.budget.hand_off for f in self.flows if f.consumer == n]
            ends[n] = max(before, default=0.0) + stage.first
        return max(ends, default=0.0)
