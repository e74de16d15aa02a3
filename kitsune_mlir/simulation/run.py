"""The discrete-event run: blocks walk their tiles, wait for posts, and share memory and L2.

A block runs its tiles in order. A tile's waits end when its slots have their posts; then it takes `start` (or `turn`, where it
follows a tile of the same task), then its own work runs beside its transfers over memory and L2, which it shares with all other
tiles; then its results go out, and `post` later the tiles that wait for them know. The next tile begins while results go out,
as far as the engine overlaps them.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Cost, bulk_rate
from kitsune_mlir.machine.target import Target
from kitsune_mlir.simulation.program import SimProgram
from kitsune_mlir.simulation.shared import SharedRate
from kitsune_mlir.simulation.traffic import Traffic

__all__ = ["DeadlockError", "Spans", "run"]


class DeadlockError(KitsuneError):
    """Blocks wait for posts that nobody will make; the message names the first waits."""


@dataclasses.dataclass(frozen=True, eq=False)
class Spans:
    """One entry a piece of work, in order of the program; seconds.

    Attributes:
        task, tile, block: whose.
        begin: the block was free for it. ready: its waits had ended. end: its results were in memory.
    """

    task: np.ndarray
    tile: np.ndarray
    block: np.ndarray
    begin: np.ndarray
    ready: np.ndarray
    end: np.ndarray


def run(program: SimProgram, traffic: Sequence[Traffic], machine: Target) -> tuple[Spans, int]:
    """Run the program once; the spans, and the number of blocks.

    Raises:
        DeadlockError: no tile can go on before all have ended.
    """
    return _Run(program, traffic, machine).run()


class _Run:
    def __init__(self, program: SimProgram, traffic: Sequence[Traffic], machine: Target):
        self.program, self.machine = program, machine
        self.tasks = program.tasks
        counts = [task.count for task in self.tasks]
        self.firsts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        self.total = int(self.firsts[-1])
        seats = max(1, machine.workers * program.resident)
        self.blocks = seats if any(task.share for task in self.tasks) else min(seats, self.total)
        self.task_of = np.repeat(np.arange(len(counts)), counts)
        self.tile_of = np.concatenate([[task.tile_of(n)[0] for n in range(task.count)] for task in self.tasks])
        self.dram = SharedRate(machine.dram_rate * rates.DRAM_SHARE)
        self.l2 = SharedRate(bulk_rate(machine))
        self.dram_each = [t.dram / task.tiles for t, task in zip(traffic, self.tasks, strict=True)]  # bytes of a tile
        self.l2_each = [t.l2 / task.tiles for t, task in zip(traffic, self.tasks, strict=True)]
        parts = [[task.pieces_of(task.tile_of(n)[0]) for n in range(task.count)] for task in self.tasks]
        self.parts = np.concatenate(parts)
        self.posts = [np.zeros(n, np.int64) for n in program.slots]
        self.waiters: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (semaphore, slot) -> (count, piece)
        self.unfinished = np.concatenate([[task.pieces_of(n) for n in range(task.tiles)] for task in self.tasks])
        self.tile_firsts = np.concatenate([[0], np.cumsum([task.tiles for task in self.tasks])]).astype(int)
        self.begin, self.ready, self.end = (np.zeros(self.total) for _ in range(3))
        self.block_of = np.full(self.total, -1)
        self.open = np.zeros(self.total, np.int64)  # things that a piece still does
        self.successors: set[int] = set()  # pieces whose block did a piece of the same task just before
        self.behind: set[int] = set()  # first pieces of blocks whose launch waited for another one
        self.crowd = -(-self.blocks // machine.workers)  # blocks of a multiprocessor share its pipes
        launches = sorted({task.launch for task in self.tasks})
        self.left = {n: sum(t.count for t in self.tasks if t.launch == n) for n in launches}
        self.held: dict[int, list[tuple[int, int]]] = {}  # by launch: (block, piece) that wait for those before
        self.supply = iter(range(self.total))
        self.queues = None if program.streaming else [iter(queue) for queue in self._queues()]
        self.events: list[tuple[float, int, str, int]] = []
        self.sequence = 0
        self.now = 0.0

    # The order of work.

    def _queues(self) -> list[list[int]]:
        """For each block its pieces in order."""
        queues: list[list[int]] = [[] for _ in range(self.blocks)]
        shares = self._shares()
        for number, task in enumerate(self.tasks):
            pieces = range(int(self.firsts[number]), int(self.firsts[number + 1]))
            if task.share is None:
                for n in pieces:
                    queues[n % self.blocks].append(n)
                continue
            own = shares[task.share]
            for n in pieces:
                queues[own[(n - pieces.start) % len(own)]].append(n)
        return queues

    def _shares(self) -> dict[tuple[int, int], range]:
        """The blocks of each share: as planned, or smaller where there are fewer blocks; at least one."""
        shares = sorted({task.share for task in self.tasks if task.share is not None})
        planned = max((first + count for first, count in shares), default=1)
        scale = min(1.0, self.blocks / planned)
        found: dict[tuple[int, int], range] = {}
        begin = 0
        for place, (first, count) in enumerate(shares):
            begin = min(max(begin, int(first * scale)), self.blocks - (len(shares) - place))
            end = max(begin + 1, min(begin + int(count * scale), self.blocks - (len(shares) - place - 1)))
            found[first, count] = range(begin, end)
            begin = end
        return found

    def run(self) -> tuple[Spans, int]:
        """See the function of this name."""
        for block in range(self.blocks):
            piece = next(self.supply if self.queues is None else self.queues[block], None)
            if piece is not None:
                self._give(block, piece, 0.0)
        while True:
            times = (self.events[0][0] if self.events else float("inf"), self.dram.next_end(), self.l2.next_end())
            self.now = min(times)
            if self.now == float("inf"):
                break
            self.dram.advance(self.now)
            self.l2.advance(self.now)
            if times[0] <= self.now:
                _, _, kind, piece = heapq.heappop(self.events)
                getattr(self, kind)(piece)
            else:
                self._part_done((self.dram if times[1] <= self.now else self.l2).pop())
        if sum(self.left.values()):
            raise DeadlockError(self._deadlock())
        return self._spans(), self.blocks

    def _cost(self, piece: int) -> Cost:
        number = self.task_of[piece]
        return self.tasks[number].cost_of(piece - int(self.firsts[number]))

    def _at(self, time: float, kind: str, piece: int) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, self.sequence, kind, piece))

    def _give(self, block: int, piece: int, time: float) -> None:
        """The block is free at `time` for its next piece, which begins then if its launch has begun."""
        self.block_of[piece] = block
        launch = self.tasks[self.task_of[piece]].launch
        if any(left for number, left in self.left.items() if number < launch):
            self.held.setdefault(launch, []).append((block, piece))
            return
        self._at(time, "_arrive", piece)

    # The life of a piece: it arrives, waits, works, is stored and posted.

    def _arrive(self, piece: int) -> None:
        self.begin[piece] = self.now
        number = self.task_of[piece]
        self.open[piece] = 1  # until its work has begun
        early = min(self.dram_each[number] / self.parts[piece], self.tasks[number].ahead_bytes)
        if early:
            self.open[piece] += 1
            self.dram.add(early, piece)
        self._look(piece)

    def _look(self, piece: int) -> None:
        """Go on if all waits of a piece are met, else wait for the last slot that is not."""
        task, tile = self.tasks[self.task_of[piece]], self.tile_of[piece]
        for wait in task.waits:
            lo, hi = int(wait.lo[tile]), int(wait.hi[tile])
            short = np.flatnonzero(self.posts[wait.semaphore][lo:hi] < wait.count)
            if len(short):
                self.waiters.setdefault((wait.semaphore, lo + int(short[-1])), []).append((wait.count, piece))
                return
        self.ready[piece] = self.now
        lead = task.cost.turn if piece in self.successors and self.now == self.begin[piece] else task.cost.start
        if task.waits and self.now == self.begin[piece]:
            lead += task.cost.poll
        if piece in self.behind:
            lead = max(0.0, lead - rates.LAUNCH_AHEAD)
        self._at(self.now + lead, "_work", piece)

    def _work(self, piece: int) -> None:
        number = self.task_of[piece]
        self.open[piece] += 1
        self._at(self.now + self._cost(piece).busy(self.crowd), "_part_done", piece)
        late = self.dram_each[number] / self.parts[piece] - self.tasks[number].ahead_bytes
        for rate, amount in ((self.dram, late), (self.l2, self.l2_each[number] / self.parts[piece])):
            if amount > 0:
                self.open[piece] += 1
                rate.add(amount, piece)
        self._part_done(piece)

    def _part_done(self, piece: int) -> None:
        """One of the things that a piece does side by side has ended; after the last one its results go out."""
        self.open[piece] -= 1
        if self.open[piece]:
            return
        cost = self._cost(piece)
        out = cost.store + cost.finish
        self._at(self.now + out, "_stored", piece)
        block = int(self.block_of[piece])
        following = next(self.supply if self.queues is None else self.queues[block], None)
        if following is None:
            return
        if self.queues is not None and self._goes_on(piece, following):
            self.successors.add(following)
            out *= 1 - cost.overlaps
        self._give(block, following, self.now + out)

    def _goes_on(self, piece: int, following: int) -> bool:
        """Whether a block that has both pieces begins the second one while it stores the first one's results."""
        task, number = self.task_of[piece], self.task_of[following]
        return task == number or (self.tasks[number].follows_on and task == number - 1)

    def _stored(self, piece: int) -> None:
        self.end[piece] = self.now
        task = self.tasks[self.task_of[piece]]
        place = self.tile_firsts[self.task_of[piece]] + self.tile_of[piece]
        self.unfinished[place] -= 1
        self.left[task.launch] -= 1
        if not self.left[task.launch]:
            for block, held in self.held.pop(min((n for n in self.held), default=-1), []):
                self.behind.add(held)
                self._give(block, held, self.now + rates.LAUNCH_GAP)
        if not self.unfinished[place] and task.posts:
            self._at(self.now + task.cost.post, "_posted", piece)

    def _posted(self, piece: int) -> None:
        task, tile = self.tasks[self.task_of[piece]], self.tile_of[piece]
        for post in task.posts:
            slot = int(post.slot[tile])
            self.posts[post.semaphore][slot] += 1
            have = self.posts[post.semaphore][slot]
            waiting = self.waiters.pop((post.semaphore, slot), [])
            self.waiters[post.semaphore, slot] = [w for w in waiting if w[0] > have]
            for _, other in (w for w in waiting if w[0] <= have):
                self._look(other)

    # What came out.

    def _spans(self) -> Spans:
        return Spans(self.task_of, self.tile_of, self.block_of, self.begin, self.ready, self.end)

    def _deadlock(self) -> str:
        """The waits that will never end, of the first few blocks."""
        stuck = sorted((piece, semaphore, slot, count) for (semaphore, slot), w in self.waiters.items() for count, piece in w)
        lines = []
        for piece, semaphore, slot, count in stuck[:4]:
            name = f"block {self.block_of[piece]} in @{self.tasks[self.task_of[piece]].name} tile {self.tile_of[piece]}"
            have = int(self.posts[semaphore][slot])
            lines.append(f"{name} waits for {count} posts of slot {slot} of semaphore {semaphore}, which has {have}")
        done = int((self.end > 0).sum())
        return f"'{self.program.name}' locks up after {done} of {self.total} pieces: " + "; ".join(lines)
