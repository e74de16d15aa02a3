"""Emits code into a module that is thrown away: what cannot be emitted is found out while planning, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import thread_id
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, SHARED
from kitsune_mlir.codegen.gpu.emit.value import i32, wrap
from kitsune_mlir.codegen.gpu.interface.context import KernelState, TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.operands import Arguments, Member, Operands
from kitsune_mlir.codegen.gpu.interface.plan import Plan
from kitsune_mlir.codegen.gpu.interface.semaphores import Semaphores
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["probe"]

Result = TypeVar("Result")


def probe(task: TaskView, threads: int, emit: Callable[[TileContext], Result]) -> Result:
    """What `emit` returns, or raises, for a tile of `task` in a block of `threads` threads."""
    # Of a training step's thousand arguments a task takes a few.
    places = sorted({buffer.argument for buffer in task.buffers})
    declared = ", ".join([f"%a{i}: {GLOBAL}" for i in range(len(places) + 1)] + [f"%s: {SHARED}", "%n: i32"])
    module = ir.Module.parse(f"module {{ llvm.func @probe({declared}) {{ llvm.return }} }}")
    block = module.body.operations[0].regions[0].blocks[0]
    with ir.InsertionPoint(block.operations[0]):
        *arguments, workspace, shared, number = (wrap(argument) for argument in block.arguments)
        counters = Semaphores(workspace, i32(0), workspace, 0, 0, False)
        zero = i32(0)
        state = KernelState(counters, thread_id(), zero, zero, threads, module.body, set(), False)
        operands = Operands(Arguments(dict(zip(places, arguments, strict=True)), ()), [Member(task)])
        context = TaskContext(state, Plan("simt", task), shared, workspace, shared, operands, zero)
        return emit(TileContext(context, number))
