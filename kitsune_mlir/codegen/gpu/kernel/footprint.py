"""What a kernel takes of the device: threads, counters, tensor maps, memory; and the manifest that a launch reads."""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.interface.operands import Member
from kitsune_mlir.codegen.gpu.interface.plan import BARRIER_BYTES, KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.split import PartialsSlot, lay_out
from kitsune_mlir.codegen.gpu.kernel.live import counts_of
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.schedule import Schedule
from kitsune_mlir.codegen.gpu.kernel.semaphore_names import counter_names
from kitsune_mlir.codegen.gpu.kernel.spare import place_for
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.attribute_table import PDL_FIRST, PDL_PRIMARY, PDL_SECONDARY
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.manifest import Manifest, Parameter

__all__ = ["MOST_THREADS", "REGISTER_FILE", "Footprint"]

REGISTER_FILE = 65536  # registers of a multiprocessor
MOST_THREADS = 2048  # threads resident on a multiprocessor


class Footprint:
    """The needs of all plans together.

    Attributes:
        threads: of a block.
        min_blocks: blocks that should fit one multiprocessor: what the registers allow that the hungriest task wants.
        barriers: mbarriers of the task with the most.
        cluster: blocks of a cluster.
        numbered: whether blocks have the numbers of their multiprocessors (`AllBlocks.numbered`).
        arena_bytes: of the arena, with what lies behind it.
        maps: number of each tensor map: (argument, offset, map) in the order of the kernel's parameters.
        members: each task as the operand of a body.
        first: the kernel comes after one that copies inputs, for whose end it waits before anything else.
        secondary: it comes after another one of the program.
        places: by memory of a buffer, (argument of the program, offset), the number of the kernel's pointer to it. A launch of
            several takes pointers to what it uses, in the order of use, so that equal launches have equal code; None for any
            other kernel, which takes the program's arguments.
        shared_partials: number of the pointer to memory in the arena, or behind it, where a launch of several has its partial
            results; None where these are in the kernel's own memory.

    Raises:
        CompileError: the plans do not fit one kernel.
    """

    def __init__(self, program: ProgramView, name: str, options: KernelOptions, schedule: Schedule, placement: AllBlocks):
        self.program, self.name, self.options, self.schedule = program, name, options, schedule
        self.placement = placement
        plans = schedule.plans
        self.threads = _threads(plans, options)
        registers = max(plan.registers for plan in plans)
        self.min_blocks = max(1, min(REGISTER_FILE // (self.threads * registers), MOST_THREADS // self.threads))
        self.barriers = max(len(plan.barriers) for plan in plans)
        if self.barriers * Barrier.BYTES > BARRIER_BYTES:
            raise CompileError(
                f"kernel '{name}': a task wants {self.barriers} mbarriers, at most {BARRIER_BYTES // Barrier.BYTES} fit"
            )
        self.partials, self.partial_bytes, self.slots = self.lay_out(plans)
        self.cluster = max(max(plan.cluster, plan.beside) for plan in plans)
        self.first = PDL_FIRST in program.function.attributes and options.requests == 1
        self.secondary = PDL_SECONDARY in program.function.attributes
        signals = program.slots if plans[0].cluster == 1 else self.slots
        if self.cluster > 1 and (signals or not placement.everywhere or len(plans) > 1):
            raise CompileError(
                f"kernel '{name}': clusters of {self.cluster} blocks need a program of one task that waits for nothing; "
                f"it has {len(plans)} tasks and {signals} semaphore slots"
            )
        # Blocks of a cluster have numbers that follow each other.
        self.numbered = self.cluster == 1 and placement.numbered(plans, self.slots, options.workers)
        self.maps: dict[tuple[int, int, TensorMap], int] = {}
        used = dict.fromkeys(buffer.memory for plan in plans for buffer in plan.task.buffers)
        used |= dict.fromkeys((argument, 0) for plan in plans for argument in counts_of(plan.task.op))
        apart = {PDL_PRIMARY, PDL_SECONDARY} & {*program.function.attributes} and not schedule.shared
        self.arena_bytes = program.argument_bytes("arena")[0]
        self.shared_partials: int | None = None
        if apart and self.partial_bytes and not any(plan.split and plan.split.own for plan in plans):
            place = place_for(self.partial_bytes, program.function, self.arena_bytes)
            self.shared_partials, used[program.inputs + program.results, place] = len(used), None
            self.arena_bytes = max(self.arena_bytes, place + self.partial_bytes)
        self.places = {memory: number for number, memory in enumerate(used)} if apart else None
        self.members = [
            Member(plan.task, tuple(map(self._number_of, plan.tensor_maps)), place, start)
            for plan, place, start in zip(plans, self.partials, self.starts(), strict=True)
        ]

    def lay_out(self, plans: Sequence[Plan]) -> tuple[list[PartialsSlot | None], int, int]:
        """Where the plans' partial results and counters are; bytes of the former, number of all counters."""
        return lay_out([plan.split for plan in plans], self.program.slots)

    def starts(self) -> Sequence[int]:
        """For each task, how many pieces of work are dealt out before its first."""
        return self.schedule.starts

    def maps_of_runs(self) -> list[tuple[int, set[int]]]:
        """Number of tasks, and numbers of the tensor maps, of each run of the schedule."""
        plans = self.schedule.plans
        return [
            (len(run), {self._number_of(use) for number in run for use in plans[number].tensor_maps})
            for run in self.schedule.runs
        ]

    def _number_of(self, use: MapUse) -> int:
        return self.maps.setdefault((use.buffer.argument, use.buffer.offset, use.map), len(self.maps))

    def _together(self) -> tuple[int, str]:
        """How many blocks must run at the same time, and for what."""
        needs = [self.placement.least_blocks]
        for plan in self.schedule.plans:
            if plan.split is not None and plan.split.spread:
                needs.append(
                    (plan.split.pieces, f"the pieces of a tile of stage '{plan.task.name}' (they wait for each other)")
                )
            needs.append((max(plan.cluster, plan.beside), f"a cluster of stage '{plan.task.name}'"))
        return max(needs, key=lambda need: need[0])

    def _useful_blocks(self) -> int:
        """More blocks than this have nothing to do but to wait: as many as there are tiles.

        Where each task waits for the one before, and none has more tiles than there are multiprocessors, one block on each of
        them: a second one would wait beside it, or take a tile that another multiprocessor is free for (two dependent copies of
        132 MB in 132 tiles each took 157 us so, and 148 with one, on an H200).
        """
        plans, workers = self.schedule.plans, self.options.workers
        total = sum(plan.pieces for plan in plans)
        follow = all(any(wait.task == n for wait in plan.task.waits) for n, plan in enumerate(plans[1:]))
        return min(total, workers) if follow and all(plan.pieces <= workers for plan in plans) else total

    @property
    def _streaming(self) -> bool:
        """Whether every tile may have a block of its own."""
        plans = self.schedule.plans
        streaming = all(plan.streaming and not plan.scratch_bytes for plan in plans)
        return streaming and not self.slots and self.placement.everywhere

    def manifest(self) -> Manifest:
        """All that a launch needs but the bytes of shared memory, which are known when the code has been emitted."""
        program, plans = self.program, self.schedule.plans
        every = [(argument, 0) for argument in range(len(program.block.arguments))]
        pointers = [
            Parameter(*program.place_of(argument), offset=offset)
            for argument, offset in (every if self.places is None else self.places)
        ]
        parameters = [*pointers, Parameter("workspace")]
        for argument, start, tensor_map in self.maps:
            role, number = program.place_of(argument)
            parameters.append(Parameter("tensor_map", number, role, start, tensor_map.manifest()))
        least, together = self._together()
        requests, alone = self.options.requests, self.options.requests == 1
        return Manifest(
            kernel=self.name,
            chip=self.options.chip,
            parameters=tuple(parameters),
            threads=self.threads,
            shared_bytes=0,
            slots=self.slots * requests,
            partial_bytes=self.partial_bytes * requests if self.shared_partials is None else 0,
            scratch_bytes=-(-max(plan.scratch_bytes for plan in plans) // 256) * 256,
            arena_bytes=self.arena_bytes,
            input_bytes=program.argument_bytes("input"),
            result_bytes=program.argument_bytes("result"),
            overwrites=program.overwrites if max(program.overwrites, default=-1) >= 0 else (),
            tiles=self._useful_blocks() if alone else requests * sum(plan.pieces for plan in plans),
            tasks=tuple((plan.task.name, plan.engine, plan.task.tiles) for plan in plans),
            debug=self.options.debug,
            counters=self._counter_names() if self.options.debug else (),
            timestamps=self.options.timestamps,
            follows=self.first or self.secondary,
            streaming=alone and self._streaming,
            workers=self.placement.workers,
            least_blocks=least,
            together=together,
            cluster=self.cluster,
            arrays=self.schedule.shared and alone,
            selected=self.places is not None,
            requests=requests,
        )

    def _counter_names(self) -> tuple[str, ...]:
        names = counter_names(self.program, self.schedule.plans, self.partials, self.slots)
        if self.options.requests == 1:
            return names
        return tuple(f"{name} of request {request}" for request in range(self.options.requests) for name in names)


def _threads(plans: Sequence[Plan], options: KernelOptions) -> int:
    if not plans:
        raise CompileError("a tile program without tasks needs no kernel")
    for plan in plans:
        if plan.threads % 32 or plan.threads > options.threads:
            raise CompileError(
                f"engine '{plan.engine}' wants {plan.threads} threads for task '{plan.task.name}': "
                f"a multiple of 32, at most {options.threads}, is possible"
            )
        if plan.shared_bytes > options.shared_bytes:
            raise CompileError(
                f"engine '{plan.engine}' wants {plan.shared_bytes} bytes of shared memory for task '{plan.task.name}'; "
                f"there are {options.shared_bytes}"
            )
    return max(256, *(plan.threads for plan in plans))
