"""What is simulated: a tile program in plain numbers. Nothing here knows IR, so that tests can write programs by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Cost, Work, cost_of
from kitsune_mlir.machine.target import Target

__all__ = ["SimPost", "SimProgram", "SimTask", "SimWait", "Touch", "simulated_cost"]


def simulated_cost(work: Work, machine: Target) -> Cost:
    """The cost of a tile by `rates.SIMULATED`."""
    return cost_of(work, machine, rates.SIMULATED.get(work.engine))


@dataclasses.dataclass(frozen=True)
class SimWait:
    """Every tile waits until slots [lo, hi) of `semaphore` have `count` posts each; `lo` and `hi` have one entry a tile."""

    semaphore: int
    lo: np.ndarray
    hi: np.ndarray
    count: int


@dataclasses.dataclass(frozen=True)
class SimPost:
    """Every tile adds one to its `slot` (one entry a tile) of `semaphore`."""

    semaphore: int
    slot: np.ndarray


@dataclasses.dataclass(frozen=True)
class Touch:
    """Memory that all tiles of a task read or write together.

    Attributes:
        memory: which memory; equal numbers are the same bytes.
        low, high: first byte and end.
        asked: bytes that all tiles together ask for.
        writes: whether it is written.
        ring: whether it is the slots of a ring queue.
        between: whether other tasks of the program made it or will read it (an edge), not the caller.
    """

    memory: int
    low: int
    high: int
    asked: float
    writes: bool = False
    between: bool = False
    ring: bool = False


@dataclasses.dataclass(frozen=True)
class SimTask:
    """A task.

    Attributes:
        name, engine: as in the program.
        tiles: how many.
        cost: of one tile, or of a piece where several blocks share tiles.
        pieces: blocks that share a tile.
        whole: tiles at the beginning that are not shared; `whole_cost` is the cost of one of them.
        waits, posts, touches: see there.
        share: (first, count) of the multiprocessors that do it; None for all of them.
        launch: number of the kernel that it is part of.
        ahead_bytes: of a tile's bytes from memory, what may be asked for before the waits have ended (weights).
        work: what `cost` was computed from, if it was.
        follows_on: the same engine code does the task before: the block goes on without a new start.
    """

    name: str
    engine: str
    tiles: int
    cost: Cost
    pieces: int = 1
    whole: int = 0
    waits: Sequence[SimWait] = ()
    posts: Sequence[SimPost] = ()
    touches: Sequence[Touch] = ()
    share: tuple[int, int] | None = None
    launch: int = 0
    ahead_bytes: float = 0.0
    follows_on: bool = False
    whole_cost: Cost | None = None
    work: Work | None = None

    @property
    def count(self) -> int:
        """Pieces of work that blocks take."""
        return self.whole + (self.tiles - self.whole) * self.pieces

    def cost_of(self, number: int) -> Cost:
        """The cost of piece number `number`."""
        return self.whole_cost if self.whole_cost is not None and number < self.whole else self.cost

    def tile_of(self, number: int) -> tuple[int, int]:
        """The tile of piece number `number`, and which piece of it."""
        if number < self.whole:
            return number, 0
        rest = number - self.whole
        return self.whole + rest // self.pieces, rest % self.pieces

    def pieces_of(self, tile: int) -> int:
        """How many blocks share a tile."""
        return 1 if tile < self.whole else self.pieces


@dataclasses.dataclass(frozen=True)
class SimProgram:
    """A tile program.

    Attributes:
        name: of the program.
        tasks: in order.
        slots: how many slots each semaphore has.
        resident: blocks that fit a multiprocessor.
        streaming: every tile has a block of its own, handed out in order.
    """

    name: str
    tasks: Sequence[SimTask]
    slots: Sequence[int] = ()
    resident: int = 1
    streaming: bool = False
