"""What an engine emits with: the kernel as one task sees it (`TaskContext`), and one tile of it (`TileContext`)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, global_timer, if_, sync_block, sync_warp
from kitsune_mlir.codegen.gpu.emit.memory import load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, i32, i64, maximum, minimum, select
from kitsune_mlir.codegen.gpu.interface.operands import Operands
from kitsune_mlir.codegen.gpu.interface.plan import Plan
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.codegen.gpu.interface.split import PartialsSlot
from kitsune_mlir.codegen.gpu.interface.tile_index import TileIndex
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, fence_async
from kitsune_mlir.codegen.gpu.sm90.pdl import wait_for_prerequisites
from kitsune_mlir.dialects.tile_records import Buffer, NamedRows, Semaphore, TaskView, Wait

__all__ = ["KernelState", "TaskContext", "TileContext"]

Yielded = Sequence[Value] | Value | None


@dataclasses.dataclass(frozen=True)
class KernelState:
    """What all tasks of a kernel share.

    Attributes:
        counters: the semaphores.
        thread, block, blocks: i32.
        threads: threads per block.
        module_block: block of the module, for functions that engines add.
        names: symbols taken in that module.
        weights: by a semaphore's first slot, what a tile adds to a counter where several blocks post for one, in equal parts.
        whole: first slots of the semaphores to which a block posts once, after the last of its tiles.
        fences: some task reads or writes global memory by the async proxy, so every post and wait of data needs proxy fences.
        dependent: the kernel follows another one, for whose end waits wait, too (`Plan.dependent`).
        note_wait: emits, for the calling thread, that a task (its number) has waited for some nanoseconds (i64); None where
            waits are not recorded.
    """

    counters: Semaphores
    thread: Value
    block: Value
    blocks: Value
    threads: int
    module_block: ir.Block
    names: set[str]
    fences: bool
    dependent: bool = False
    note_wait: Callable[[Value | int, Value], None] | None = None
    weights: Mapping[int, int] = dataclasses.field(default_factory=dict)
    whole: frozenset[int] = frozenset()

    def weight(self, semaphore: Semaphore) -> int:
        """What a tile adds to a counter of the semaphore in all."""
        return self.weights.get(semaphore.first, 1)


class TaskContext:
    """The kernel as one task sees it.

    Attributes:
        plan, view: the engine's plan, and the task.
        thread, block, blocks: i32: index in the block, index of the block, blocks that work on the task.
        threads: threads a block.
        shared: pointer to shared memory, aligned to 1024, `plan.shared_bytes` long.
        scratch: pointer to global memory of the block, aligned to 256, `plan.scratch_bytes` long.
        barriers: those of the plan, initialised; `barrier_base` is a pointer to the first.
        end: how many tiles are done (i32), the first ones, where a call may leave out others (`kernel/live.py`); else None.
        ahead: `ahead(thread, threads)` emits `Engine.prefetch` of the next task that has one, for the calling threads.
    """

    def __init__(
        self,
        kernel: KernelState,
        plan: Plan,
        shared: Value,
        scratch: Value,
        barrier_base: Value,
        operands: Operands,
        first: Value,
        partials: Value | None = None,
        blocks: Value | None = None,
        end: Value | None = None,
    ):
        self.kernel = kernel
        self.plan = plan
        self.view: TaskView = plan.task
        self.thread, self.block = kernel.thread, kernel.block
        self.blocks = kernel.blocks if blocks is None else blocks
        if plan.cluster > 1:  # a cluster's blocks have its tile together
            self.blocks, first = self.blocks // plan.cluster, first // plan.cluster
        self.threads = kernel.threads
        self.shared = shared
        self.scratch = scratch
        self.barrier_base = barrier_base
        self.barriers = [Barrier(offset(barrier_base, Barrier.BYTES * i)) for i in range(len(plan.barriers))]
        self.operands = operands
        self._first = first
        self._partials = partials
        self.end = end
        self.ahead: Callable[[Value, int], None] = lambda thread, threads: None

    @property
    def first(self) -> Value:
        """Number of this block's first tile (or piece); the next ones follow `blocks` apart."""
        return self._first

    @property
    def tiles(self) -> Value | int:
        """How many tiles, the first ones, are done."""
        return self.view.tiles if self.end is None else self.end

    @property
    def pieces(self) -> Value | int:
        """How many pieces these are."""
        split = self.plan.split
        if self.end is None or split is None:
            return self.plan.pieces if self.end is None else self.end
        return minimum(self.end, split.whole) + maximum(self.end - split.whole, 0) * split.pieces

    @property
    def number(self) -> Value | int:
        """The task's number, for records of times and waits."""
        return self.operands.number

    @property
    def place(self) -> PartialsSlot | None:
        """Where partial results and their counters are (`interface/split.py`)."""
        return self.operands.place

    @property
    def partials(self) -> Value | None:
        """Pointer to the task's partial results."""
        place = self.place
        return None if place is None or self._partials is None else offset(self._partials, place.offset)

    def tensor_map(self, index: int) -> Value:
        """Pointer to the plan's `index`-th tensor map."""
        return self.operands.tensor_map(index)

    def pointer(self, buffer: Buffer) -> Value:
        """Pointer to a buffer's first element in global memory."""
        return self.operands.pointer(buffer)

    def sync(self) -> None:
        """Block barrier over all threads."""
        sync_block()

    def for_each_tile(self, body: Callable[..., Yielded], carried: Sequence[Value] = ()) -> list[Value]:
        """Emit the loop over this block's tiles of the task; `body(tile, *carried)` returns the next carried values."""

        def step(number: Value, *values: Value) -> Yielded:
            return body(TileContext(self, number, number), *values)

        return for_(self._first, self.tiles, self.blocks, step, carried)

    def for_each_piece(self, body: Callable[..., Yielded], carried: Sequence[Value] = ()) -> list[Value]:
        """Emit the loop over this block's pieces of tiles; `body(tile, piece, *carried)` returns the next carried values."""
        split = self.plan.split

        def step(number: Value, *values: Value) -> Yielded:
            if split is None:
                return body(TileContext(self, number, number), i32(0), *values)
            rest, beside = number - split.whole, self.plan.beside
            if beside == 1:
                tile, piece = rest // split.pieces, rest % split.pieces
            else:  # a cluster's blocks have one piece of tiles beside each other
                turn = rest // beside
                tile, piece = turn // split.pieces * beside + rest % beside, turn % split.pieces
            if split.by_piece and self.end is None:
                # With fewer blocks than that was planned for, one would wait for a piece that it has not begun.
                shared = self.view.tiles - split.whole
                enough = self.blocks >= shared * split.pieces
                tile, piece = select(enough, rest % shared, tile), select(enough, rest // shared, piece)
            tile = tile + split.whole
            if split.whole:
                alone = number < split.whole
                tile, piece = select(alone, number, tile), select(alone, i32(split.pieces), piece)
            return body(TileContext(self, tile, number), piece, *values)

        return for_(self._first, self.pieces, self.blocks, step, carried)

    def symbol(self, name: str) -> str:
        """A symbol like `name` that the module does not have yet; it is taken from now on."""
        chosen, number = name, 1
        while chosen in self.kernel.names:
            chosen, number = f"{name}_{number}", number + 1
        self.kernel.names.add(chosen)
        return chosen


class TileContext(TileIndex):
    """One tile of a task: where it is, and its waits and posts.

    `turn` is the number by which the block's loop over its tiles or pieces got here; None where that is not known. Whoever
    waits or posts does so in every tile of such a loop, so what the first tile has waited for needs no second look, and posts
    that are only waited for all together are made after the last.
    """

    def __init__(self, task: TaskContext, number: Value, turn: Value | None = None):
        super().__init__(task.view, number, task.pointer)
        self.task = task
        self.turn = turn

    def resolve(self) -> None:
        """Compute all of the tile's offsets here, so that code inside branches and code after them can use the same values."""
        view = self.task.view
        for record in (*view.loads, *view.stores):
            for start in record.offsets:
                self.index(start)
        for wait in view.waits:
            self.index(wait.lo)
            self.index(wait.hi)
            self._wanted(wait)
        for post in view.posts:
            self.index(post.slot)

    def poll_by_thread(self) -> None:
        """All waits of the task, by the calling threads, each by itself: one of them is enough; no block barrier."""
        self._waited_for(self.task.view.waits)

        def poll(waits: Sequence[Wait]) -> None:
            begin = self._clock()
            for one in waits:
                self._poll_from(one, self.index(one.lo), 1)
            if self.task.plan.async_reads or self.task.kernel.fences:
                fence_async()
            self._note_wait(begin)

        self._in_turn(self.task.view.waits, poll)

    def poll_by_warp(self, lane: Value, which: Sequence[Wait] | None = None) -> None:
        """All waits of the task, or some of them, by the 32 lanes of the calling warp, without a block barrier.

        A lane polls every 32nd slot of them all: polls of one thread after each other take more than half a microsecond each.
        """
        self._waited_for(wanted := self.task.view.waits if which is None else which)

        def poll(waits: Sequence[Wait]) -> None:
            begin = self._clock()
            if counted := [wait for wait in waits if wait.named is None]:
                self._poll_side_by_side(counted, lane)
            for wait in (wait for wait in waits if wait.named is not None):
                self._poll_from(wait, self.index(wait.lo) + lane, 32)
            sync_warp()
            if self.task.plan.async_reads or self.task.kernel.fences:
                fence_async()
            self._note_wait(begin, lane)

        self._in_turn(wanted, poll)

    def wait(self) -> None:
        """All waits of the task: some threads poll, then the block meets. Every thread may read afterwards."""
        warps = self.task.threads // 32
        thread = self.task.thread
        self._waited_for(self.task.view.waits)

        def poll(waits: Sequence[Wait]) -> None:
            begin = self._clock()
            for number, wait in enumerate(waits):
                # Different waits are polled by different warps, a range of slots by the lanes of one warp.
                first = 32 * (number % warps)
                if wait.named is not None:  # an index and a counter after each other take a microsecond: every thread does some
                    self._poll_from(wait, self.index(wait.lo) + thread, self.task.threads)
                elif wait.single:
                    if_(thread == first, functools.partial(self._poll_from, wait, self.index(wait.lo), 1))
                else:
                    lane = thread - first
                    if_(lane.below(32), functools.partial(self._poll_from, wait, self.index(wait.lo) + lane, 32))
            sync_block()
            if self.task.kernel.fences:
                fence_async()
            self._note_wait(begin, thread)  # after the fence, which would wait for it

        self._in_turn(self.task.view.waits, poll)

    def _waited_for(self, waits: Sequence[Wait]) -> None:
        """Compute here what is waited for, so that branches can use it."""
        for wait in waits:
            self.index(wait.lo)
            self.index(wait.hi)
            self._wanted(wait)

    def _in_turn(self, waits: Sequence[Wait], poll: Callable[[Sequence[Wait]], None]) -> None:
        """Poll, in the first tile only for what all tiles wait for."""
        if self.task.kernel.dependent:
            wait_for_prerequisites()
        turn = self.turn
        once = [wait for wait in waits if turn is not None and wait.constant is not None]
        each = [wait for wait in waits if wait not in once]
        if once and turn is not None:
            if_(turn == self.task.first, functools.partial(poll, once))
        if each:
            poll(each)

    def _clock(self) -> Value | None:
        """The time now, where waits are recorded."""
        return global_timer() if self.task.kernel.note_wait is not None else None

    def _note_wait(self, begin: Value | None, thread: Value | None = None) -> None:
        """Record a wait that began then and ends now, by the calling thread (of several, the one whose `thread` is 0)."""
        note = self.task.kernel.note_wait
        if begin is None or note is None:
            return
        number, spent = self.task.number, global_timer() - begin
        if thread is None:
            note(number, spent)
        else:
            if_(thread == 0, functools.partial(note, number, spent))

    def _poll_side_by_side(self, waits: Sequence[Wait], lane: Value) -> None:
        """All slots of some waits, dealt out to the lanes of a warp as if they were one range."""
        sizes = [i32(1) if wait.single else self.index(wait.hi) - self.index(wait.lo) for wait in waits]

        def poll(place: Value) -> None:
            slot, count, start = i32(0), i32(0), i32(0)
            for wait, size in zip(waits, sizes, strict=True):
                mine, first = place >= start, self.index(wait.lo) + self.task.operands.first_slot(wait.semaphore)
                slot = select(mine, place - start + first, slot)
                count = select(mine, i32(self._wanted(wait)), count)
                start = start + size
            self.task.kernel.counters.poll(slot, count, self.task.number)

        for_(lane, functools.reduce(lambda a, b: a + b, sizes), 32, poll)

    def _poll_from(self, wait: Wait, start: Value, step: int) -> None:
        counters, number = self.task.kernel.counters, self.task.number
        first = self.task.operands.first_slot(wait.semaphore)

        def poll(place: Value) -> None:
            slot = place if wait.named is None else self._slot_of_row(wait.named, place)
            counters.poll(slot + first, self._wanted(wait), number)

        if step == 1 and wait.single:
            poll(start)
        else:
            for_(start, self.index(wait.hi), step, poll)

    def _slot_of_row(self, named: NamedRows, element: Value) -> Value:
        """The slot that an element of a buffer of indices stands for; where it names no row, that of the nearest one."""
        type = named.indices.element
        address = offset(self.pointer(named.indices), i64(element) * (ir.IntegerType(type).width // 8))
        row = cast(load(address, type), "i64")
        row = select(row < 0, row + named.extent, row)
        return cast(maximum(minimum(row, named.extent - 1), 0), "i32") // named.rows

    def _wanted(self, wait: Wait) -> Value | int:
        """Posts that each slot of a wait must have had."""
        count = wait.count * self.task.kernel.weight(wait.semaphore)
        return count if wait.rounds is None else self.index(wait.rounds) * count

    def post(self, parts: int = 1) -> None:
        """All posts of the task, by the calling thread, which has seen every write of the tile, or of one of `parts` of it."""
        kernel = self.task.kernel
        for post in self.task.view.posts:
            slot = self.index(post.slot) + self.task.operands.first_slot(post.semaphore)
            weight = kernel.weight(post.semaphore) // parts
            turn = self.turn if post.semaphore.first in kernel.whole else None
            if turn is None:
                kernel.counters.post(slot, weight)
            else:
                if_(self._last(turn), functools.partial(self._post_all, slot, turn, weight))

    @property
    def closing(self) -> Value | None:
        """Whether (i1) the tile's posts are made now, where a block makes all of a task's after its last tile; else None."""
        if self.turn is None or not all(post.semaphore.first in self.task.kernel.whole for post in self.task.view.posts):
            return None
        return self._last(self.turn)

    def _last(self, turn: Value) -> Value:
        return turn + self.task.blocks >= self.task.tiles

    def _post_all(self, slot: Value, turn: Value, weight: int) -> None:
        """Post for all tiles that the block has had."""
        done = (turn - self.task.first) // self.task.blocks + 1
        self.task.kernel.counters.post(slot, done * weight)

    def post_after(self, meet: Callable[[], None], leader: int) -> None:
        """The posts, by thread `leader`, when all threads that store have met; nothing where the task has none."""
        if self.task.view.posts:
            if self.task.kernel.fences:
                fence_async()
            meet()
            if_(self.task.thread == leader, self.post)

    def finish(self) -> None:
        """Block barrier, then the posts. After it, the next tile may overwrite shared memory."""
        if self.task.kernel.fences and self.task.view.posts:
            fence_async()
        sync_block()
        if self.task.view.posts:
            if_(self.task.thread == 0, self.post)
