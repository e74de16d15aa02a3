"""The order of a kernel's code: which tasks an engine does together, which share a body, and which block begins each.

A *run* is one task, or successive tasks that an engine emits together (`Engine.join`). Runs of tasks that are alike
(`kernel/task_equality.py`) are done by one *body*.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.task_equality import signals
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["Choice", "Schedule", "make_schedule", "planned_for"]

Choice = tuple[Plan, Sequence[Decline]]
"""The plan taken for a task, and why the engines before declined."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What is emitted, and in which order it runs.

    Attributes:
        plans: one a task. That of a task which has another's body keeps that one's `private`.
        declined: for each task, why the engines before its own declined.
        runs: numbers of the tasks of each run, in order.
        bodies: for each body the numbers of its runs; it is emitted for the first of them.
        starts: for each task, how many pieces of work are dealt out before its first.
        weights: by a semaphore's first slot, what a tile adds: a multiple of the number of blocks that all post for it.
        whole: first slots of semaphores of which every wait is for all posts, so that a block may post once for all its tiles.
    """

    plans: tuple[Plan, ...]
    declined: tuple[tuple[Decline, ...], ...]
    runs: tuple[tuple[int, ...], ...]
    bodies: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    weights: Mapping[int, int]
    whole: frozenset[int]

    @property
    def shared(self) -> bool:
        """Whether some body does several runs."""
        return len(self.bodies) < len(self.runs)

    def body_of(self, run: int) -> tuple[int, int]:
        """The number of the body of a run, and which of the body's runs it is."""
        number = next(n for n, members in enumerate(self.bodies) if run in members)
        return number, self.bodies[number].index(run)


def make_schedule(
    program: ProgramView,
    options: KernelOptions,
    placement: AllBlocks,
    engines: Mapping[str, Engine],
    choose: Callable[[TaskView, KernelOptions], Choice],
    join: bool = True,
) -> Schedule:
    """Plan all tasks and put them in order.

    Args:
        placement: which blocks run which tasks.
        choose: who does a task.
        join: whether an engine may do successive tasks together.

    Raises:
        CompileError: nobody takes a task.
    """
    own = placement.options_of(program, options)
    known: dict[int, Choice] = {}
    # For each task the first one like it: alike in itself, then also in what it shares a run and its semaphores with.
    first = placement.equal_tasks(program) or list(range(len(program.tasks)))
    while True:
        for number in set(first) - set(known):
            known[number] = choose(program.tasks[number], own[number])
        plans = [planned_for(known[first[task.number]][0], task) for task in program.tasks]
        plans, runs = _join(plans, engines, options, placement) if join else (plans, [[n] for n in range(len(plans))])
        weights, whole = _weights(plans), _whole(plans)
        kinds = {slot: (weight, slot in whole) for slot, weight in weights.items()}
        keys = [_run_key([plans[number].task for number in run], [first[number] for number in run], kinds) for run in runs]
        met: dict[object, int] = {}
        finer = [met.setdefault((key, place), n) for key, run in zip(keys, runs, strict=True) for place, n in enumerate(run)]
        if finer == first:
            break
        first = finer
    bodies: dict[object, list[int]] = {}
    for number, key in enumerate(keys):
        bodies.setdefault(key, []).append(number)
    return Schedule(
        tuple(plans),
        tuple(tuple(known[number][1]) for number in first),
        tuple(map(tuple, runs)),
        tuple(map(tuple, bodies.values())),
        tuple(_starts(plans, options, placement)),
        weights,
        whole,
    )


def _run_key(tasks: Sequence[TaskView], first: Sequence[int], kinds: Mapping[int, object]) -> object:
    """Equal for runs that one body can do; `kinds`: by a semaphore's first slot, how it is posted to."""
    posted = tuple(kinds[signal.semaphore.first] for task in tasks for signal in (*task.waits, *task.posts))
    return tuple(first), signals(tasks), posted


def planned_for(plan: Plan, task: TaskView) -> Plan:
    """The plan of a task for another one that is alike."""
    if task is plan.task:
        return plan
    numbers = {buffer.value: number for number, buffer in enumerate(plan.task.buffers)}

    def moved(use: MapUse) -> MapUse:
        old = plan.task.buffers[numbers[use.buffer.value]]
        new = task.buffers[numbers[use.buffer.value]]
        place = {"value": new.value, "argument": new.argument, "offset": new.offset + use.buffer.offset - old.offset}
        return dataclasses.replace(use, buffer=dataclasses.replace(use.buffer, **place))

    return dataclasses.replace(plan, task=task, tensor_maps=tuple(moved(use) for use in plan.tensor_maps))


def _join(
    plans: list[Plan], engines: Mapping[str, Engine], options: KernelOptions, placement: AllBlocks
) -> tuple[list[Plan], list[list[int]]]:
    """The plans, changed where an engine does successive tasks together, and the numbers of each such run of tasks."""
    runs: list[list[int]] = []
    for number, plan in enumerate(plans):
        last = runs[-1][0] if runs else None
        near = last is not None and plans[last].engine == plan.engine and placement.group(last) == placement.group(number)
        together = [*runs[-1], number] if near else []
        # Pieces that wait for each other are dealt out to the blocks of all requests, others to those of their own.
        if options.requests > 1 and any(plans[one].together for one in together):
            together = []
        joined = engines[plan.engine].join([plans[one] for one in together], options) if together else None
        if joined is None:
            runs.append([number])
            continue
        runs[-1] = together
        for one, new in zip(together, joined, strict=True):
            plans[one] = new
    return plans, runs


def _weights(plans: Sequence[Plan]) -> dict[int, int]:
    weights = {signal.semaphore.first: 1 for plan in plans for signal in (*plan.task.waits, *plan.task.posts)}
    for plan in plans:
        for post in plan.task.posts:
            parts = plan.split.posts if plan.split and plan.split.posts > 1 else 2 if plan.halves else 1
            weights[post.semaphore.first] = math.lcm(weights[post.semaphore.first], parts)
    return weights


def _whole(plans: Sequence[Plan]) -> frozenset[int]:
    posts: dict[int, int] = {}
    parts: set[int] = set()
    for plan in plans:
        for post in plan.task.posts:
            first = post.semaphore.first
            posts[first] = posts.get(first, 0) + plan.task.tiles
            if plan.split is not None or post.semaphore.slots > 1:
                parts.add(first)
    for plan in plans:
        for wait in plan.task.waits:
            if wait.rounds is not None or wait.count != posts.get(wait.semaphore.first):
                parts.add(wait.semaphore.first)
    return frozenset(posts) - parts


def _starts(plans: Sequence[Plan], options: KernelOptions, placement: AllBlocks) -> list[int]:
    """Pieces before each task: of the tasks before it on its blocks, or up to the one behind which it had better begin."""
    starts: list[int] = []
    groups = [placement.group(number) for number in range(len(plans))]
    next_ = dict.fromkeys(groups, 0)
    for number, (plan, group) in enumerate(zip(plans, groups, strict=True)):
        behind = _behind(plans, number, options) if len(next_) == 1 else None
        starts.append(next_[group] if behind is None else starts[behind] + plans[behind].pieces)
        next_[group] = starts[number] + plan.pieces
    return starts


def _behind(plans: Sequence[Plan], number: int, options: KernelOptions) -> int | None:
    """The task behind whose last tile a task begins: the one it waits for, if both fit the blocks; None: the one before."""
    plan = plans[number]
    before = max((wait.task for wait in plan.task.waits if wait.task is not None), default=None)
    if not plan.avoids_producers or before is None or plans[before].pieces + plan.pieces > options.workers:
        return None
    return before
