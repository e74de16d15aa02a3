"""Lowers the tile programs of a module to functions that upstream passes take to LLVM: what `kitsune-to-host` does."""

from __future__ import annotations

import itertools

from torch_mlir import ir

from kitsune_mlir.codegen.host.body import lower_bodies
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.outline import read_program
from kitsune_mlir.codegen.host.scheduler import HELPERS, build_scheduler
from kitsune_mlir.dialects.attribute_table import LIVE, PROGRAM_OVERWRITES
from kitsune_mlir.dialects.live_tiles import LiveTiles, live_tiles
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.runtime.host_code import CutTask, control_words

__all__ = ["FACTS", "SIZES", "cut_tasks", "lower_programs"]

FACTS = ("arguments", "tiles", "slots", "control_bytes", "scratch_bytes", "arena_bytes")
"""Names of the figures that a worker carries as attributes `kitsune.NAME`."""

SIZES = "kitsune.argument_bytes"
"""An attribute of a worker: bytes of each argument but the arena."""

LIMIT = 1 << 31  # tiles: their counter has 32 bits, and each worker takes one number too many


def lower_programs(module: ir.Operation, machine: Machine) -> None:
    """Rewrite every `func.func` of `module` that has the attribute `kitsune.program`, for `machine`; other operations stay.

    Raises:
        CompileError: a task body holds an operation that has no lowering; names the task.
        UnsupportedError: a program breaks the contract, or has too many tiles.
    """
    block = module.regions[0].blocks[0]
    programs = program_functions(module)
    with module.context, module.location:
        if programs:
            for op in ir.Module.parse(HELPERS).body.operations:
                block.append(op.operation.clone())
        for program in programs:
            _lower(program, block, machine)


def _lower(function: ir.Operation, block: ir.Block, machine: Machine) -> None:
    part = ir.Module.create(function.location)
    program = read_program(function, part.body)
    live = live_tiles(function)
    if program.tiles >= LIMIT:
        raise UnsupportedError("func.func", f"less than {LIMIT} tiles", program.tiles, str(function.location))
    control = control_words(program.view.slots, len(live))
    arguments = lower_bodies(part.operation, program.bodies, program.view.name, control, machine)
    for body in part.body.operations:
        block.append(body.operation.clone())
    worker = build_scheduler(program, arguments, live, block)
    *tensors, arena = (argument.type for argument in function.regions[0].blocks[0].arguments)
    facts = {
        "tiles": program.tiles,
        "slots": program.view.slots,
        "control_bytes": 4 * control,
        "scratch_bytes": max([1, *(a.scratch for a in arguments.values())]),
        "arena_bytes": tensor_bytes(arena),
        "arguments": len(tensors) + 1,
    }
    worker.operation.attributes[SIZES] = ir.DenseI64ArrayAttr.get([tensor_bytes(tensor) for tensor in tensors])
    if max(program.view.overwrites, default=-1) >= 0:
        worker.operation.attributes[PROGRAM_OVERWRITES] = ir.DenseI64ArrayAttr.get(list(program.view.overwrites))
    if live:
        words = enumerate(live.items(), control - len(live))
        said = [_numbers(word, program.tasks[task].view.grid, each) for word, (task, each) in words]
        worker.operation.attributes[LIVE] = ir.DenseI64ArrayAttr.get([n for each in said for n in each])
    for key, value in facts.items():
        worker.operation.attributes[f"kitsune.{key}"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    function.erase()


def _numbers(word: int, grid: tuple[int, ...], live: LiveTiles) -> list[int]:
    """A task of which a call may leave out tiles, as the attribute has it."""
    counts = [n for argument, thresholds in live.thresholds.items() for n in (argument, *thresholds)]
    return [word, grid[live.axis], len(live.thresholds), *counts]


def cut_tasks(worker: ir.Operation) -> tuple[CutTask, ...]:
    """What a worker says of its tasks of which a call may leave out tiles."""
    numbers = iter(list(ir.DenseI64ArrayAttr(worker.attributes[LIVE])) if LIVE in worker.attributes else [])
    found = []
    for word in numbers:
        extent, count = next(numbers), next(numbers)
        each = [(next(numbers), tuple(itertools.islice(numbers, extent))) for _ in range(count)]
        found.append(CutTask(word, extent, tuple(a for a, _ in each), tuple(t for _, t in each)))
    return tuple(found)
