"""How long a block takes for a tile of the generic engine, read off the loops that its threads will run.

A dealt-out loop takes `rounds` times the slowest of three: one iteration from its first load to its last result (loads one
after the other where addresses or sums depend on what was loaded before), the instructions of all warps at the rate at which
they are issued, and the transactions of their loads and stores. Its rates are `rates.GENERIC_*`, fitted to 30 tasks on an H200
(`python -m bench.generic compare`); seconds of another machine go by its clock.
"""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.generic.effects import Access, Memory, accesses, root_of
from kitsune_mlir.codegen.gpu.engines.generic.loop_rewrites import trip_counts
from kitsune_mlir.codegen.gpu.engines.generic.storage import Storage
from kitsune_mlir.codegen.gpu.engines.generic.warp_reduce import choose_lanes
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine import rates

__all__ = ["SPREAD", "tile_cycles"]

SECTOR = 32
"""Bytes that come from L2 at once: steps that are closer find the next element near."""
SPREAD = 3
"""Blocks that share a multiprocessor, and its pipes, where there are tiles enough (`engine.REGISTERS`)."""

_SPECIAL = ("math.", "arith.div", "arith.rem", "arith.ceildiv", "arith.floordiv")
_FREE = ("arith.constant", "arith.index_cast", "arith.index_castui", "scf.yield", "scf.reduce")


@dataclasses.dataclass(frozen=True)
class _Time:
    """Of one thread: cycles from the first operand to the last result; instructions; transactions of its warp."""

    path: float = 0.0
    instructions: float = 0.0
    transactions: float = 0.0

    def __add__(self, other: _Time) -> _Time:
        return _Time(self.path + other.path, self.instructions + other.instructions, self.transactions + other.transactions)

    def times(self, count: float, overlapped: float = 1.0) -> _Time:
        return _Time(self.path * count / overlapped, self.instructions * count, self.transactions * count)

    def taken(self, warps: int, crowd: float) -> float:
        return max(self.path, self.instructions * warps * crowd / rates.GENERIC_ISSUED, self.transactions * warps * crowd)


class _Clock:
    def __init__(self, memory: Memory, storage: Storage, threads: int, crowd: float):
        self.memory, self.storage, self.threads, self.crowd = memory, storage, threads, crowd

    # --- code that all threads run alike

    def uniform(self, block: ir.Block) -> float:
        total = 0.0
        for op in [op.operation for op in block.operations]:
            if op.name == "scf.parallel":
                total += self.dealt(op)
            elif op.name in ("scf.for", "scf.while"):
                count = trip_counts(op)[0] if op.name == "scf.for" else None
                total += (1.0 if count is None else count) * sum(self.uniform(b) for r in op.regions for b in r.blocks)
            elif op.name == "scf.if":
                total += max(self.uniform(b) for r in op.regions for b in r.blocks)
            elif op.name not in _FREE:
                total += rates.GENERIC_FAR if op.name == "memref.load" else rates.GENERIC_OP
        return total

    def dealt(self, op: ir.Operation) -> float:
        counts = [1 if count is None else count for count in trip_counts(op)]
        total = math.prod(counts)
        lanes = choose_lanes(op, total, self.threads, self.memory)
        rounds = -(-total * lanes // self.threads)
        warps = -(-min(total * lanes, self.threads) // 32)
        body = op.regions[0].blocks[0]
        time = self.block(body, body.arguments[len(body.arguments) - 1], None, lanes)
        return rates.GENERIC_DEALT + rounds * time.taken(warps, self.crowd)

    # --- what one thread runs

    def block(self, block: ir.Block, thread: ir.Value, step: ir.Value | None, lanes: int = 1) -> _Time:
        """A block inside of a dealt-out loop.

        Args:
            thread: the variable along which neighbouring threads go. step: that of the innermost loop around, if any.
            lanes: threads that share the steps of the next loops.
        """
        ready: dict[ir.Value, float] = {}
        inner, own = _Time(), _Time()
        latest = 0.0
        for op in [op.operation for op in block.operations]:
            if op.name in ("scf.for", "scf.parallel"):
                inner += self.loop(op, thread, lanes)
                continue
            if op.name == "scf.if":
                branches = [self.block(b, thread, step) for r in op.regions for b in r.blocks]
                inner += max(branches, key=lambda time: time.path)
                if ready.get(op.operands[0], 0.0) > rates.GENERIC_OP:
                    inner += _Time(rates.GENERIC_BRANCH + rates.GENERIC_STORED * sum(access.writes for access in accesses(op)))
                continue
            if op.name in _FREE or op.name.startswith("memref.") and not accesses(op):
                ready |= dict.fromkeys(op.results, max((ready.get(v, 0.0) for v in op.operands), default=0.0))
                continue
            begin = max((ready.get(v, 0.0) for v in op.operands), default=0.0)
            taken, transactions = self._operation(op, thread, step)
            ready |= dict.fromkeys(op.results, begin + taken)
            latest = max(latest, begin + taken)
            own += _Time(0.0, 1.0 + (rates.GENERIC_ADDRESS if transactions else 0.0), transactions)
        return dataclasses.replace(own, path=latest) + inner

    def loop(self, op: ir.Operation, thread: ir.Value, lanes: int) -> _Time:
        count = math.prod(1 if c is None else c for c in trip_counts(op))
        body = op.regions[0].blocks[0]
        variable = body.arguments[0 if op.name == "scf.for" else len(body.arguments) - 1]
        time = self.block(body, thread, variable)
        chained = self._feeds_itself(op) or any(inner.name in ("scf.for", "scf.if") for inner in walk(op))
        found = time.times(math.ceil(count / lanes), 1.0 if chained else rates.GENERIC_OVERLAPPED)
        # Sums in registers are added one after the other, however early their operands are there.
        least = rates.GENERIC_OP * count / lanes if op.results else 0.0
        return dataclasses.replace(found, path=max(found.path, least))

    def _operation(self, op: ir.Operation, thread: ir.Value, step: ir.Value | None) -> tuple[float, float]:
        """(cycles to the result, transactions)."""
        found = accesses(op)
        if not found:
            return (rates.GENERIC_SPECIAL if op.name.startswith(_SPECIAL) else rates.GENERIC_OP), 0.0
        access = found[0]
        shared = self._space(access.memref) == "shared"
        depends = [_depends(index, thread) for index in access.indices]
        apart = any(depends[:-1]) and not (depends and depends[-1])
        transactions = (2.0 if shared else rates.GENERIC_LINES) if apart else 1.0
        if access.kind == "write":
            return 0.0, transactions
        near = step is not None and not apart and self._nears(access, step)
        return (rates.GENERIC_SHARED if shared else rates.GENERIC_NEAR if near else rates.GENERIC_FAR), transactions

    @staticmethod
    def _nears(access: Access, step: ir.Value) -> bool:
        """Whether the next step's element is in the same sector, or it is the same element."""
        moving = [dim for dim, index in enumerate(access.indices) if _depends(index, step)]
        type = ir.MemRefType(access.memref.type)
        row = element_bytes(type) * math.prod(type.shape[moving[0] + 1 :]) if moving else 0
        return row < SECTOR and not any(_is_loaded(index) for index in access.indices)

    def _space(self, memref: ir.Value) -> str:
        root = root_of(memref)
        if root is None or root not in self.storage.placements:
            return "global"
        return self.storage.placements[root].space

    def _feeds_itself(self, op: ir.Operation) -> bool:
        """Whether a step may read what an earlier step wrote."""
        found = list(accesses(op))
        return any(a.writes and b.reads and self.memory.conflict(a, b) for a in found for b in found)


def _is_loaded(value: ir.Value) -> bool:
    """Whether an index comes from memory."""
    while not isinstance(value.owner, ir.Block):
        if value.owner.name == "memref.load":
            return True
        if not len(value.owner.operands):
            return False
        value = value.owner.operands[0]
    return False


def _depends(value: ir.Value, variable: ir.Value) -> bool:
    """Whether an index is computed from a loop's variable by arithmetic alone."""
    pending, seen = [value], 0
    while pending and seen < 64:
        value, seen = pending.pop(), seen + 1
        if value == variable:
            return True
        if not isinstance(value.owner, ir.Block) and value.owner.name.startswith("arith."):
            pending += list(value.owner.operands)
    return False


def tile_cycles(block: ir.Block, memory: Memory, storage: Storage, threads: int, tiles: int, workers: int) -> float:
    """Cycles that a block of `threads` threads takes for one tile.

    Args:
        block: of a lowered body, before it is dealt out to threads.
        storage: where its temporaries are.
        tiles: of the task. workers: multiprocessors that they are for: blocks share one where there are more tiles.
    """
    crowd = max(1.0, min(SPREAD, tiles / workers))
    return _Clock(memory, storage, threads, crowd).uniform(block)
