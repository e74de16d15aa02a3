"""The executor: one persistent kernel that walks all tiles of a tile program.

Block b of G takes the tiles b, b + G, b + 2G, ... of the concatenation of all tasks (of a task whose tiles are shared by
several blocks, `interface/split.py`, the pieces of tiles). It runs them in this order, and every
wait is for an earlier tile; as all blocks are resident (cooperative launch), the block that has the first unfinished
tile can always run. The code is one loop a task, which starts with the block after the one that has the last tile of the task
before; or of the task that it waits for, where it had better be on other blocks than that one (`Plan.apart`). Where blocks run
some of the tasks only (`kernel/placement.py`), the same is so for those of each group.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.failures import named
from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, for_, global_timer, grid_size, if_, sync_block, thread_id
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, reduce_add, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, i64
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.codegen.gpu.interface.context import KernelState, TaskContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.operands import Arguments, Operands, Row, Table, Word
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.codegen.gpu.kernel.footprint import Footprint
from kitsune_mlir.codegen.gpu.kernel.kernel import MOST_PARAMETER_BYTES, ArrayParameter, Kernel, parameter_bytes
from kitsune_mlir.codegen.gpu.kernel.length import check_parameters
from kitsune_mlir.codegen.gpu.kernel.live import counts_rows, endings, pass_over
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks, advance, by_multiprocessor
from kitsune_mlir.codegen.gpu.kernel.planned import planned
from kitsune_mlir.codegen.gpu.kernel.requests import RequestTable, acquire_map
from kitsune_mlir.codegen.gpu.kernel.schedule import Schedule
from kitsune_mlir.codegen.gpu.kernel.spatial.shares import Shares
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, fence_async_shared, initialize
from kitsune_mlir.codegen.gpu.sm90.pdl import launch_dependents, wait_for_prerequisites
from kitsune_mlir.codegen.gpu.sm90.tma import prefetch_map
from kitsune_mlir.dialects.attribute_table import PDL_PRIMARY, PDL_SECONDARY
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.runtime.manifest import TIMESTAMP_BYTES, WAITS_BYTES, Manifest

__all__ = ["Builder", "Decision", "Executor", "build"]


@dataclasses.dataclass(frozen=True)
class Decision:
    """Who does a task: the plan taken, and why the engines before it declined."""

    plan: Plan
    declined: tuple[Decline, ...]


@dataclasses.dataclass(frozen=True)
class Executor:
    """A kernel at the level of gpu, nvvm, scf, arith and memref operations.

    Attributes:
        module: holds the kernel, its helper functions and `@smem`.
        manifest: what a launch needs.
        decisions: one a task.
        needs: what it takes of the device.
    """

    module: ir.Module
    manifest: Manifest
    decisions: tuple[Decision, ...]
    needs: Footprint


def build(
    program: ProgramView,
    name: str,
    options: KernelOptions | None = None,
    engines: Mapping[str, Engine] = ENGINES,
    share: bool = False,
) -> Executor:
    """Choose engines and emit the kernel `name` of a tile program, in the program's context; `share`: as of `AllBlocks`.

    Raises:
        CompileError: no engine takes some task, the plans do not fit one kernel, or an engine failed.
        UnsupportedError: the program holds something that the contract does not have.
    """
    options = options or KernelOptions()
    launched = {PDL_PRIMARY, PDL_SECONDARY} & {*program.function.attributes}
    if options.requests > 1 and (launched or Shares.of(program) is not None):
        limit, mode = "one launch by all multiprocessors ('temporal')", "'separate'" if launched else "'spatial'"
        raise UnsupportedError(f"several requests of '{name}'", limit, mode, str(program.function.location))
    with program.function.context, ir.Location.unknown():
        placement = Shares.of(program) or AllBlocks(share=share)
        options, made = planned(program, options, placement, engines, join=not counts_rows(program, options))
        return Builder(program, name, options, made, engines, placement).build()


class Builder:
    """Emits the kernel of a program that has been planned."""

    footprint = Footprint

    def __init__(
        self,
        program: ProgramView,
        name: str,
        options: KernelOptions,
        schedule: Schedule,
        engines: Mapping[str, Engine],
        placement: AllBlocks,
    ):
        self.program, self.name, self.options, self.engines = program, name, options, engines
        self.schedule, self.plans = schedule, schedule.plans
        self.placement = placement
        self.needs = self.footprint(program, name, options, schedule, placement)
        self.threads, self.members = self.needs.threads, self.needs.members
        self.order = [schedule.body_of(run) for run in range(len(schedule.runs))]
        self.table = Table(self.order)
        self.requests: RequestTable | None = None  # of a kernel that does several
        self.endings = endings(program, schedule, options)

    def build(self) -> Executor:
        needs = self.needs
        pointers = self.program.inputs + self.program.results + 2 if needs.places is None else len(needs.places) + 1
        tensor_maps = [tensor_map for _, _, tensor_map in needs.maps]
        arrays = [ArrayParameter(pointers, 8, 8), ArrayParameter(max(1, len(tensor_maps)), 128, 64)]
        alone = [*arrays] if self.schedule.shared else [*["pointer"] * pointers, *tensor_maps]
        several = self.options.requests > 1
        if not several and self.options.most_operations and self.placement.everywhere:
            check_parameters(self.name, parameter_bytes(alone), MOST_PARAMETER_BYTES, needs.maps_of_runs())
        kernel = Kernel(
            self.name,
            ["pointer"] if several else alone,
            self.threads,
            min_blocks=needs.min_blocks,
            cluster=needs.cluster if needs.cluster > 1 else None,
        )
        manifest = needs.manifest()
        with kernel.body() as values:
            if several:
                self.requests = RequestTable(values[0], pointers - 1, len(tensor_maps), needs.slots, needs.partial_bytes)
                self._emit(kernel, manifest, self.requests.arguments(i32(0)), self.requests.workspace)
            elif self.schedule.shared:
                arguments = Arguments(values[0], values[1])
                self._emit(kernel, manifest, arguments, arguments.pointer(pointers - 1))
            else:
                arguments = Arguments(values[:pointers], values[pointers:], needs.places)
                self._emit(kernel, manifest, arguments, arguments.pointer(pointers - 1))
        if self.schedule.shared:
            self.table.define(kernel.module.body)
        manifest = dataclasses.replace(manifest, shared_bytes=kernel.shared_bytes)
        said = [self.endings.parameters(number, plan.parameters) for number, plan in enumerate(self.plans)]
        plans = [dataclasses.replace(plan, parameters=words) for plan, words in zip(self.plans, said, strict=True)]
        decisions = map(Decision, plans, self.schedule.declined)
        return Executor(kernel.module, manifest, tuple(decisions), needs)

    def _emit(self, kernel: Kernel, manifest: Manifest, arguments: Arguments, workspace: Value) -> None:
        self.workspace, self.manifest, self.arguments = workspace, manifest, arguments
        self.thread, self.block, self.blocks = thread, block, blocks = thread_id(), block_id(), grid_size()
        if self.needs.first:
            wait_for_prerequisites()
        counters = Semaphores.open(workspace, manifest.counter_bytes, manifest.slots, manifest.debug)
        waits = offset(workspace, manifest.scratch_offset)
        waits = offset(waits, i64(blocks) * (manifest.scratch_bytes + len(self.plans) * TIMESTAMP_BYTES))
        self.state = KernelState(
            note_wait=functools.partial(self._note_wait, waits, counters.parity) if manifest.timestamps else None,
            counters=counters,
            thread=thread,
            block=block,
            blocks=blocks,
            threads=self.threads,
            module_block=kernel.module.body,
            names={self.name, "smem", Table.SYMBOL},
            fences=any(plan.async_reads or plan.async_writes for plan in self.plans),
            dependent=self.needs.secondary and not manifest.slots and len(self.plans) == 1 and self.plans[0].dependent,
            weights=self.schedule.weights,
            whole=self.schedule.whole,
        )
        self.barrier_base = kernel.shared(span := kernel.arena.take("barriers", self.needs.barriers * Barrier.BYTES, 8))
        self.barriers = [Barrier(offset(self.barrier_base, start)) for start in range(0, span.bytes, Barrier.BYTES)]
        if self.requests is None:
            self._prefetch_maps()
        if PDL_PRIMARY in self.program.function.attributes:
            launch_dependents()
        shared_bytes = max(self.placement.least_shared, *(plan.shared_bytes for plan in self.plans))
        self.shared = kernel.shared(kernel.arena.take("tasks", shared_bytes, 1024))
        self.scratch = offset(workspace, manifest.scratch_offset)
        if manifest.scratch_bytes:
            self.scratch = offset(self.scratch, i64(block) * manifest.scratch_bytes)

        number = by_multiprocessor(block, blocks) if self.needs.numbered else block
        self.ranges = self.placement.ranges(number, blocks)
        start, prefetches = self._operands([0]), self.engines[self.plans[0].engine].prefetches
        if self.placement.everywhere and not prefetches and self.requests is None:
            self._prefetch([0], None, thread, self.threads)
        if self.needs.secondary:
            if prefetches:
                first, task = self._context(0, start), self.plans[0].task
                with named(f"engine '{self.plans[0].engine}', prefetching for task '{task.name}',", task.op.location):
                    self.engines[self.plans[0].engine].prefetch(self.plans[0], first, thread, self.threads, soon=False)
            if not self.state.dependent:
                wait_for_prerequisites()
        if self.schedule.shared:
            self._emit_shared()
        else:
            used = 0
            for number, run in enumerate(self.schedule.runs):
                with ir.Location.name(self.plans[run[0]].task.name):
                    mine = self.ranges[self.placement.group(run[0])].mine
                    emit = functools.partial(self._emit_body, [number], None, used, drop=mine is not None)
                    self._note_times([number], None, 0)
                    emit() if mine is None else if_(mine, emit)
                    self._note_times([number], None, 1)
                used = len(self.plans[run[0]].barriers) or used if mine is None else 0
        counters.close(self.threads, full=self.schedule.shared)

    def _emit_shared(self) -> None:
        """The loop over all runs, each done by its body, in the order that the table has."""

        # Those that run most often are looked for first.
        bodies = sorted(range(len(self.schedule.bodies)), key=lambda number: -len(self.schedule.bodies[number]))

        def step(number: Value) -> None:
            body, row = self.table.step(number)
            # What is computed from it stays in its body: outside of the loop it would take registers from all.
            blocks = fresh(grid_size())
            self.state = dataclasses.replace(self.state, thread=fresh(thread_id()), blocks=blocks)
            self.ranges = {group: dataclasses.replace(range_, count=blocks) for group, range_ in self.ranges.items()}

            def emit(number: int) -> None:
                runs = self.schedule.bodies[number]
                with ir.Location.name(self.plans[self.schedule.runs[runs[0]][0]].task.name):
                    self._note_times(runs, row, 0)
                    self._emit_body(runs, row, 0, drop=True)
                    self._note_times(runs, row, 1)

            def either(place: int) -> None:
                if place == len(bodies) - 1:
                    emit(bodies[place])
                else:
                    if_(body == bodies[place], lambda: emit(bodies[place]), lambda: either(place + 1))

            either(0)

        for_(0, len(self.order), 1, step)

    def _emit_body(self, runs: Sequence[int], row: Value | None, used: int, drop: bool) -> None:
        """The code of runs that share a body.

        Args:
            runs: their numbers.
            row: which of them is done; None: there is one.
            used: barriers that the task before has left in use.
            drop: leave none in use: which task comes next is not known.
        """
        numbers = self.schedule.runs[runs[0]]
        if self.requests is None:
            self._emit_run(runs, row, used, drop)
            return
        requests, whole, state = self.requests, self.arguments, self.state
        mine = self.ranges[self.placement.group(numbers[0])]
        places = [[self.schedule.runs[run][place] for run in runs] for place in range(len(numbers))]
        plans = [self.plans[number] for number in numbers]

        def one(request: Value, firsts: Sequence[Value], count: Value) -> None:
            # What is computed from them stays in the loop: outside of it, it would take registers from all.
            self.state = dataclasses.replace(self.state, thread=fresh(thread_id()), blocks=fresh(grid_size()))
            self.arguments = requests.arguments(fresh(request))
            for tasks, plan in zip(places, plans, strict=True):
                operands = self._operands(tasks, row)
                for index in range(len(plan.tensor_maps)):
                    acquire_map(operands.tensor_map(index))
            self._emit_run(runs, row, 0, True, [(first, count) for first in firsts])

        requests.for_each(mine, [self._operands(tasks, row).start for tasks in places], plans, one)
        self.arguments, self.state = whole, state

    def _emit_run(
        self, runs: Sequence[int], row: Value | None, used: int, drop: bool, dealt: Sequence[tuple[Value, Value]] = ()
    ) -> None:
        """The code of runs that share a body, for one request; `dealt`: of each task the block's first piece, and how many lie
        between its pieces, where requests have blocks of their own."""
        numbers = self.schedule.runs[runs[0]]
        plans = [self.plans[number] for number in numbers]
        engine, wanted = self.engines[plans[0].engine], plans[0].barriers
        if wanted:
            # What the task before did to shared memory comes before what the async proxy does there for this one.
            fence_async_shared()
            initialize(list(zip(self.barriers, wanted, strict=False)), used=self.barriers[:used])
            if drop or runs[0]:
                # Once a part of the block has met by itself, compute-sanitizer's racecheck calls the use of an mbarrier a race
                # with its initialisation if only one block barrier is between (docs/gpu-executor.md); with two it does not.
                sync_block()
        tasks = []
        for place, number in enumerate(numbers):
            operands = self._operands([self.schedule.runs[run][place] for run in runs], row)
            tasks.append(self._context(number, operands, dealt[place] if dealt else None))
        if not dealt:
            tasks[-1].ahead = functools.partial(self._prefetch, [self.schedule.runs[run][-1] for run in runs], row)
        names = ", ".join(f"'{plan.task.name}'" for plan in plans)
        with named(f"engine '{engine.name}', writing code of task {names},", plans[0].task.op.location):
            if len(tasks) == 1:
                engine.emit(plans[0], tasks[0])
            else:
                engine.emit_fused(plans, tasks)
        self._pass_over(tasks[0])
        if drop and wanted:
            if_(self.thread == 0, lambda: [barrier.invalidate() for barrier in self.barriers[: len(wanted)]] and None)

    def _operands(self, tasks: Sequence[int], row: Value | None = None) -> Operands:
        """Those of the tasks with these numbers: places of all runs of a body, of which `row` says which one runs."""
        members = [self.members[number] for number in tasks]
        return Operands(self.arguments, members, functools.partial(self._look_up, tasks, row) if row is not None else None)

    def _look_up(self, tasks: Sequence[int], row: Value, column: Sequence[Word]) -> Value:
        run = next(number for number, run in enumerate(self.schedule.runs) if tasks[0] in run)
        return self.table.look_up(self.order[run][0], column, row)

    def _context(self, number: int, operands: Operands, dealt: tuple[Value, Value] | None = None) -> TaskContext:
        """The kernel as task `number`, or one like it, sees it; `dealt` as of `_emit_run`."""
        plan, mine = self.plans[number], self.ranges[self.placement.group(number)]
        first, count = dealt or (advance(mine.first, operands.start, mine.count), mine.count)
        partials = self._partials()
        shared = self.state, plan, self.shared, self.scratch, self.barrier_base, operands
        end = None if (ending := self.endings.of.get(number)) is None else ending.end(self._count)
        return TaskContext(*shared, first, partials, count, end)

    def _partials(self) -> Value:
        shared = self.needs.shared_partials
        return offset(self.workspace, self.manifest.partials_offset) if shared is None else self.arguments.pointer(shared)

    def _count(self, argument: int) -> Value:
        """What an argument holds, i64: no task writes it."""
        places = self.needs.places
        return load(self.arguments.pointer(argument if places is None else places[argument, 0]), "i64", constant=True)

    def _pass_over(self, task: TaskContext) -> None:
        """Wait and post for the tiles of a task that the call leaves out, so that all counters are what they always are."""
        if task.end is not None:
            shared = self.state, task.plan, self.shared, self.scratch, self.barrier_base, task.operands
            pass_over(task, TaskContext(*shared, task.end + task.first, None, task.blocks))

    def _prefetch(self, after: Sequence[int], row: Value | None, thread: Value, threads: int) -> None:
        """What the next task that reads much can fetch now; `after` one of these tasks, of which `row` says which."""
        found = [self._next_prefetching(number) for number in after]
        nothing = len(self.schedule.bodies), 0
        places = [self.order[run] if run is not None else nothing for run in found]
        which = self._operands(after, row).pick([body for body, _ in places])
        for body in sorted({place[0] for place in places if place != nothing}):
            members = [self.schedule.runs[run][0] for run in self.schedule.bodies[body]]
            mine = [member if other == body else 0 for other, member in places]

            def fetch(body: int = body, members: Sequence[int] = members, mine: Sequence[int] = mine) -> None:
                if len(set(mine)) == 1:
                    operands = self._operands([members[mine[0]]])
                else:
                    assert row is not None
                    operands = self._operands(members, self._look_up(after, row, [Row(body, member) for member in mine]))
                plan = self.plans[members[0]]
                context = self._context(members[0], operands)
                with named(f"engine '{plan.engine}', prefetching for task '{plan.task.name}',", plan.task.op.location):
                    self.engines[plan.engine].prefetch(plan, context, thread, threads)

            fetch() if isinstance(which, int) else if_(which == body, fetch)

    def _next_prefetching(self, after: int) -> int | None:
        """The run of the next task after one, on the same blocks, that can prefetch."""
        for number, run in enumerate(self.schedule.runs):
            engine = self.engines[self.plans[run[0]].engine]
            if run[0] > after and engine.prefetches and self.placement.group(run[0]) == self.placement.group(after):
                return number
        return None

    def _prefetch_maps(self) -> None:
        """Fetch all tensor maps, a thread each, or by one thread where they are parameters of their own."""
        if self.schedule.shared:
            count = len(self.needs.maps)
            for_(self.thread, count, self.threads, lambda number: prefetch_map(self.arguments.map(number)))
        elif self.needs.maps:
            maps = range(len(self.needs.maps))
            if_(self.thread == 0, lambda: [prefetch_map(self.arguments.map(number)) for number in maps] and None)

    def _note_times(self, runs: Sequence[int], row: Value | None, end: int) -> None:
        """Let one thread write the time at which the tasks of a run begin (`end` 0) or end (1), where timestamps are wanted."""
        if not self.manifest.timestamps:
            return
        first = offset(self.workspace, self.manifest.scratch_offset)
        first = offset(first, i64(self.blocks) * self.manifest.scratch_bytes)
        mine = offset(first, i64(self.block) * (len(self.plans) * TIMESTAMP_BYTES))
        for place in range(len(self.schedule.runs[runs[0]])):
            number = self._operands([self.schedule.runs[run][place] for run in runs], row).number
            at = offset(offset(mine, i64(number) * TIMESTAMP_BYTES), 8 * end)
            if_(self.thread == 0, functools.partial(lambda at: store(global_timer(), at, 8), at))

    def _note_wait(self, waits: Value, parity: Value, number: Value | int, nanoseconds: Value) -> None:
        """Let the calling thread add to what the block has waited in a task; clear what the run before has left."""
        mine = offset(waits, i64(i64(block_id()) * len(self.plans) + i64(number)) * WAITS_BYTES)
        reduce_add(offset(mine, i64(parity) * 8), nanoseconds)
        store(i64(0), offset(mine, i64(1 - parity) * 8), 8)
