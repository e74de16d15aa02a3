"""A kernel that runs a window of work: runs of several programs, in an order and with dependences known only at its launch
(ACS, arXiv 2401.12377, section 4: the window on the device).

One launch is one epoch (`runtime/epoch_manifest.py` has what it is given). The work of all instances is a list of tickets, and
blocks that stay claim one after the other by an atomic. Whoever has a ticket waits for the ends of the instances that its own
one depends on, and for earlier tasks of its own one; all these have earlier tickets. So the block with the earliest ticket that
is not done can always run, however many blocks there are and whenever they begin, and the launch ends with its last ticket.
Where pieces of a tile wait for each other (`Plan.together`), a block claims only when it has done what it had, and the launch
has a block for each of them; elsewhere it claims one ticket ahead, whose latency is then hidden.

A block does a piece as it would do its only one of a task, so engines know nothing of it: bodies are those of a program
(`kernel/executor.py`), with pointers, tensor maps, counters and partial results of an instance, as in `kernel/requests.py`.
What is an input to one instance may be another one's result, so nothing is read through the read-only cache.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, for_, grid_size, if_, sync_block, sync_warp, thread_id, while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import fresh, inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32, i64, wrap
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.codegen.gpu.interface.context import KernelState
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.operands import Arguments, Table
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.codegen.gpu.interface.split import Number, PartialsSlot, lay_out
from kitsune_mlir.codegen.gpu.kernel.coherent import coherent
from kitsune_mlir.codegen.gpu.kernel.epoch_instance import InstanceWords, high, low
from kitsune_mlir.codegen.gpu.kernel.executor import Builder, Decision
from kitsune_mlir.codegen.gpu.kernel.footprint import Footprint
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.kernel.merged import MergedView, is_root
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.planned import planned
from kitsune_mlir.codegen.gpu.kernel.requests import acquire_map
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.runtime.epoch_manifest import HEAD_BYTES, EpochManifest, EpochProgram, EpochStep, record_bytes
from kitsune_mlir.runtime.manifest import COUNTERS, Manifest, Parameter

__all__ = ["EpochExecutor", "build_epochs"]


@dataclasses.dataclass(frozen=True)
class EpochExecutor:
    """The kernel at the level of gpu, nvvm, scf, arith and memref operations; its manifest; who does each task."""

    module: ir.Module
    manifest: EpochManifest
    decisions: tuple[Decision, ...]


@dataclasses.dataclass(frozen=True)
class _Arguments(Arguments):
    """What the kernel's parameters would be for one instance.

    Attributes:
        slot_base, partial_base: what is added to numbers of counters, and to places of partial results.
    """

    slot_base: Value | None = None
    partial_base: Value | None = None

    def pointer(self, number: Value | int) -> Value:
        """The `number`-th pointer of all programs; it lies in shared memory, where another one is later."""
        assert isinstance(self.pointers, Value)
        place = offset(self.pointers, number * 8)
        return wrap(llvm.inttoptr(as_type(GLOBAL), load(place, "i64").ir))

    def slot(self, number: Number) -> Number:
        """Number of the instance's counter that is the `number`-th of all programs."""
        assert self.slot_base is not None
        return self.slot_base + number

    def partials(self, start: Number) -> Number:
        """Where, in bytes, the instance's partial results are that begin at `start` in each."""
        assert self.partial_base is not None
        return self.partial_base + start


class _Footprint(Footprint):
    """The needs of all programs' plans: partial results and their counters are numbered within each program."""

    program: MergedView

    def lay_out(self, plans: Sequence[Plan]) -> tuple[list[PartialsSlot | None], int, int]:
        """As of `Footprint`; a program's counters of partial results follow those of its semaphores."""
        places: list[PartialsSlot | None] = []
        self.of_program: list[tuple[int, int]] = []  # bytes of partial results, counters
        for part in self.program.parts:
            own, size, slots = lay_out([plans[number].split for number in part.tasks], part.slots.stop)
            places += own
            self.of_program.append((size, slots - part.slots.start))
        return places, 0, self.program.slots

    def starts(self) -> Sequence[int]:
        """As of `Footprint`: a program's pieces follow those of the program before."""
        starts, next_ = [], 0
        for plan in self.schedule.plans:
            starts.append(next_)
            next_ += plan.pieces
        return starts


def build_epochs(
    program: MergedView,
    name: str,
    digests: Sequence[str],
    options: KernelOptions | None = None,
    engines: Mapping[str, Engine] = ENGINES,
    loops: bool = False,
) -> EpochExecutor:
    """Choose engines and emit the kernel `name` that runs any of the merged programs, in their context.

    Args:
        digests: by which runs of each program are recognised.
        loops: as of `runtime.epoch_manifest.EpochManifest`.

    Raises:
        CompileError: no engine takes some task, the plans do not fit one kernel, or an engine failed.
        UnsupportedError: a program has what such a kernel cannot do.
    """
    options = dataclasses.replace(options or KernelOptions(), clusters=False)
    placement = AllBlocks()
    with program.function.context, ir.Location.unknown():
        options, made = planned(program, options, placement, engines, join=False)
        for plan in made.plans:
            if plan.cluster > 1:
                found = f"stage '{plan.task.name}' in a kernel of epochs"
                limit = "stages whose tiles are done by single blocks"
                raise UnsupportedError(found, limit, f"clusters of {plan.cluster}", str(plan.task.op.location))
        return _EpochBuilder(program, name, options, made, engines, placement).build_epochs(digests, loops)


class _EpochBuilder(Builder):
    """Emits an epoch kernel."""

    program: MergedView
    needs: _Footprint
    footprint = _Footprint

    def build_epochs(self, digests: Sequence[str], loops: bool) -> EpochExecutor:
        """The kernel, and what a launch needs of it."""
        self.loops = loops
        self.together = any(plan.together for plan in self.plans)
        kernel = Kernel(self.name, ["pointer"] * 7 + ["i32"], self.threads, min_blocks=self.needs.min_blocks)
        with kernel.body() as values:
            self._emit_epoch(kernel, *values)
        self.table.define(kernel.module.body)
        coherent(kernel.module.operation)
        return EpochExecutor(
            kernel.module,
            self._epoch_manifest(digests, kernel.shared_bytes),
            tuple(map(Decision, self.plans, self.schedule.declined)),
        )

    def _emit_epoch(
        self,
        kernel: Kernel,
        tickets: Value,
        records: Value,
        upstream: Value,
        counters: Value,
        partials: Value,
        scratch: Value,
        report: Value,
        count: Value,
    ) -> None:
        self.tickets, self.records, self.partial_results = tickets, records, partials
        self.manifest = _nothing(self.name)
        self.thread = thread = thread_id()
        self.fences = any(plan.barriers or plan.tensor_maps or plan.async_reads or plan.async_writes for plan in self.plans)
        current = offset(counters, HEAD_BYTES)
        debug = self.options.debug
        semaphores = Semaphores(offset(report, -COUNTERS), i32(0), current, 0, self.needs.slots, debug)
        self.state = KernelState(
            counters=semaphores,
            thread=thread,
            block=block_id(),
            blocks=grid_size(),
            threads=self.threads,
            module_block=kernel.module.body,
            names={self.name, "smem", Table.SYMBOL},
            fences=self.fences,
            weights=self.schedule.weights,
            whole=self.schedule.whole,
        )
        span = kernel.arena.take("barriers", self.needs.barriers * Barrier.BYTES, 8)
        self.barrier_base = kernel.shared(span)
        self.barriers = [Barrier(offset(self.barrier_base, start)) for start in range(0, span.bytes, Barrier.BYTES)]
        self.claimed = kernel.shared(kernel.arena.take("ticket", 16, 16))
        self.record_bytes = record_bytes(max(len(part.arguments) for part in self.program.parts))
        self.record = kernel.shared(kernel.arena.take("record", self.record_bytes, 16))
        self.instance = InstanceWords(
            records, self.record, self.record_bytes, upstream, offset(self.claimed, 4), semaphores, self.fences, self.loops
        )
        shared_bytes = max(plan.shared_bytes for plan in self.plans)
        self.shared = kernel.shared(kernel.arena.take("tasks", shared_bytes, 1024))
        self.scratch = offset(scratch, i64(self.state.block) * self._scratch_bytes)
        self.ranges = self.placement.ranges(self.state.block, self.state.blocks)

        def next_ticket() -> Value:
            """One more ticket for thread 0; nobody waits for it here."""
            code = (
                "{ .reg .pred first; setp.eq.s32 first, $2, 0; mov.b32 $0, 0; "
                "@first atom.relaxed.gpu.global.add.u32 $0, [$1], 1; }"
            )
            return inline_ptx(code, [counters, thread_id()], ["i32"], memory=True)[0]

        def share(ticket: Value) -> Value:
            """Thread 0's ticket, for all."""
            if_(thread_id() == 0, lambda: store(ticket, self.claimed))
            # LLVM threads the branch over the loop's back edge; a block barrier wants a warp together (PTX ISA, "bar.sync").
            sync_warp()
            sync_block()
            sync_block()  # for compute-sanitizer's racecheck (docs/gpu-executor.md)
            return load(self.claimed, "i32")

        if self.together:
            while_(
                [share(next_ticket())],
                lambda ticket: ticket < count,
                lambda ticket: [self._do(ticket), share(next_ticket())][1:],
            )
            return

        def step(ticket: Value, ahead: Value) -> list[Value]:
            self._do(ticket)
            return [share(ahead), next_ticket()]

        first = share(next_ticket())
        while_([first, next_ticket()], lambda ticket, _: ticket < count, step)

    def _do(self, ticket: Value) -> None:
        """Emit what is done with a ticket."""
        words = load(offset(self.tickets, i64(ticket) * 8), "i64", constant=True)
        place = high(words)
        body, row = self.table.step(place >> 1)
        # What is needed after the wait lies in shared memory then: polling empties the first cache.
        source, thread = offset(self.records, i64(low(words)) * self.record_bytes), thread_id()

        def copy(start: Value) -> None:
            store(load(offset(source, start), "i64", constant=True), offset(self.record, start))

        for_(thread * 8, self.record_bytes, 8 * self.threads, copy)
        sync_warp()
        sync_block()
        if self.fences:
            sync_block()  # for racecheck, as above: bodies with mbarriers have barriers of a part of the block
        predicate, waits = self.instance.field("predicate"), self.instance.field("upstream_count")
        if self.loops:
            first = ticket == self.instance.field("first_ticket")
            wanted = ((place & 1) != 0) & (predicate == 0) | (first & (predicate != 0))
            if_(wanted & (waits > 0), functools.partial(self.instance.wait_upstream, waits))
            decided = functools.partial(self.instance.decided, first, predicate, low(words))
            live = if_(predicate != 0, decided, lambda: i32(1), ["i32"])[0]
            if_(live == 1, lambda: self._dispatch(fresh(ticket), body, row))
            return
        wanted = ((place & 1) != 0) | (predicate != 0)
        if_(wanted & (waits > 0), functools.partial(self.instance.wait_upstream, waits))
        live = if_(predicate != 0, functools.partial(self.instance.predicate, predicate), lambda: i32(1), ["i32"])[0]
        if_(live != 0, lambda: self._dispatch(fresh(ticket), body, row), lambda: self.instance.skip(ticket))

    def _dispatch(self, ticket: Value, body: Value, row: Value) -> None:
        """Emit the bodies, of which one does the ticket."""
        piece = ticket - self.instance.field("first")

        def among(bodies: Sequence[int]) -> None:
            if len(bodies) == 1:
                self._one(bodies[0], row, fresh(piece))
                return
            middle = len(bodies) // 2
            if_(body < bodies[middle], lambda: among(bodies[:middle]), lambda: among(bodies[middle:]))

        among(range(len(self.schedule.bodies)))

    def _one(self, body: int, row: Value, piece: Value) -> None:
        """Emit a body, for a piece (its number among those of all programs)."""
        runs = self.schedule.bodies[body]
        tasks = [self.schedule.runs[run][0] for run in runs]
        which = row if len(runs) > 1 else None
        self.state = dataclasses.replace(self.state, thread=fresh(thread_id()), blocks=fresh(grid_size()))
        self.arguments = self._arguments()
        with ir.Location.name(self.plans[tasks[0]].task.name):
            operands = self._operands(tasks, which)
            for index in range(len(self.plans[tasks[0]].tensor_maps)):
                acquire_map(operands.tensor_map(index))
            apart = 1 << max(plan.pieces for plan in self.plans).bit_length()  # so many pieces on, there is none
            self._emit_run(runs, which, 0, True, [(piece - operands.start, i32(apart))])

    def _arguments(self) -> _Arguments:
        maps = wrap(llvm.inttoptr(as_type(GLOBAL), self.instance.field("maps").ir))
        maps = wrap(llvm.addrspacecast(as_type("!llvm.ptr"), maps.ir))
        pointers = offset(self.record, self.instance.field("pointers"))
        return _Arguments(pointers, maps, slot_base=self.instance.field("slots"), partial_base=self.instance.field("partials"))

    def _partials(self) -> Value:
        return self.partial_results

    @property
    def _scratch_bytes(self) -> int:
        return -(-max(plan.scratch_bytes for plan in self.plans) // 256) * 256

    def _epoch_manifest(self, digests: Sequence[str], shared_bytes: int) -> EpochManifest:
        maps: list[list[Parameter]] = [[] for _ in self.program.parts]
        for argument, start, tensor_map in self.needs.maps:
            role, number = self.program.place_of(argument)
            which = next(n for n, part in enumerate(self.program.parts) if argument in part.arguments)
            maps[which].append(Parameter("tensor_map", number, role, start, tensor_map.manifest()))
        starts, programs, map_count = self.needs.starts(), [], 0
        for number, (part, own, digest) in enumerate(zip(self.program.parts, maps, digests, strict=True)):
            plans = [self.plans[task] for task in part.tasks]
            weight = self.schedule.weights[part.done]
            partial_bytes, slots = self.needs.of_program[number]
            sizes = part.sizes
            programs.append(
                EpochProgram(
                    digest=digest,
                    first_pointer=part.arguments.start,
                    first_map=map_count,
                    first_slot=part.slots.start,
                    first_piece=starts[part.tasks.start],
                    input_bytes=sizes[: part.inputs],
                    result_bytes=sizes[part.inputs : -1],
                    arena_bytes=sizes[-1],
                    maps=tuple(own),
                    slots=slots + self.loops,
                    partial_bytes=partial_bytes,
                    done=part.done,
                    target=sum(self.plans[task].task.tiles for task in part.ending) * weight,
                    steps=tuple(
                        EpochStep(
                            *(task, plan.task.name, plan.engine, plan.pieces),
                            root=is_root(self.program, plan.task),
                        )
                        for task, plan in zip(part.tasks, plans, strict=True)
                    ),
                )
            )
            map_count += len(own)
        return EpochManifest(
            kernel=self.name,
            chip=self.options.chip,
            threads=self.threads,
            shared_bytes=shared_bytes,
            scratch_bytes=self._scratch_bytes,
            least_blocks=max(plan.split.pieces if plan.split and plan.together else 1 for plan in self.plans),
            programs=tuple(programs),
            debug=self.options.debug,
            loops=self.loops,
        )


def _nothing(name: str) -> Manifest:
    """The manifest of a kernel without counters and times: an epoch kernel has its own."""
    return Manifest(name, "", (), 0, 0, 0, 0, 0, (), (), 0, ())
