"""An engine's decision about a task: the options it is made with, and the plan, or why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.tile_records import Buffer, TaskView
from kitsune_mlir.errors import ArgumentError

__all__ = ["BARRIER_BYTES", "Decline", "KernelOptions", "MapUse", "Plan"]

BARRIER_BYTES = 1024
"""Shared memory kept back for the mbarriers of a task and the executor's own words."""

PRECISIONS = ("highest", "high", "medium")


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """How a kernel is made, and what one block of it may use: the options of `kitsune-to-gpu`.

    Attributes:
        chip: the code generator's name of the processor, "sm_90a".
        workers: multiprocessors that the program is planned for; it runs on any number.
        shared_bytes: shared memory that one task may ask for.
        threads: most threads a block can have.
        debug: waits are bounded and report what they waited for.
        timestamps: every block writes when it began and ended each task.
        matmul_precision: how f32 products are done, as `torch.set_float32_matmul_precision` names it: "highest" as exact as
            f32 arithmetic, "high" and "medium" in TF32.
        convolution_precision: the same of f32 convolutions.
        ptxas_seconds: wall time that ptxas may take for the kernel; None is no limit.
        requests: the program's most requests of a launch (`Program.batch`); 1: the kernel takes one, by its parameters.
        clusters: a kernel may have clusters of blocks, if its one task wants them.
        most_operations: of a kernel whose program may become several launches (`kernel/length.py`); 0 is no limit.

    Raises:
        ArgumentError: a precision has no such name, or a limit is not above 0.
    """

    chip: str = "sm_90a"
    workers: int = 132
    shared_bytes: int = SHARED_LIMIT - BARRIER_BYTES
    threads: int = 1024
    debug: bool = False
    timestamps: bool = False
    matmul_precision: str = "highest"
    convolution_precision: str = "highest"
    ptxas_seconds: float | None = None
    requests: int = 1
    clusters: bool = True
    most_operations: int = 64_000

    def __post_init__(self) -> None:
        for name in ("matmul_precision", "convolution_precision"):
            if (found := getattr(self, name)) not in PRECISIONS:
                raise ArgumentError(f"option '{name}' is one of {', '.join(PRECISIONS)}, not {found}")
        if self.requests < 1:
            raise ArgumentError(f"option 'requests' is a number of requests of a launch, at least 1, not {self.requests}")
        if (limit := self.ptxas_seconds) is not None and limit <= 0:
            raise ArgumentError(f"option 'ptxas_seconds' is a number of seconds above 0, or None for no limit, not {limit}")


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
        beside: blocks of a cluster of which each does a tile of its own, and all the same piece of theirs. These are beside
            each other along the dimension of the grid before the last, or (`across`) along the last one. More than 1 only for
            the one task of a program.
        across: see `beside`.
        avoids_producers: much of a tile is done before its waits: it should be on a block that has no tile of the task it
            waits for.
        dependent: the engine waits (`poll_by_thread`, `poll_by_warp` or `wait`) in every tile, whether or not the task has
            waits, and before that reads nothing that other tasks write and writes nothing. A kernel of such a task that
            follows another one then begins before that one has ended.
        halves: tiles count twice in posts: two blocks may do one.
        cycles: that a tile takes, where the engine has counted them itself; 0: the cost model counts.
        copied: threads copy the operands of its products, because no bulk copy can.
        joined: it shares a ring with the tasks beside it, in one loop.
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
    avoids_producers: bool = False
    dependent: bool = False
    halves: bool = False
    cluster: int = 1
    beside: int = 1
    across: bool = False
    cycles: int = 0
    copied: bool = False
    joined: bool = False
    private: Any = None

    @property
    def pieces(self) -> int:
        """Pieces of work that are dealt out to the blocks: tiles, or parts of tiles."""
        return self.split.count(self.task.tiles) if self.split else self.task.tiles * self.cluster

    @property
    def together(self) -> bool:
        """Whether pieces wait for each other, so that each needs a block of its own at the same time."""
        return self.cluster > 1 or (self.split is not None and self.split.spread)


@dataclasses.dataclass(frozen=True)
class Decline:
    """An engine cannot, or should not, do a task; `reason` is a sentence for `explain`."""

    engine: str
    reason: str
