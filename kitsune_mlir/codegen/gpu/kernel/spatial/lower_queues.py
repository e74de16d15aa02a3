"""The queues of a tile program as semaphores: each slot of a ring counts by itself what filled and what freed it
(`test/gpu/kit/ring.py`).

    slot = acquire(queue, n)   →  slot = n mod depth;  wait until the slot was freed (n div depth) * pops times
    push(queue, slot)          →  post: filled once more
    slot = pop(queue, n)       →  slot = n mod depth;  wait until it was filled (n div depth + 1) * pushes times
    release(queue, slot)       →  post: freed once more

The memory of a ring is a buffer of the program, so engines load from and store to it as they do anywhere.
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.tile_program import PostOp, SemaphoreOp, WaitRoundsOp
from kitsune_mlir.dialects.tile_reader import TileProgram
from kitsune_mlir.dialects.tile_records import Queue
from kitsune_mlir.dialects.types import SemaphoreType
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["lower_queues"]


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def lower_queues(function: ir.Operation) -> None:
    """Replace the operations on queues in a tile program's function.

    Raises:
        UnsupportedError: the program has queues and is not spatial. Where a block runs tiles of both ends, a full ring would
            stop it before the tiles that empty the ring.
    """
    if all(op.operation.name != "kitsune.make_queue" for op in function.regions[0].blocks[0].operations):
        return
    program = TileProgram(function)
    queues = program.queues
    if program.mode != "spatial":
        limit = "rings need producers and consumers on different multiprocessors: a spatial program"
        raise UnsupportedError("kitsune.make_queue", limit, program.mode, str(next(iter(queues.values())).op.location))
    with function.context:
        semaphores = {value: _semaphores(queue) for value, queue in queues.items()}
        for op in list(walk(function)):
            if op.name in ("kitsune.acquire", "kitsune.pop"):
                _wait(op, queues[op.operands[0]], *semaphores[op.operands[0]])
            elif op.name in ("kitsune.push", "kitsune.release"):
                filled, freed = semaphores[op.operands[0]]
                with ir.InsertionPoint(op), op.location:
                    PostOp(filled if op.name == "kitsune.push" else freed, op.operands[1])
                op.erase()
        for queue in queues.values():
            queue.op.erase()


def _semaphores(queue: Queue) -> tuple[ir.Value, ir.Value]:
    """Of a queue's slots: how often each was filled, and freed."""
    with ir.InsertionPoint(queue.op), queue.op.location:
        filled, freed = (SemaphoreOp(_number(queue.depth), SemaphoreType.get()).operation.results[0] for _ in range(2))
    return filled, freed


def _wait(op: ir.Operation, queue: Queue, filled: ir.Value, freed: ir.Value) -> None:
    """Replace an acquire or a pop by a wait for the slot."""
    number = op.operands[1]
    with ir.InsertionPoint(op), op.location:
        depth, one = _index(queue.depth), _index(1)
        slot, rounds = arith.remui(number, depth), arith.divui(number, depth)
        after = arith.addi(slot, one)
        if op.name == "kitsune.acquire":
            WaitRoundsOp(freed, slot, after, rounds, _number(queue.pops))
        else:
            WaitRoundsOp(filled, slot, after, arith.addi(rounds, one), _number(queue.pushes))
    op.results[0].replace_all_uses_with(slot)
    op.erase()
