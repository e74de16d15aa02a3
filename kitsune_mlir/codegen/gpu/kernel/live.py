"""Kernels of which a call needs the first rows only: where each task's loop over its tiles ends.

A program for up to N rows is called for n of them (`kitsune.valid_rows`); `dialects/live_tiles.py` says which tiles matter.
The count is an argument in device memory, which each task reads when it begins: so a captured graph that is replayed after the
count has changed does what the new one asks for. Where the tiles that matter are the first of a task, a block's loop ends with
them, and the engine knows nothing of the others. For those a block then only waits and posts, as for any tile: every counter
gets what it gets in a call for all rows, so one proof of progress holds for each number of rows. Where they are not, the task
does all of its tiles, and then what these read from others matters.

Of a program of several launches the tasks are told before it is cut (`tell_ends`), when it is not known yet which engines end
early. A task that does not reads numbers that nobody made, for rows that nobody wants; so what makes integers, which others may
take for places in memory, is never left out there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i32, maximum, minimum
from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Number, Split
from kitsune_mlir.codegen.gpu.kernel.schedule import Schedule
from kitsune_mlir.dialects.attribute_table import COUNTED, ENDS, PDL_PRIMARY, PDL_SECONDARY, VALID_ROWS
from kitsune_mlir.dialects.live_tiles import LiveTiles, live_tiles
from kitsune_mlir.dialects.tile_indices import Array
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.dialects.verify import walk

__all__ = ["Ending", "Endings", "Rate", "counts_of", "counts_rows", "endings", "pass_over", "rate_of", "tell_ends"]

UNEQUAL = "it shares its code with stages whose rows end elsewhere"
MOST_PLACES = 1024
"""Places that are tried, in which a whole number of units begins."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """Of places along a dimension of a grid how many, the first ones, are done in a call with so many units of a count.

    `places` groups of places hold `units` units. Place p of all is done in calls with more units than
    `max(p - extra, 0) // group * units // places`.
    """

    units: int
    places: int
    group: int = 1
    extra: int = 0

    def thresholds(self, count: int) -> Array:
        """Of each of `count` places: in calls with more units it is done."""
        return np.maximum(np.arange(count) - self.extra, 0) // self.group * self.units // self.places

    def end(self, count: Value, most: int) -> Value:
        """How many of `most` places are done in a call with `count` (i64) units, i32."""
        # A count beyond all rows is all of them; so products stay small.
        rows = maximum(minimum(count, most * self.units), 0)
        groups = cast((rows * self.places + (self.units - 1)) // self.units, "i32")
        return minimum(groups * self.group + self.extra, most)


@dataclasses.dataclass(frozen=True)
class Ending:
    """Where a task's tiles end that a call needs.

    Attributes:
        rates: by the number of the argument that holds a count.
        places: extent of the grid along its first dimension.
        tiles: at each place.
    """

    rates: tuple[tuple[int, Rate], ...]
    places: int
    tiles: int

    def end(self, count: Callable[[int], Value]) -> Value:
        """How many tiles, the first ones, a call needs, i32; `count` loads what an argument holds, i64."""
        first, *others = (rate.end(count(argument), self.places) for argument, rate in self.rates)
        for other in others:
            first = maximum(first, other)
        return first * self.tiles


@dataclasses.dataclass(frozen=True)
class Endings:
    """The tasks of which a call may leave out tiles.

    Attributes:
        of: by number of the task.
        refused: by number of the task why not, of those where rows that nobody asks for could be left out.
    """

    of: Mapping[int, Ending] = dataclasses.field(default_factory=dict)
    refused: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def parameters(self, number: int, known: Mapping[str, Any]) -> dict[str, Any]:
        """What was decided for a task, for `explain`, with what its engine says."""
        if number in self.of:
            arguments = ", ".join(str(argument) for argument, _ in self.of[number].rates)
            return {**known, "tiles end": f"at the count that argument {arguments} holds"}
        if number in self.refused:
            return {**known, "tiles end": f"with the last: {self.refused[number]}"}
        return dict(known)


def counts_rows(program: ProgramView, options: KernelOptions) -> bool:
    """Whether calls of a program may leave out tiles: it has a count, and is of one request, by all blocks."""
    attributes = program.function.attributes
    if any(counts_of(task.op) for task in program.tasks):
        return True
    if {PDL_PRIMARY, PDL_SECONDARY} & {*attributes} or options.requests > 1 or program.mode == "spatial":
        return False
    counted = [op.name for op in walk(program.function) if COUNTED in op.attributes]
    if "tm_tensor.scatter" in counted:  # as a loop over rows it looks at all of them here
        return False
    return VALID_ROWS in attributes or bool(counted)


def endings(program: ProgramView, schedule: Schedule, options: KernelOptions) -> Endings:
    """Where the tasks' tiles end, for the plans that were made."""
    if not counts_rows(program, options):
        return Endings()
    found: dict[int, Ending] = {}
    refused: dict[int, str] = {}
    if any(counts_of(task.op) for task in program.tasks):
        told = {number: plan for number, plan in enumerate(schedule.plans) if ENDS in plan.task.op.attributes}
        refused = {number: reason for number, plan in told.items() if (reason := _refusal(plan))}
        found = {number: _told(plan.task) for number, plan in told.items() if number not in refused}
        for number in _unequal(schedule, found):
            refused[number] = UNEQUAL
            del found[number]
        return Endings(found, refused)

    def able(number: int, live: LiveTiles) -> LiveTiles | None:
        plan = schedule.plans[number]
        ending = refused.get(number) or _refusal(plan) or _ending(plan.task.grid, live)
        if isinstance(ending, str):
            refused[number] = ending
            return None
        found[number] = ending
        return _slower(live.axis, ending)

    while True:
        found.clear()
        live_tiles(program.function, able)
        unequal = _unequal(schedule, found)
        if not unequal:
            return Endings(found, refused)
        refused |= dict.fromkeys(unequal, UNEQUAL)


def tell_ends(function: ir.Operation) -> None:
    """Say of each task of a tile program where its tiles end (`kitsune.tile_ends`), before it is cut into launches."""
    if {PDL_PRIMARY, PDL_SECONDARY} & {*function.attributes}:
        return
    tasks = [op.operation for op in function.regions[0].blocks[0].operations if op.operation.name == "kitsune.task"]
    if any("tm_tensor.scatter" == op.name and COUNTED in op.attributes for op in walk(function)):
        return
    found: dict[int, Ending] = {}

    def able(number: int, live: LiveTiles) -> LiveTiles | None:
        ending = _ending(tuple(ir.DenseI64ArrayAttr(tasks[number].attributes["grid"])), live)
        if isinstance(ending, str) or _makes_integers(tasks[number]):
            return None
        found[number] = ending
        return _slower(live.axis, ending)

    live_tiles(function, able)
    with function.context:
        for number, ending in found.items():
            each = [(argument, r.units, r.places, r.group, r.extra) for argument, r in ending.rates]
            tasks[number].attributes[ENDS] = ir.DenseI64ArrayAttr.get([word for words in each for word in words])


def counts_of(task: ir.Operation) -> tuple[int, ...]:
    """Numbers of the arguments that hold the counts of a task that was told where its tiles end."""
    return tuple(ir.DenseI64ArrayAttr(task.attributes[ENDS]))[::5] if ENDS in task.attributes else ()


def _told(task: TaskView) -> Ending:
    words = list(ir.DenseI64ArrayAttr(task.op.attributes[ENDS]))
    rates = tuple((argument, Rate(*rate)) for argument, *rate in zip(*(words[n::5] for n in range(5)), strict=True))
    axis = next((dim for dim, extent in enumerate(task.grid) if extent != 1), 0)
    return Ending(rates, task.grid[axis], task.tiles // task.grid[axis])


def _makes_integers(task: ir.Operation) -> bool:
    """Whether a task stores integers that are more than flags."""
    stored = [op.operands[1] for op in walk(task) if op.name == "bufferization.materialize_in_destination"]
    kinds = [ir.MemRefType(value.type).element_type for value in stored]
    return any(isinstance(kind, ir.IntegerType) and ir.IntegerType(kind).width > 1 for kind in kinds)


def _slower(axis: int, ending: Ending) -> LiveTiles:
    """The tiles that are done where a task ends so: all that matter, at least."""
    return LiveTiles(axis, {argument: _plain(rate.thresholds(ending.places)) for argument, rate in ending.rates})


def _unequal(schedule: Schedule, found: Mapping[int, Ending]) -> list[int]:
    """The tasks with an ending that share a body with others that have another one, or none."""
    wrong: list[int] = []
    for members in schedule.bodies:
        for place in range(len(schedule.runs[members[0]])):
            tasks = [schedule.runs[run][place] for run in members]
            if len({found.get(task) for task in tasks}) > 1:
                wrong += [task for task in tasks if task in found]
    return wrong


def _refusal(plan: Plan) -> str:
    """Why a planned task cannot end before its last tile; empty if it can."""
    if not traits_of(plan.engine).ends_early:
        return f"engine '{plan.engine}' does all"
    if plan.beside > 1:
        return "the blocks of a cluster do tiles beside each other together"
    return "the blocks of a cluster share each tile" if plan.cluster > 1 else ""


def _ending(grid: Sequence[int], live: LiveTiles) -> Ending | str:
    """Where a task with a grid ends; or why it does not before its last tile."""
    if any(extent != 1 for extent in grid[: live.axis]):
        return "rows are not the outermost dimension of its tiles"
    rates = {argument: rate_of(thresholds) for argument, thresholds in live.thresholds.items()}
    known = tuple((argument, rate) for argument, rate in rates.items() if rate is not None)
    if len(known) < len(rates):
        return "hardly a tile could be left out"
    return Ending(known, grid[live.axis], math.prod(grid) // grid[live.axis])


def _plain(numbers: Array) -> tuple[int, ...]:
    return tuple(map(int, numbers))


def rate_of(thresholds: Sequence[int]) -> Rate | None:
    """The rate at which thresholds of places grow (`LiveTiles.thresholds`): theirs, or one whose are nowhere above them.

    Args:
        thresholds: which never fall.

    Returns:
        None where nearly every place is done in every call.
    """
    each = np.array(thresholds, np.int64)
    if each[0] < 0 or each[-1] <= 0:
        return None
    group = int((each == each[0]).sum())
    steps = each[::group]
    if each[0] == 0 and np.array_equal(np.repeat(steps, group)[: len(each)], each):
        place = np.arange(1, len(steps))
        for places in range(1, MOST_PLACES + 1):
            least = (-(-steps[1:] * places // place)).max()
            most = (-(-(steps[1:] + 1) * places // place) - 1).min()
            if 1 <= least <= most:
                return Rate(int(least), places, group)
    for extra in range(len(each) // 2):
        slower = Rate(int(each[-1]), int(each.argmax()), 1, extra)
        if (slower.thresholds(len(each)) <= each).all():
            return slower
    return None


def pass_over(task: TaskContext, rest: TaskContext) -> None:
    """Emit the waits and posts of the tiles of a task that the call leaves out, behind its loop over the others.

    Args:
        task: whose loop has ended.
        rest: the same task, with the block's tiles of those from `task.end` on, dealt out anew.
    """
    split = task.plan.split

    def free(split: Split, read: Number) -> None:
        """Nobody reads partial results of such a tile: who takes their memory next waits for as many posts as ever."""
        each = split.reads // (task.view.tiles - split.whole)
        if_(task.thread == 0, lambda: task.kernel.counters.post(i32(read), each))

    def tile(tile: TileContext) -> None:
        tile.wait()
        tile.finish()
        if split is not None and (place := task.place) is not None:
            if_(tile.number >= split.whole, functools.partial(free, split, place.read))

    if task.view.posts or split is not None:
        rest.for_each_tile(tile)
