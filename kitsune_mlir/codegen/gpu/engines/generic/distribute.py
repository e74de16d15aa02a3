"""Maps a lowered body onto the threads of a block.

Two kinds of code alternate. *Uniform* code is run by all threads alike: control flow, arithmetic and loads; one thread
makes its stores. A *parallel* loop is dealt out: thread t takes iterations t, t + threads, ... of the flattened index
space, the innermost dimension fastest, so that neighbouring threads touch neighbouring elements. Block barriers stand
between accesses whose order matters, and nowhere else.

Where a parallel loop has fewer iterations than there are threads, and each of them reduces, the lanes of a warp share
one iteration: each takes every n-th step of the reduction, and shuffles combine the parts (`engines/generic/warp_reduce.py`).
"""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir
from torch_mlir.dialects import arith, nvvm, scf

from kitsune_mlir.codegen.gpu.engines.generic.effects import Access, Memory, accesses
from kitsune_mlir.codegen.gpu.engines.generic.loop_rewrites import segments, trip_counts
from kitsune_mlir.codegen.gpu.engines.generic.warp_reduce import choose_lanes, split_reductions
from kitsune_mlir.dialects.access import constant_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["distribute"]


@dataclasses.dataclass
class Pending:
    """Accesses since the last block barrier that some thread may still be making."""

    items: list[Access] = dataclasses.field(default_factory=list)

    def copy(self) -> Pending:
        return Pending(list(self.items))


class _Distributor:
    def __init__(self, function: ir.Operation, memory: Memory, threads: int):
        self.memory = memory
        self.threads = threads
        self.block = function.regions[0].blocks[0]
        self.thread = self.block.arguments[len(self.block.arguments) - 1]
        self.index = ir.IndexType.get()

    def constant(self, value: int, type: ir.Type | None = None) -> ir.Value:
        return arith.constant(type or self.index, value)

    # --- uniform code

    def uniform(self, block: ir.Block, pending: Pending) -> Pending:
        """Rewrite a block that all threads run alike; the accesses pending at its end."""
        for op in [op.operation for op in block.operations]:
            if op.name == "scf.parallel":
                pending = self.before(op, accesses(op), pending)
                self.deal_out(op)
            elif op.name == "memref.load":
                pending = self.before(op, accesses(op), pending)
            elif op.regions and op.name.startswith("scf.") and op.name != "scf.reduce":
                pending = self.control(op, pending)
            elif found := accesses(op):
                pending = self.before(op, found, pending)
                if any(access.writes for access in found):
                    self.one_thread(op)
        return pending

    def control(self, op: ir.Operation, pending: Pending) -> Pending:
        found = accesses(op)
        parallel = any(inner.name == "scf.parallel" for inner in walk(op))
        writes = any(access.writes for access in found)
        if not parallel and (not writes or not op.results):
            pending = self.before(op, found, pending)
            if writes:
                self.one_thread(op)
            return pending
        loops = op.name in ("scf.for", "scf.while")
        # The next iteration meets what this one leaves behind.
        start = Pending(pending.items + found) if loops else pending
        ends = [self.uniform(b, start.copy()) for region in op.regions for b in region.blocks]
        return Pending(list(dict.fromkeys(pending.items + [item for end in ends for item in end.items])))

    def before(self, op: ir.Operation, found: list[Access], pending: Pending) -> Pending:
        """A barrier before `op` if it must come after something pending; what is pending after `op`."""
        if any(self.memory.conflict(a, b) for a in pending.items for b in found):
            with ir.InsertionPoint(op), op.location:
                nvvm.barrier()
            pending = Pending()
        return Pending(pending.items + found)

    def one_thread(self, op: ir.Operation) -> None:
        """Let thread 0 alone run `op`."""
        if any(True for result in op.results for _ in result.uses):
            raise UnsupportedError(op.name, "its result is used by code that all threads run", None, str(op.location))
        with ir.InsertionPoint(op), op.location:
            first = arith.cmpi(arith.CmpIPredicate.eq, self.thread, self.constant(0))
            guard = scf.IfOp(first)
            with ir.InsertionPoint(guard.then_block):
                end = scf.YieldOp([])
        op.move_before(end.operation)

    # --- parallel loops

    def deal_out(self, op: ir.Operation) -> None:
        """Replace an scf.parallel by a loop over this thread's iterations."""
        lower, _, step = segments(op)[:3]
        body = op.regions[0].blocks[0]
        for inner in [inner for inner in walk(op) if inner.name == "scf.parallel"]:
            sequentialize(inner)
        trips = trip_counts(op)
        counts = [count for count in trips if count is not None]
        static = len(counts) == len(trips)
        lanes = choose_lanes(op, math.prod(counts), self.threads, self.memory) if static else 1
        with ir.InsertionPoint(op), op.location:
            small = static and math.prod(counts) * lanes < 1 << 31
            type = ir.IntegerType.get_signless(32) if small else self.index
            sizes = [self.constant(count, type) for count in counts] if static else self._sizes(op)
            total = sizes[0]
            if static:
                total = self.constant(math.prod(counts), type)
            else:
                for size in sizes[1:]:
                    total = arith.muli(total, size)
            start, stride = self.thread, self.threads // lanes
            if lanes > 1:
                start = arith.divui(start, self.constant(lanes))
            if small:
                start = arith.index_castui(type, start)
            # With lanes, all threads of a warp go round together, because shuffles need every one of them.
            loop = scf.ForOp(start, total, self.constant(stride, type)) if lanes == 1 else None
            if loop is None:
                rounds = -(-math.prod(counts) // stride)
                loop = scf.ForOp(self.constant(0, type), self.constant(rounds, type), self.constant(1, type))
        with ir.InsertionPoint(loop.body), op.location:
            number = loop.induction_variable
            lane = writer = None
            if lanes > 1:
                number = arith.addi(arith.muli(number, self.constant(stride, type)), start)
                inside = arith.cmpi(arith.CmpIPredicate.ult, number, total)
                lane = arith.remui(self.thread, self.constant(lanes))
                writer = arith.andi(inside, arith.cmpi(arith.CmpIPredicate.eq, lane, self.constant(0)))
                # The surplus iterations repeat the last one; their stores are left out.
                number = arith.minui(number, self.constant(math.prod(counts) - 1, type))
            parts: list[ir.Value] = []
            for dim in reversed(range(len(sizes))):
                last = dim == 0
                part = number if last else arith.remui(number, sizes[dim])
                number = number if last else arith.divui(number, sizes[dim])
                parts.insert(0, arith.index_castui(self.index, part) if small else part)
            ivs = []
            for part, low, by in zip(parts, lower, step, strict=True):
                if constant_of(by) != 1:
                    part = arith.muli(part, by)
                ivs.append(part if constant_of(low) == 0 else arith.addi(part, low))
            end = scf.YieldOp([])
        for old, new in zip(body.arguments, ivs, strict=True):
            old.replace_all_uses_with(new)
        for inner in list(body.operations)[:-1]:
            inner.operation.move_before(end.operation)
        op.erase()
        if lane is not None and writer is not None:
            split_reductions(loop.body, lane, lanes, writer)

    def _sizes(self, op: ir.Operation) -> list[ir.Value]:
        lower, upper, step = segments(op)[:3]
        return [arith.ceildivsi(arith.subi(high, low), by) for low, high, by in zip(lower, upper, step, strict=True)]


def sequentialize(op: ir.Operation) -> None:
    """Replace an scf.parallel inside another by nested scf.for."""
    lower, upper, step = segments(op)[:3]
    body = op.regions[0].blocks[0]
    point, ivs = ir.InsertionPoint(op), []
    with op.location:
        for bounds in zip(lower, upper, step, strict=True):
            with point:
                loop = scf.ForOp(*bounds)
            with ir.InsertionPoint(loop.body):
                end = scf.YieldOp([])
            ivs.append(loop.induction_variable)
            point = ir.InsertionPoint(end)
    for old, new in zip(body.arguments, ivs, strict=True):
        old.replace_all_uses_with(new)
    for inner in list(body.operations)[:-1]:
        inner.operation.move_before(end.operation)
    op.erase()


def distribute(function: ir.Operation, memory: Memory, threads: int) -> None:
    """Rewrite the function, whose last argument is the thread's index in its block, for a block of `threads` threads."""
    distributor = _Distributor(function, memory, threads)
    distributor.uniform(distributor.block, Pending())
