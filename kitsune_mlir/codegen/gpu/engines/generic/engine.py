"""The generic engine: takes everything a task body may hold, by way of upstream bufferization and loops.

The body becomes a function of its own (inlined by LLVM) whose parallel loops are dealt out to the block's threads. It is
meant to be right on everything and reasonable on element-wise work and short reductions; products belong to other engines.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import cast
from kitsune_mlir.codegen.gpu.engines.generic.bufferize import Body, lower_body, run_passes
from kitsune_mlir.codegen.gpu.engines.generic.cost import tile_cycles
from kitsune_mlir.codegen.gpu.engines.generic.distribute import distribute
from kitsune_mlir.codegen.gpu.engines.generic.effects import Memory
from kitsune_mlir.codegen.gpu.engines.generic.expand_atomics import expand_atomics
from kitsune_mlir.codegen.gpu.engines.generic.loop_rewrites import (
    forward_stores,
    fuse,
    interchange,
    isolate,
    parallelize,
    promote,
)
from kitsune_mlir.codegen.gpu.engines.generic.outline import call, outline
from kitsune_mlir.codegen.gpu.engines.generic.storage import Storage, place, rewrite
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.memory_tiles import memory_tile
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["GenericEngine", "finish"]

SHARED_BYTES = 73728
"""Temporaries kept in shared memory: three blocks of a multiprocessor can have as much."""

THREADS = 256
"""Of a block, unless other tasks of the program want more."""

REGISTERS = 80
"""What lets three blocks of 256 threads share a multiprocessor."""


@dataclasses.dataclass
class _Lowered:
    body: Body
    memory: Memory
    storage: Storage


class GenericEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "generic"
    traits: ClassVar[Traits] = Traits(
        ENGINES["generic"], general=True, catches_all=True, keeps_order=True, polls_with_all_threads=True, ends_early=True
    )

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return Offer(self.name, tuple(memory_tile(candidate, machine)))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        try:
            lowered = _lower(task, min(SHARED_BYTES, options.shared_bytes))
        except KitsuneError as error:
            return Decline(self.name, str(error))
        storage, cycles = lowered.storage, round(_cycles(lowered, task.tiles, options))
        return Plan(
            engine=self.name,
            task=task,
            shared_bytes=storage.shared_bytes,
            scratch_bytes=storage.scratch_bytes,
            threads=THREADS,
            registers=REGISTERS,
            parameters={
                "temporaries": {"shared": storage.shared_bytes, "scratch": storage.scratch_bytes},
                "cycles": cycles,
            },
            cycles=cycles,
            private=lowered,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        lowered: _Lowered = plan.private
        function = lowered.body.function
        finish(lowered, task.threads)
        name = task.symbol(f"task_{plan.task.number}_{plan.task.name}")
        outline(function, name, task.kernel.module_block, task.symbol)

        def tile(tile: TileContext) -> None:
            tile.wait()
            coordinates = [cast(coordinate, "i64", signed=False) for coordinate in tile.coordinates]
            pointers = [tile.pointer(buffer) for buffer in lowered.body.buffers]
            thread = cast(task.thread, "i64", signed=False)
            call(name, [*coordinates, *pointers, thread, task.shared, task.scratch])
            tile.finish()

        task.for_each_tile(tile)


def _lower(task: TaskView, shared_limit: int) -> _Lowered:
    """Everything that does not depend on the number of threads."""
    body = lower_body(task)
    interchange(body.function)
    run_passes(body.module, "convert-linalg-to-parallel-loops,lower-affine,canonicalize,cse")
    first = len(task.grid)
    arguments = list(body.block.arguments)[first:]
    memory = Memory(dict(zip(arguments, body.buffers, strict=True)))
    _shape(body.block, memory)
    promote(body.function, memory)
    forward_stores(body.function, memory)
    # Not `canonicalize`: it would dissolve parallel loops of one iteration.
    run_passes(body.module, "cse")
    # Passes keep the function and its arguments, so `memory` stays valid.
    storage = place(body.function, shared_limit)
    return _Lowered(body, memory, storage)


def _cycles(lowered: _Lowered, tiles: int, options: KernelOptions) -> float:
    """Of a tile; see `generic.cost`."""
    memory = Memory(lowered.memory.buffers, lowered.storage.interval)
    return tile_cycles(lowered.body.block, memory, lowered.storage, THREADS, tiles, options.workers)


def _shape(block: ir.Block, memory: Memory) -> None:
    """Find and fuse the parallel loops of a block that all threads run, and of the blocks of its loops and branches."""
    parallelize(block, memory)
    isolate(block)
    fuse(block, memory)
    for op in block.operations:
        if op.operation.name.startswith("scf.") and op.operation.name != "scf.parallel":
            for region in op.operation.regions:
                for inner in region.blocks:
                    _shape(inner, memory)


def finish(lowered: _Lowered, threads: int) -> None:
    """Deal the work out to the threads, and put the temporaries where they were planned."""
    function, block = lowered.body.function, lowered.body.block
    lowered.memory.placed = lowered.storage.interval
    block.add_argument(ir.IndexType.get(), function.location)  # the thread
    distribute(function, lowered.memory, threads)
    expand_atomics(function)
    rewrite(function, lowered.storage)
