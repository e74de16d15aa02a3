"""What an engine is: it looks at a task and plans or declines, and later emits the task's code into the one kernel.

The kernel is persistent: every block walks its tiles of task 0, then its tiles of task 1, and so on. All threads of the
block run an engine's code for each tile, so an engine may use block barriers freely. While its task runs, an engine owns
the block's shared memory from `TaskContext.shared` on, its own mbarriers and its own scratch; nothing of these survives
into another task. The mbarriers are initialised when the task begins, and their phases run on from tile to tile.

The simplest engine overrides `plan` and `emit_tile`:

    def emit_tile(self, plan, tile):
        tile.wait()                                   # all waits; every thread may read afterwards
        data = load(offset(tile.pointer(buffer), ...), ...)
        ...
        tile.finish()                                 # block barrier, then the posts

One that splits the block into roles overrides `emit` and loops over the tiles in each role:

    def emit(self, plan, task):
        if_(warp == 0, lambda: task.for_each_tile(produce, slot.values), lambda: task.for_each_tile(consume, ...))
        task.sync()

where the producing thread calls `tile.poll_by_thread()` itself, after the loads that wait for nothing (weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kitsune_mlir.codegen.gpu.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.split import Split
from kitsune_mlir.codegen.gpu.tasks import Buffer, TaskView
from kitsune_mlir.codegen.gpu.tensor_map import TensorMap

if TYPE_CHECKING:
    from kitsune_mlir.codegen.gpu.executor import TaskContext, TileContext
    from kitsune_mlir.codegen.gpu.value import Value

__all__ = ["Decline", "Engine", "Limits", "MapUse", "Plan"]

BARRIER_BYTES = 1024
"""Shared memory kept back for the mbarriers of a task and the executor's own words."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one block of the kernel may use.

    Attributes:
        chip: the code generator's name of the processor, "sm_90a".
        shared_bytes: shared memory that one task may ask for.
        threads: most threads a block can have.
        debug: waits are bounded and report what they waited for.
        timestamps: every block writes when it began and ended each task.
        workers: multiprocessors that the program is planned for; it runs on any number.
        matmul_precision: how f32 products are done, as `torch.set_float32_matmul_precision` names it: "highest" as exact as
            f32 arithmetic, "high" and "medium" in TF32.
        convolution_precision: the same of f32 convolutions.
    """

    chip: str = "sm_90a"
    shared_bytes: int = SHARED_LIMIT - BARRIER_BYTES
    threads: int = 1024
    debug: bool = False
    timestamps: bool = False
    workers: int = 132
    matmul_precision: str = "highest"
    convolution_precision: str = "highest"


@dataclasses.dataclass(frozen=True)
class MapUse:
    """A tensor map over a buffer: the runtime encodes `map` for the buffer's address and passes it to the kernel."""

    buffer: Buffer
    map: TensorMap


@dataclasses.dataclass(frozen=True)
class Plan:
    """An engine's decision about one task, made before any code is emitted.

    Attributes:
        engine: the engine's name.
        task: the task that it is for.
        shared_bytes: shared memory of the block, from `TaskContext.shared` (aligned to 1024) on.
        scratch_bytes: global memory for each block, at `TaskContext.scratch` (aligned to 256). Contents are undefined.
        threads: threads per block that the code wants. The kernel has the largest number any plan wants (at least
            256), so code must bear more: the surplus threads do nothing but take part in block barriers.
        registers: registers per thread that the code needs to be fast: 255 keeps one block of 256 threads a
            multiprocessor; 64 (the default) lets four run.
        barriers: arrival count of each mbarrier wanted. They lie in this order, eight bytes each, so that a `Ring` of n
            stages is n counts for "full" and then n for "empty". Initialised before the task's code: every thread's
            earlier accesses to shared memory are then ordered before those of the async proxy.
        tensor_maps: tensor maps wanted; `TaskContext.tensor_map(i)` is the i-th.
        async_reads: some global data that the task waits for is read by the async proxy (TMA): waits then end with a proxy
            fence.
        async_writes: some global data is written by the async proxy. The engine itself waits for its bulk stores (for
            completion, not only for the reads) in the threads that started them before it calls `finish` or `post`.
        parameters: what was decided, for `explain` (tile shapes, stages, ...): plain values only.
        split: several blocks share each tile (`TaskContext.for_each_piece`), or None.
        streaming: tiles are short and a block keeps nothing from one to the next. If all tasks of a program are so and none
            waits, every tile gets a block of its own: the hardware hands them out in order, which keeps memory busier than
            blocks that stay and drift apart (0.99 of a copy's bandwidth against 0.95).
        cluster: blocks of a cluster that do each tile together; more than 1 only for the one task of a program that waits for
            nothing.
        apart: much of a tile is done before its waits: it should be on a block that has no tile of the task it waits for.
        late: the engine waits (`poll_by_thread`, `poll_by_warp` or `wait`) in every tile, whether or not the task has waits,
            and before that reads nothing that other tasks write and writes nothing. A kernel of such a task that follows
            another one then begins before that one has ended.
        halves: tiles count twice in posts: two blocks may do one.
        private: the engine's own data for `emit`.
    """

    engine: str
    task: TaskView
    shared_bytes: int = 0
    scratch_bytes: int = 0
    threads: int = 256
    registers: int = 64
    barriers: tuple[int, ...] = ()
    tensor_maps: tuple[MapUse, ...] = ()
    async_reads: bool = False
    async_writes: bool = False
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    split: Split | None = None
    streaming: bool = False
    apart: bool = False
    late: bool = False
    halves: bool = False
    cluster: int = 1
    private: Any = None

    @property
    def pieces(self) -> int:
        """Pieces of work that are dealt out to the blocks: tiles, or parts of tiles."""
        return self.split.count(self.task.tiles) if self.split else self.task.tiles * self.cluster


@dataclasses.dataclass(frozen=True)
class Decline:
    """An engine cannot, or should not, do a task; `reason` is a sentence for `explain`."""

    engine: str
    reason: str


class Engine:
    """Base of all engines. Engines have no state: one object serves every program."""

    name: ClassVar[str] = ""
    prefetches: ClassVar[bool] = False
    """Whether `prefetch` does anything."""

    def plan(self, task: TaskView, limits: Limits) -> Plan | Decline:
        """Decide whether and how to do `task`. Must not change the IR."""
        raise NotImplementedError(f"{type(self).__name__}.plan")

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        """Emit the whole of one tile: waits, loads, work, stores, posts. All threads of the block run it."""
        raise NotImplementedError(f"{type(self).__name__}.emit_tile")

    def emit(self, plan: Plan, task: TaskContext) -> None:
        """Emit all tiles that a block has of the task: a loop around `emit_tile`, unless overridden.

        At the end all threads must have met in a block barrier after their last use of shared memory (`tile.finish` does it).
        """

        def body(tile: TileContext) -> None:
            self.emit_tile(plan, tile)

        task.for_each_tile(body)

    def join(self, plans: Sequence[Plan], limits: Limits) -> Sequence[Plan] | None:
        """New plans for successive tasks that the engine emits together (`emit_joined`); None if it does not.

        They have the same barriers, which are initialised before the first of the tasks only.
        """
        return None

    def emit_joined(self, plans: Sequence[Plan], tasks: Sequence[TaskContext]) -> None:
        """Emit all tiles that a block has of successive tasks, those of the first task first; otherwise as `emit`."""
        raise NotImplementedError(f"{type(self).__name__}.emit_joined")

    def prefetch(self, plan: Plan, task: TaskContext, thread: Value, threads: int, soon: bool = True) -> None:
        """Emit what brings the beginning of the block's first tile to L2, as far as nobody writes it: weights, cached keys.

        `threads` threads, of which this is number `thread`, run it while tasks before this one are still at work. It waits for
        nothing and touches no shared memory. `soon`: the block goes on to the task at once, and waits for no kernel before.
        """


# The names below are what `executor.py` provides; they are repeated here as the reference of the interface.
#
#   TaskContext
#     .plan, .view: Plan, TaskView           .threads: int, threads per block
#     .thread, .block, .blocks: Value        i32: index in the block, index of the block, blocks that work on the task
#     .shared: Value                         pointer to shared memory, 1024-aligned, plan.shared_bytes long
#     .scratch: Value                        pointer to global memory, 256-aligned, plan.scratch_bytes long
#     .barriers: list[Barrier]               plan.barriers, initialised;  .barrier_base: pointer to the first
#     .tensor_map(i): Value                  pointer to the i-th tensor map (prefetched at the start of the kernel)
#     .pointer(buffer): Value                pointer to its first element in global memory (!llvm.ptr<1>)
#     .for_each_tile(body, carried=())       emit the loop over this block's tiles; body(tile, *carried) -> next carried
#     .for_each_piece(body, carried=())      the same over pieces: body(tile, piece, *carried), piece i32 (plans with `split`)
#     .place: Place                          where partial results and their counters are (`split.py`); .partials: pointer
#     .ahead(thread, threads)                emit `prefetch` of the next task that has one, for the calling threads
#     .sync()                                block barrier
#     .function(name, types, emit)           add an internal function to the module, for code that is outlined
#   TileContext (has the above as .task)
#     .coordinates: tuple[Value, ...]        i32
#     .index(value): Value                   i32 value of an int, or of an index value of the task's block (offsets, slots)
#     .pointer(buffer)                       as the task's
#     .wait()                                all waits of the task; all threads call it, and may read afterwards
#     .poll_by_thread()                      all waits of the task, by the calling thread alone, without a block barrier
#     .finish()                              block barrier, then all posts; all threads call it
#     .post()                                all posts, by the one thread that calls it and that has seen all writes
