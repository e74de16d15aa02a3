"""The executor: one persistent kernel that walks all tiles of a tile program.

Block b of G takes the tiles b, b + G, b + 2G, ... of the concatenation of all tasks (of a task whose tiles are shared by
several blocks, `split.py`, the pieces of tiles). It runs them in this order, and every
wait is for an earlier tile; as all blocks are resident (cooperative launch), the block that has the first unfinished
tile can always run. The code is one loop a task, which starts with the block after the one that has the last tile of the task
before; or of the task that it waits for, where it had better be on other blocks than that one (`Plan.apart`). In a spatial
program (`spatial.py`) the same is so for each share of the blocks and the tasks that it has.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.barriers import Barrier, fence_async_shared, initialize
from kitsune_mlir.codegen.gpu.builder import block_id, global_timer, grid_size, if_, thread_id
from kitsune_mlir.codegen.gpu.context import KernelState, TaskContext
from kitsune_mlir.codegen.gpu.dependent_launch import launch_dependents, wait_for_prerequisites
from kitsune_mlir.codegen.gpu.engine import BARRIER_BYTES, Decline, Engine, Limits, Plan
from kitsune_mlir.codegen.gpu.engines import ENGINES, choose
from kitsune_mlir.codegen.gpu.handoff import Counters
from kitsune_mlir.codegen.gpu.kernel import Kernel
from kitsune_mlir.codegen.gpu.launches import FOLLOWS, LEADS
from kitsune_mlir.codegen.gpu.memory import offset, reduce_add, store
from kitsune_mlir.codegen.gpu.smem import SHARED_LIMIT, SharedSpan
from kitsune_mlir.codegen.gpu.spatial import Range, Share, by_multiprocessor, ranges, shares_of
from kitsune_mlir.codegen.gpu.split import lay_out
from kitsune_mlir.codegen.gpu.tasks import ProgramView
from kitsune_mlir.codegen.gpu.tensor_map import TensorMap
from kitsune_mlir.codegen.gpu.tma import prefetch_map
from kitsune_mlir.codegen.gpu.value import Value, i64, select
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.manifest import TIMESTAMP_BYTES, WAITS_BYTES, Manifest, Parameter

__all__ = ["Decision", "Executor", "build"]

REGISTER_FILE = 65536  # registers of a multiprocessor
MOST_THREADS = 2048  # threads resident on a multiprocessor


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
    """

    module: ir.Module
    manifest: Manifest
    decisions: tuple[Decision, ...]


def build(program: ProgramView, name: str, limits: Limits | None = None, engines: Mapping[str, Engine] = ENGINES) -> Executor:
    """Choose engines and emit the kernel `name` of a tile program, in the program's context.

    Raises:
        CompileError: no engine takes some task, or the plans do not fit one kernel.
        UnsupportedError: the program holds something that the contract does not have.
    """
    limits = limits or Limits()
    with program.function.context, ir.Location.unknown():
        shares = shares_of(program)

        def choices(limits: Limits) -> list[tuple[Plan, Sequence[Decline]]]:
            if shares is None:
                return [choose(task, limits, engines) for task in program.tasks]
            own = [dataclasses.replace(limits, workers=share.workers) for share in shares]
            return [choose(task, limit, engines) for task, limit in zip(program.tasks, own, strict=True)]

        chosen = choices(limits)
        # A task that wants many registers limits the threads of all: the others plan again with that in mind.
        most = min((REGISTER_FILE // plan.registers // 32 * 32 for plan, _ in chosen), default=limits.threads)
        if any(plan.threads > most for plan, _ in chosen):
            limits = dataclasses.replace(limits, threads=most)
            chosen = choices(limits)
        decisions = tuple(Decision(plan, tuple(declined)) for plan, declined in chosen)
        return _Builder(program, name, limits, decisions, engines, shares).build()


class _Builder:
    def __init__(
        self,
        program: ProgramView,
        name: str,
        limits: Limits,
        decisions: Sequence[Decision],
        engines: Mapping[str, Engine],
        shares: Sequence[Share] | None,
    ):
        self.program, self.name, self.limits, self.engines = program, name, limits, engines
        self.spatial, self.rings = shares is not None, any(task.uses_ring for task in program.tasks)
        self.shares = list(shares or [Share(0, limits.workers)] * len(decisions))
        self.plans, self.runs = _join([decision.plan for decision in decisions], engines, limits, self.shares)
        self.decisions = tuple(
            dataclasses.replace(decision, plan=plan) for decision, plan in zip(decisions, self.plans, strict=True)
        )
        self.threads = _threads(self.plans, limits)
        self.places, self.partial_bytes, self.slots = lay_out([plan.split for plan in self.plans], program.slots)
        self.maps: dict[tuple[int, int, TensorMap], int] = {}
        for plan in self.plans:
            for use in plan.tensor_maps:
                self.maps.setdefault((use.buffer.argument, use.buffer.offset, use.map), len(self.maps))

    def build(self) -> Executor:
        pointers = self.program.inputs + self.program.results + 2
        parameters: list[str | TensorMap] = ["pointer"] * pointers
        parameters += [tensor_map for _, _, tensor_map in self.maps]
        cluster = max(plan.cluster for plan in self.plans)
        kernel = Kernel(
            self.name,
            parameters,
            self.threads,
            min_blocks=_min_blocks(self.plans, self.threads),
            cluster=cluster if cluster > 1 else None,
        )
        manifest = self._manifest(kernel)
        if cluster > 1 and (self.slots or self.spatial or len(self.plans) > 1):
            raise CompileError(
                f"kernel '{self.name}': clusters of {cluster} blocks need a program of one task that waits for nothing; "
                f"it has {len(self.plans)} tasks and {self.slots} semaphore slots"
            )
        with kernel.body() as arguments:
            self._emit(kernel, manifest, arguments[:pointers], arguments[pointers:])
        manifest = dataclasses.replace(manifest, shared_bytes=kernel.shared_bytes)
        return Executor(kernel.module, manifest, self.decisions)

    def _emit(self, kernel: Kernel, manifest: Manifest, pointers: Sequence[Value], maps: Sequence[Value]) -> None:
        workspace = pointers[-1]
        thread, block, blocks = thread_id(), block_id(), grid_size()
        counters = Counters.open(workspace, manifest.counter_bytes, manifest.slots, manifest.debug)
        waits = offset(workspace, manifest.scratch_offset)
        waits = offset(waits, i64(blocks) * (manifest.scratch_bytes + len(self.plans) * TIMESTAMP_BYTES))
        state = KernelState(
            note_wait=functools.partial(self._note_wait, waits, counters.parity) if manifest.timestamps else None,
            arguments=tuple(pointers[:-1]),
            counters=counters,
            thread=thread,
            block=block,
            blocks=blocks,
            threads=self.threads,
            module_block=kernel.module.body,
            names={self.name, "smem"},
            fences=any(plan.async_reads or plan.async_writes for plan in self.plans),
            weights=_weights(self.plans),
        )
        span = self._barriers(kernel)
        barrier_base = kernel.shared(span)
        barriers = [Barrier(offset(barrier_base, start)) for start in range(0, span.bytes, Barrier.BYTES)]
        if maps:
            if_(thread == 0, lambda: [prefetch_map(tensor_map) for tensor_map in maps] and None)
        if LEADS in self.program.function.attributes:
            launch_dependents()
        # Partners of a ring are told by their multiprocessors: there must not be two blocks on one.
        alone = SHARED_LIMIT // 2 if self.rings else 0
        shared = kernel.arena.take("tasks", max(alone, *(plan.shared_bytes for plan in self.plans)), 1024)
        scratch = offset(workspace, manifest.scratch_offset)
        if manifest.scratch_bytes:
            scratch = offset(scratch, i64(block) * manifest.scratch_bytes)

        number = by_multiprocessor(block, blocks) if self.rings else block
        owners = ranges(self.shares, number, blocks) if self.spatial else {self.shares[0]: Range(None, blocks, None)}
        firsts = {share: number if owner.begin is None else number - owner.begin for share, owner in owners.items()}

        def context(number: int, first: Value) -> TaskContext:
            plan, place = self.plans[number], self.places[number]
            own = [maps[self.maps[use.buffer.argument, use.buffer.offset, use.map]] for use in plan.tensor_maps]
            partials = offset(workspace, manifest.partials_offset + place.offset) if place else None
            count = owners[self.shares[number]].count
            return TaskContext(state, plan, kernel.shared(shared), scratch, barrier_base, own, first, place, partials, count)

        def prefetch(after: int, thread: Value, threads: int, soon: bool = True) -> None:
            """What the next task after number `after` that reads much can fetch now."""
            share = self.shares[after]
            for number in range(after + 1, len(self.plans)):
                engine = self.engines[self.plans[number].engine]
                if engine.prefetches and self.shares[number] == share:
                    done = sum(plan.pieces for n, plan in enumerate(self.plans[:number]) if self.shares[n] == share)
                    first = _advance(firsts[share], done, owners[share].count)
                    engine.prefetch(self.plans[number], context(number, first), thread, threads, soon)
                    break

        if not self.spatial and self.plans and not self.engines[self.plans[0].engine].prefetches:
            prefetch(0, thread, self.threads)
        if manifest.follows:
            if self.engines[self.plans[0].engine].prefetches:
                self.engines[self.plans[0].engine].prefetch(self.plans[0], context(0, block), thread, self.threads, soon=False)
            wait_for_prerequisites()
        used, next_ = 0, dict(firsts)

        def emit(run: Sequence[int], starts: Sequence[Value]) -> None:
            plans = [self.plans[number] for number in run]
            if plans[0].barriers:
                # What the task before did to shared memory comes before what the async proxy does there for this one.
                fence_async_shared()
                initialize(list(zip(barriers, plans[0].barriers, strict=False)), used=barriers[:used])
            tasks = [context(number, first) for number, first in zip(run, starts, strict=True)]
            tasks[-1].ahead = functools.partial(prefetch, run[-1])
            if len(run) == 1:
                self.engines[plans[0].engine].emit(plans[0], tasks[0])
            else:
                self.engines[plans[0].engine].emit_joined(plans, tasks)
            if self.spatial and plans[0].barriers:
                # Which task this block did before is not known when the code of the next one is made.
                if_(thread == 0, lambda: [b.invalidate() for b in barriers[: len(plans[0].barriers)]] and None)

        begun: dict[int, Value] = {}
        for run in self.runs:
            share, starts = self.shares[run[0]], []
            for number in run:
                behind = None if self.spatial else self._behind(number)
                if behind is not None:
                    next_[share] = _advance(begun[behind], self.plans[behind].pieces, owners[share].count)
                starts.append(next_[share])
                begun[number] = next_[share]
                if any(other == share for other in self.shares[number + 1 :]):
                    next_[share] = _advance(next_[share], self.plans[number].pieces, owners[share].count)
            with ir.Location.name(self.plans[run[0]].task.name):
                for number in run:
                    self._note_time(workspace, manifest, thread, block, blocks, 2 * number)
                mine = owners[share].mine
                if mine is None:
                    emit(run, starts)
                    used = len(self.plans[run[0]].barriers) or used
                else:
                    if_(mine, functools.partial(emit, run, starts))
                for number in run:
                    self._note_time(workspace, manifest, thread, block, blocks, 2 * number + 1)
        counters.close(self.threads)

    def _behind(self, number: int) -> int | None:
        """The task behind whose last tile a task begins: the one it waits for, if both fit the blocks; None: the one before."""
        plan = self.plans[number]
        before = max((wait.task for wait in plan.task.waits if wait.task is not None), default=None)
        if not plan.apart or before is None or self.plans[before].pieces + plan.pieces > self.limits.workers:
            return None
        return before

    def _note_time(self, workspace: Value, manifest: Manifest, thread: Value, block: Value, blocks: Value, place: int) -> None:
        """Let one thread write the time, where timestamps are wanted. `place`: twice the task's number, plus 1 for its end."""
        if not manifest.timestamps:
            return
        scratch = offset(workspace, manifest.scratch_offset)
        first = offset(scratch, i64(blocks) * manifest.scratch_bytes)
        mine = offset(first, i64(block) * (len(self.plans) * TIMESTAMP_BYTES))
        if_(thread == 0, lambda: store(global_timer(), offset(mine, 8 * place), 8))

    def _note_wait(self, waits: Value, parity: Value, number: int, nanoseconds: Value) -> None:
        """Let the calling thread add to what the block has waited in a task; clear what the run before has left."""
        mine = offset(waits, (i64(block_id()) * len(self.plans) + number) * WAITS_BYTES)
        reduce_add(offset(mine, i64(parity) * 8), nanoseconds)
        store(i64(0), offset(mine, i64(1 - parity) * 8), 8)

    def _barriers(self, kernel: Kernel) -> SharedSpan:
        """The place of mbarriers, as many as the task with the most has; every task initialises its own there."""
        count = max(len(plan.barriers) for plan in self.plans)
        if count * Barrier.BYTES > BARRIER_BYTES:
            raise CompileError(
                f"kernel '{self.name}': a task wants {count} mbarriers, at most {BARRIER_BYTES // Barrier.BYTES} fit"
            )
        return kernel.arena.take("barriers", count * Barrier.BYTES, 8)

    def _manifest(self, kernel: Kernel) -> Manifest:
        program = self.program
        arguments = [program.buffers[argument] for argument in program.block.arguments]
        parameters = []
        numbers = {"input": 0, "result": 0, "arena": 0}
        index_of: list[Parameter] = []
        for buffer in arguments:
            index_of.append(Parameter(buffer.role, numbers[buffer.role]))
            numbers[buffer.role] += 1
        parameters = [*index_of, Parameter("workspace")]
        for argument, start, tensor_map in self.maps:
            owner = index_of[argument]
            parameters.append(Parameter("tensor_map", owner.index, owner.kind, start, tensor_map.manifest()))

        def sizes(role: str) -> tuple[int, ...]:
            return tuple(buffer.bytes for buffer in arguments if buffer.role == role)

        return Manifest(
            kernel=self.name,
            chip=self.limits.chip,
            parameters=tuple(parameters),
            threads=self.threads,
            shared_bytes=0,
            slots=self.slots,
            partial_bytes=self.partial_bytes,
            scratch_bytes=-(-max(plan.scratch_bytes for plan in self.plans) // 256) * 256,
            arena_bytes=sizes("arena")[0],
            input_bytes=sizes("input"),
            result_bytes=sizes("result"),
            tiles=sum(plan.pieces for plan in self.plans),
            tasks=tuple((plan.task.name, plan.engine, plan.task.tiles) for plan in self.plans),
            debug=self.limits.debug,
            timestamps=self.limits.timestamps,
            follows=FOLLOWS in program.function.attributes,
            streaming=all(plan.streaming and not plan.scratch_bytes for plan in self.plans)
            and not self.slots
            and not self.spatial,
            workers=sum(share.workers for share in set(self.shares)) if self.spatial else 0,
            least_blocks=len(set(self.shares)) if self.rings else 1,
            cluster=max(plan.cluster for plan in self.plans),
        )


def _join(
    plans: list[Plan], engines: Mapping[str, Engine], limits: Limits, shares: Sequence[Share]
) -> tuple[list[Plan], list[list[int]]]:
    """The plans, changed where an engine does successive tasks together, and the numbers of each such run of tasks."""
    plans, runs = list(plans), []
    for number, plan in enumerate(plans):
        near = runs and plans[runs[-1][0]].engine == plan.engine and shares[runs[-1][0]] == shares[number]
        together = [*runs[-1], number] if near else []
        joined = engines[plan.engine].join([plans[one] for one in together], limits) if together else None
        if joined is None:
            runs.append([number])
            continue
        runs[-1] = together
        for one, new in zip(together, joined, strict=True):
            plans[one] = new
    return plans, runs


def _weights(plans: Sequence[Plan]) -> dict[int, int]:
    """By semaphore, what a tile adds where the blocks that share it all post: a multiple of their number."""
    weights: dict[int, int] = {}
    for plan in plans:
        for post in plan.task.posts:
            parts = plan.split.pieces if plan.split and plan.split.spread else 1
            weights[post.semaphore.first] = math.lcm(weights.get(post.semaphore.first, 1), parts)
    return weights


def _threads(plans: Sequence[Plan], limits: Limits) -> int:
    if not plans:
        raise CompileError("a tile program without tasks needs no kernel")
    for plan in plans:
        if plan.threads % 32 or plan.threads > limits.threads:
            raise CompileError(
                f"engine '{plan.engine}' wants {plan.threads} threads for task '{plan.task.name}': "
                f"a multiple of 32, at most {limits.threads}, is possible"
            )
        if plan.shared_bytes > limits.shared_bytes:
            raise CompileError(
                f"engine '{plan.engine}' wants {plan.shared_bytes} bytes of shared memory for task '{plan.task.name}'; "
                f"there are {limits.shared_bytes}"
            )
    return max(256, *(plan.threads for plan in plans))


def _min_blocks(plans: Sequence[Plan], threads: int) -> int:
    """Blocks that should fit one multiprocessor: what the registers allow that the hungriest task wants."""
    registers = max(plan.registers for plan in plans)
    return max(1, min(REGISTER_FILE // (threads * registers), MOST_THREADS // threads))


def _advance(first: Value, tiles: int, blocks: Value) -> Value:
    """The block's first tile of the next task: tiles go round the blocks without a break between tasks."""
    rest = first - tiles
    # first is in [0, blocks): bring first - tiles back there, towards the next multiple.
    lifted = rest.remainder_signed(blocks)
    return select(lifted < 0, lifted + blocks, lifted)
