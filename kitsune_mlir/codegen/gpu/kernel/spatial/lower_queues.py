"""The queues of a tile program as semaphores: each slot of a ring counts by itself what filled and what freed it
(`test/gpu/kit/ring.py`).

    slot = acquire(queue, n)   →  slot = n mod depth;  wait until the slot was freed (n div depth) * pops times
    push(queue, slot)          →  post: filled once more
    slot = pop(queue, n)       →  slot = n mod depth;  wait until it was filled (n div depth + 1) * pushes times
    release(queue, slot)       →  post: freed once more

The memory of a ring is a buffer of the program, so engines load from and store to it as they do anywhere.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.dialects.tile_program import PostOp, SemaphoreOp, WaitRoundsOp, queue_parts
from kitsune_mlir.dialects.types import SemaphoreType
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["lower_queues"]


@dataclasses.dataclass(frozen=True)
class _Ring:
    """A queue's semaphores, of `depth` slots each."""

    depth: int
    pushes: int
    pops: int
    filled: ir.Value
    freed: ir.Value


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
    queues = [op for op in walk(function) if op.name == "kitsune.make_queue"]
    if not queues:
        return
    mode = function.attributes["kitsune.mode"] if "kitsune.mode" in function.attributes else None
    if mode is None or ir.StringAttr(mode).value != "spatial":
        limit = "rings need producers and consumers on different multiprocessors: a spatial program"
        raise UnsupportedError("kitsune.make_queue", limit, None if mode is None else str(mode), str(queues[0].location))
    rings: dict[ir.Value, _Ring] = {}
    with function.context:
        for op in queues:
            rings[op.results[0]] = _declare(op)
        for op in list(walk(function)):
            if op.name in ("kitsune.acquire", "kitsune.pop"):
                _wait(op, rings[op.operands[0]])
            elif op.name in ("kitsune.push", "kitsune.release"):
                ring = rings[op.operands[0]]
                with ir.InsertionPoint(op), op.location:
                    PostOp(ring.filled if op.name == "kitsune.push" else ring.freed, op.operands[1])
                op.erase()
        for op in queues:
            op.erase()


def _declare(op: ir.Operation) -> _Ring:
    _, depth = queue_parts(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        filled, freed = (SemaphoreOp(_number(depth), SemaphoreType.get()).operation.results[0] for _ in range(2))
    pushes, pops = (ir.IntegerAttr(op.attributes[name]).value for name in ("pushes", "pops"))
    return _Ring(depth, pushes, pops, filled, freed)


def _wait(op: ir.Operation, ring: _Ring) -> None:
    """Replace an acquire or a pop by a wait for the slot."""
    number = op.operands[1]
    with ir.InsertionPoint(op), op.location:
        depth, one = _index(ring.depth), _index(1)
        slot, rounds = arith.remui(number, depth), arith.divui(number, depth)
        after = arith.addi(slot, one)
        if op.name == "kitsune.acquire":
            WaitRoundsOp(ring.freed, slot, after, rounds, _number(ring.pops))
        else:
            WaitRoundsOp(ring.filled, slot, after, arith.addi(rounds, one), _number(ring.pushes))
    op.results[0].replace_all_uses_with(slot)
    op.erase()
