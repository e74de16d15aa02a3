"""A runner for `Program` that executes GPU tile programs on the processor, task by task, by the generic engine's code."""

from __future__ import annotations

import ctypes

import numpy as np
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.generic.engine import GenericEngine, finish
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.runtime.weights import placed
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Block, Ref, Space, contiguous


def sizes_of(program: ProgramView) -> list[int]:
    """Bytes of all arguments, those that nothing uses too."""
    return [size for role in ("input", "result", "arena") for size in program.argument_bytes(role)]


class Memory:
    """Memory of a program: one space for each function argument; tiles run one after the other, threads side by side."""

    def __init__(self, program: ProgramView, threads: int):
        self.block = Block(threads)
        self.arguments = [Space(size) for size in sizes_of(program)]

    def run(self, task: TaskView, shared_limit: int) -> None:
        """Run all tiles of a task."""
        threads = self.block.threads
        self.block.known = {}  # of the task before, whose operations are gone: others may lie where they were
        plan = GenericEngine().plan(task, KernelOptions(shared_bytes=shared_limit))
        assert isinstance(plan, Plan), plan
        lowered = plan.private
        finish(lowered, threads)
        lowered.body.module.operation.verify()
        shared, scratch = Space(plan.shared_bytes + 16), Space(plan.scratch_bytes + 16)
        ends = [Ref(s, np.uint8, 0, [len(s.data)], [1]) for s in (shared, scratch)]
        for tile in np.ndindex(*task.grid):
            refs = [
                Ref(
                    self.arguments[b.argument],
                    DTYPES[str(b.element)],
                    b.offset // element_bytes(b.element),
                    list(b.shape),
                    contiguous(b.shape),
                )
                for b in lowered.body.buffers
            ]
            self.block.run(lowered.body.function, [*map(int, tile), *refs, np.arange(threads), *ends])


class EmulatedRunner:
    """Runs the tile program in `text` on memory of the processor."""

    device = "cpu"

    def __init__(self, text: str, threads: int = 64):
        self.text, self.threads = text, threads

    def run(self, pointers: list[int], stream: int) -> None:
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(self.text)
            functions = [op for op in module.body.operations if "kitsune.program" in op.attributes]
            program = ProgramView(functions[0].operation)
            memory = Memory(program, self.threads)
            sizes = sizes_of(program)[:-1]
            for pointer, space, size in zip(pointers, memory.arguments, sizes, strict=False):
                ctypes.memmove(space.data.ctypes.data, pointer, size)
            for task in program.tasks:
                memory.run(task, 73728)
            for pointer, space, size in list(zip(pointers, memory.arguments, sizes, strict=False))[program.inputs :]:
                ctypes.memmove(pointer, space.data.ctypes.data, size)


def emulated(program):
    """A `Program` compiled for a GPU that runs on the processor from now on."""
    program._runner = EmulatedRunner(program.ir("tiles"))
    program._weight_tensors, program._copies = placed(program.signature, program.weights, "cpu")
    return program
