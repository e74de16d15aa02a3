"""Tasks that will be far slower than the chip needs to be: which, how slow, and why. Asked once engines have planned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.generic.cost import SPREAD
from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.plan import Decline, Plan
from kitsune_mlir.dialects.access import loop_sizes, shape_of
from kitsune_mlir.dialects.products import is_contraction, is_generic
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Work, stage_seconds
from kitsune_mlir.machine.stage_work import count
from kitsune_mlir.machine.target import Target

__all__ = ["SlowTask", "seconds_and_floor", "slow_task", "work_of_task"]

FAR_ABOVE = 10
"""A task that is predicted to take so many times its floor is slow."""
ONE_BLOCK_BYTES, ONE_BLOCK_OPS = 128 << 10, 4_000_000
"""Moved, and done, by a task: from either on, more than one block would have been the quicker for it."""


@dataclasses.dataclass(frozen=True)
class SlowTask:
    """A task that is slow.

    Attributes:
        task, engine, tiles: its name, who does it, its tiles.
        location: where in the model it comes from.
        reason: a sentence.
        seconds: predicted on the planner's machine, alone. floor: the least that its own bytes and operations take there.
    """

    task: str
    engine: str
    tiles: int
    location: ir.Location
    reason: str
    seconds: float
    floor: float

    @property
    def figures(self) -> dict[str, str | int | float]:
        """All but the location, as plain values."""
        return {
            **{"task": self.task, "engine": self.engine, "tiles": self.tiles, "reason": self.reason},
            **{"microseconds": round(1e6 * self.seconds, 2), "floor_microseconds": round(1e6 * self.floor, 2)},
        }

    def __str__(self) -> str:
        return (
            f"{self.task} takes {self.seconds * 1e6:.0f} us of which {self.floor * 1e6:.0f} would do (predicted): {self.reason}"
        )


def work_of_task(task: TaskView, plan: Plan) -> Work:
    """The work of a tile as `machine.stage_cost` takes it."""
    counted = count(task.body, plan.engine)
    asked: dict[tuple[int, int], float] = {}
    whole: dict[tuple[int, int], int] = {}
    for load in task.loads:
        taken = counted.extracted.get(load.tensor, _sliced(load.tensor))
        bytes_ = _bytes(load.buffer.element, load.sizes) if taken is None else _bytes(load.buffer.element, [taken])
        place = load.buffer.memory
        asked[place] = asked.get(place, 0.0) + bytes_
        whole[place] = load.buffer.bytes
    written = sum(_bytes(store.buffer.element, store.sizes) for store in task.stores)
    written += sum(tensor_bytes(op.operands[0].type) for op in task.body if op.name == "kitsune.atomic_scatter")
    return Work(
        engine=plan.engine,
        tiles=task.tiles,
        read_bytes=sum(asked.values()),
        write_bytes=written,
        distinct_bytes=sum(min(task.tiles * bytes_, whole[place]) for place, bytes_ in asked.items()),
        pieces=plan.split.pieces if plan.split else plan.cluster,
        cycles=plan.cycles,
        **counted.fields,
    )


def _made_again(body: Sequence[ir.Operation]) -> float:
    """Operations that threads which make each number of a product alone do once more for each of its columns, or rows: those
    of the maps that its factors are made by."""
    found, makers = 0.0, {result: op for op in body for result in op.results}
    for product in filter(is_contraction, body):
        points = math.prod(loop_sizes(product))
        pending, seen = list(product.operands)[:2], set[ir.Value]()
        while pending:
            value = pending.pop()
            maker = makers.get(value)
            if maker is None or value in seen or not is_generic(maker) or is_contraction(maker):
                continue
            seen.add(value)
            times = points / max(1, math.prod(shape_of(value)))
            found += max(0.0, times - 1) * count([maker]).vector_ops
            pending += maker.operands
    return found


def _sliced(tensor: ir.Value) -> int | None:
    """Elements of a tensor of which only slices are used; None of others."""
    users = {use.owner.operation for use in tensor.uses}
    if not users or any(user.name != "tensor.extract_slice" for user in users):
        return None
    return min(math.prod(shape_of(tensor)), sum(math.prod(shape_of(user.results[0])) for user in users))


def _bytes(element: ir.Type, sizes: Sequence[int]) -> float:
    return float(math.prod(sizes) * element_bytes(element))


def floor_seconds(work: Work, machine: Target) -> float:
    """The least time for a task's own bytes, operations and steps with the whole machine at work on them."""
    products = work.tiles * work.tensor_ops * rates.SLOWER_MATRIX.get(work.element_bytes, 12.0) / machine.matrix_rate
    others = work.tiles * work.vector_ops / (machine.vector_rate / 2)
    moved = (work.distinct_bytes + work.tiles * work.write_bytes) / machine.dram_rate
    return rates.TASK_FLOOR + work.steps * rates.POST + max(products, others, moved)


def seconds_and_floor(plan: Plan, machine: Target) -> tuple[float, float]:
    """Seconds that a task is predicted to take alone, and the least that its own bytes and operations take."""
    return _seconds_and_floor(work_of_task(plan.task, plan), plan, machine)


def _seconds_and_floor(work: Work, plan: Plan, machine: Target) -> tuple[float, float]:
    again = _made_again(plan.task.body) if traits_of(plan.engine).general and not work.cycles else 0.0
    blocks = machine.workers * (SPREAD if work.cycles else 1)  # its cycles are those of blocks that share a multiprocessor
    taken = dataclasses.replace(work, vector_ops=work.vector_ops + again)
    return stage_seconds(taken, machine, blocks), floor_seconds(work, machine)


def slow_task(plan: Plan, declined: Iterable[Decline], machine: Target) -> SlowTask | None:
    """What is to be said of a task; None of one that is as it should be.

    Slow is what no engine took but the general one, what one block does though there is work for many, and what is predicted to
    take more than `FAR_ABOVE` times its floor.
    """
    task, work = plan.task, work_of_task(plan.task, plan)
    seconds, floor = _seconds_and_floor(work, plan, machine)
    reasons = []
    if traits_of(plan.engine).catches_all:
        others = "; ".join(f"{decline.engine}: {decline.reason}" for decline in declined)
        reasons.append(f"no engine but the generic one takes it ({others})" if others else "the generic engine does it")
    moved = work.read_bytes + work.write_bytes
    if plan.pieces == 1 and (moved >= ONE_BLOCK_BYTES or work.tensor_ops + work.vector_ops >= ONE_BLOCK_OPS):
        reasons.append(f"one block of {machine.workers} does all of it")
    if seconds > FAR_ABOVE * floor and not reasons:
        reasons.append(f"{task.tiles} tiles of engine {plan.engine} take {seconds / floor:.0f} times what the chip would need")
    if not reasons:
        return None
    return SlowTask(task.name, plan.engine, task.tiles, task.op.location, "; ".join(reasons), seconds, floor)
