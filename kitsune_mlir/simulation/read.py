"""Tile programs as the simulator wants them: work and memory from the maps, engines and shares from the plans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import choose, engine_of, for_maps, traits_of
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.footprint import MOST_THREADS, REGISTER_FILE
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.gathered import SECTOR
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.tile_accesses import read_accesses
from kitsune_mlir.dialects.tile_indices import Array, Points
from kitsune_mlir.dialects.tile_reader import MalformedProgram, ProgramView, number_of, shares_of
from kitsune_mlir.dialects.tile_records import Semaphore, Share
from kitsune_mlir.dialects.tile_regions import Access, Ring, Task
from kitsune_mlir.errors import CompileError, UnsupportedError
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Work
from kitsune_mlir.machine.stage_work import Counted, count
from kitsune_mlir.machine.target import Target
from kitsune_mlir.simulation.program import SimPost, SimProgram, SimTask, SimWait, Touch, simulated_cost

__all__ = ["Choice", "Kernel", "choices_of", "sim_program"]

RING_BYTES = 160 << 10
"""Shared memory that a ring of weights takes: so much can be on the way before a tile's waits have ended."""
MOST_DRAWN = 256
"""Rows named by indices, from which on a tile is taken to wait for all of a task."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """Who does a task: `engine`, `pieces` that share a tile, tiles at the beginning (`whole`) that are not shared.

    `copied`: threads copy the operands of its products. `joined`: it shares a ring with the products beside it. `cycles`: of a
    tile, where the engine has counted them itself.
    """

    engine: str
    pieces: int = 1
    whole: int = 0
    copied: bool = False
    joined: bool = False
    cycles: float = 0.0

    @staticmethod
    def from_summary(entry: Mapping[str, Any]) -> Choice:
        """From an entry of `Program.summary["engines"]`; an older program's says less."""
        return Choice(**{field.name: entry[field.name] for field in dataclasses.fields(Choice) if field.name in entry})


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Choices for all tasks, and how many blocks fit a multiprocessor."""

    choices: Sequence[Choice]
    resident: int = 1
    streaming: bool = False


def resident_blocks(threads: int, registers: int, shared_bytes: int, machine: Target) -> int:
    """Blocks of a kernel that fit a multiprocessor."""
    by_shared = machine.fast_bytes // shared_bytes if shared_bytes else MOST_THREADS
    return max(1, min(REGISTER_FILE // max(1, threads * registers), MOST_THREADS // threads, by_shared))


def choices_of(function: ir.Operation, machine: Target) -> Kernel:
    """Plan every task of a tile program, as the code generator would."""
    options = KernelOptions(workers=machine.workers)
    try:
        view = ProgramView(function)
        plans: list[Plan] = [choose(task, options)[0] for task in view.tasks]
    except (CompileError, UnsupportedError):  # planned for another target, or with queues that are not lowered yet
        tasks = [op.operation for op in function.regions[0].blocks[0].operations if op.operation.name == "kitsune.task"]
        return Kernel([Choice(engine_of(task, for_maps())) for task in tasks])
    choices = [
        Choice(
            plan.engine,
            *((plan.split.pieces, plan.split.whole) if plan.split else (1, 0)),
            copied=plan.copied,
            cycles=plan.cycles,
        )
        for plan in plans
    ]
    threads = max([256, *(plan.threads for plan in plans)])
    registers, shared = max(plan.registers for plan in plans), max(plan.shared_bytes for plan in plans) + 1024
    streaming = all(plan.streaming and not plan.scratch_bytes for plan in plans) and not view.slots
    return Kernel(choices, resident_blocks(threads, registers, shared, machine), streaming)


def sim_program(function: ir.Operation, kernel: Kernel, machine: Target) -> SimProgram:
    """The program in numbers.

    Raises:
        MalformedProgram: the function is not of the form of docs/tile-program.md.
    """
    program = read_accesses(function)
    if len(program.tasks) != len(kernel.choices):
        raise MalformedProgram(function, f"has {len(program.tasks)} tasks, {len(kernel.choices)} plans were given")
    declared = program.declared
    shares = shares_of(declared.task_ops) if declared.mode == "spatial" else [None] * len(program.tasks)
    made = {a.region.buffer.argument for t in program.tasks for a in t.accesses if a.region.buffer.role == "arena"}
    tasks: list[SimTask] = []
    # What stands for each semaphore, and for each ring: how often each of its tiles has been released.
    counters = {counter: number for number, counter in enumerate((*program.semaphores, *program.rings))}
    joined = False
    for task, choice, share in zip(program.tasks, kernel.choices, shares, strict=True):
        last = tasks[-1] if tasks and tasks[-1].launch == (number_of(task.op, "launch") or 0) else None
        together = traits_of(choice.engine).weights_ahead == "always" or (choice.joined and joined)
        follows_on = last is not None and last.engine == choice.engine and together
        tasks.append(_task(task, choice, made, machine, share, follows_on, counters))
        joined = choice.joined
    launches = {post.semaphore: task.launch for task in tasks for post in task.posts}
    tasks = [  # a kernel begins when those before it have ended
        dataclasses.replace(task, waits=[w for w in task.waits if launches.get(w.semaphore, task.launch) == task.launch])
        for task in tasks
    ]
    slots = [*(s.slots for s in program.semaphores), *(ring.count for ring in program.rings)]
    return SimProgram(declared.name, tasks, slots, kernel.resident, kernel.streaming)


def _task(
    task: Task,
    choice: Choice,
    made: set[int],
    machine: Target,
    share: Share | None,
    follows_on: bool,
    counters: Mapping[Semaphore | Ring, int],
) -> SimTask:
    tiles = math.prod(task.extents)
    every = Points.every(task.extents)
    accesses = (*task.fetches, *task.accesses)
    precise = any(access.kind != "read" and access.region.element == 4 for access in accesses)
    body = (op.operation for op in task.op.regions[0].blocks[0].operations)
    counted = count(body, choice.engine, _weights(choice.engine, precise))
    touches = [_touch(task, access, counted, tiles, access.region.buffer.argument in made) for access in accesses]
    if traits_of(choice.engine).windows and counted.layers == 1:
        touches = [_within_product(touch, counted, tiles) for touch in touches]
    read = sum(t.asked for t in touches if not t.writes) / tiles
    written = sum(t.asked for t in touches if t.writes) / tiles
    weights = sum(_touch(task, access, counted, tiles, False).asked for access in task.fetches) / tiles
    work = Work(
        engine=choice.engine,
        tiles=tiles,
        read_bytes=read,
        write_bytes=written,
        distinct_bytes=sum(min(t.asked, t.high - t.low) for t in touches if not t.writes),
        pieces=choice.pieces,
        atomic_bytes=sum(_asked(a, counted, 1) for a in task.accesses if a.kind == "atomic"),
        copied_bytes=read if choice.copied else 0.0,
        cycles=choice.cycles,
        **counted.fields,
    )

    def at(values: Array) -> Array:
        return every.take(values)

    slots = []
    for use in task.acquires:  # the tile that had the slot before has been released by all who read it
        before = at(use.number) - use.ring.queue.depth
        slots.append(SimWait(counters[use.ring], np.maximum(before, 0), np.maximum(before + 1, 0), use.ring.queue.pops))
    return SimTask(
        name=task.name,
        engine=choice.engine,
        tiles=tiles,
        cost=simulated_cost(work, machine),
        work=work,
        whole_cost=simulated_cost(dataclasses.replace(work, pieces=1), machine) if choice.whole else None,
        pieces=choice.pieces,
        whole=choice.whole,
        waits=[
            *(SimWait(counters[w.semaphore], at(w.lo), at(w.hi), w.count) for w in task.waits),
            *_row_waits(task, tiles, counters),
            *slots,
        ],
        posts=[
            *(SimPost(counters[p.semaphore], at(p.slot)) for p in task.posts),
            *(SimPost(counters[use.ring], at(use.number)) for use in task.releases),
        ],
        touches=touches,
        share=(share.first, share.workers) if share else None,
        launch=number_of(task.op, "launch") or 0,
        ahead_bytes=min(RING_BYTES, weights) if traits_of(choice.engine).loads_ahead else 0.0,
        follows_on=follows_on,
    )


def _weights(engine: str, precise: bool) -> dict[str, float]:
    """Of scalar operations, in code of an engine; `precise`: results are f32, and sines those of libdevice, which branch."""
    own = rates.SIMULATED.get(engine, traits_of(engine).rates)
    sine = own.f32_sine if precise else own.sine
    return {name: sine * n if name in ("math.sin", "math.cos") else n for name, n in rates.SIMULATED_WEIGHTS.items()}


def _row_waits(task: Task, tiles: int, counters: Mapping[Semaphore | Ring, int]) -> list[SimWait]:
    """Waits for rows that indices name, as if each named any row alike; so many name about all of them."""
    draws, found = np.random.default_rng(0), []
    for rows in task.row_waits:
        named, slots = int((rows.hi - rows.lo).max()), int(rows.wait.hi.max())
        semaphore, count = counters[rows.wait.semaphore], rows.wait.count
        if named >= MOST_DRAWN:
            found.append(SimWait(semaphore, np.zeros(tiles, int), np.full(tiles, slots), count))
            continue
        places = draws.integers(0, rows.named.extent, (named, tiles)) // rows.named.rows
        found += [SimWait(semaphore, slot, slot + 1, count) for slot in places]
    return found


def _asked(access: Access, counted: Counted, tiles: int) -> float:
    """Bytes that `tiles` tiles ask for: of what is read by index, and of rows that are added, whole sectors."""
    region = access.region
    if access.op.name == "bufferization.to_tensor" and (found := counted.sectors.get(access.op.results[0], 0.0)):
        return found * tiles
    if access.op.name == "kitsune.atomic_scatter":
        updates = access.op.operands[0].type
        return float(max(tensor_bytes(updates), shape_of(access.op.operands[0])[0] * SECTOR) * tiles)
    return float(math.prod(region.sizes) * region.element * tiles)


def _within_product(touch: Touch, counted: Counted, tiles: int) -> Touch:
    """What a convolution's tile reads of a tensor: no more than its product has operands, where the map reads the whole."""
    rows, cols, terms = counted.rows, counted.cols, counted.terms
    most = float(max(rows * terms, cols * terms, rows * cols) * (counted.element_bytes or 2) * tiles)
    return touch if touch.writes else dataclasses.replace(touch, asked=min(touch.asked, most))


def _touch(task: Task, access: Access, counted: Counted, tiles: int, between: bool) -> Touch:
    """What all tiles do to one piece of memory. What is read by index counts as if it lay side by side."""
    low, high = access.region.span
    asked = _asked(access, counted, tiles)
    if access.op.name == "bufferization.to_tensor" and access.op.results[0] in counted.extracted:
        high = min(high, low + int(asked))
    ring = access.region.buffer.role == "ring"
    if ring:  # tiles take turns at the slots
        used = next(u.ring for u in (*task.acquires, *task.pops) if u.ring.buffer is access.region.buffer)
        high = low + used.queue.memory.bytes
    return Touch(access.region.buffer.argument, low, high, asked, access.kind != "read", between or ring, ring)
