"""A kernel that does several requests in a launch: the same program on other memory (OoO VLIW JIT, section 4: coalescing).

The request is the outermost dimension of each task, and a block does what it has of a request as it would do a run of its own,
with the pointers, tensor maps, counters and partial results of that request. So engines know nothing of requests.

Of G blocks and n requests, each request has G / n blocks of its own (one, if there are more requests than blocks: then a block
has every G-th request), so that a block has many tiles in a row of one request, whose loads overlap, and requests do not wait
for each other. (Dealt out one by one to all blocks, 64 towers of 2.4 MB took 213 us on an H200, six times the time of their
bytes: each tile's loads were waited for.) Pieces of a tile that wait for each other are on blocks of all, as are clusters.

A block does tasks in order, and a wait is for earlier tasks of the same request: so the blocks that have the earliest task that
is not done can always run, whoever has which requests.

All that the kernel is given is a table in device memory (`runtime.manifest.REQUEST_HEADER`).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32, i64, maximum, select, wrap
from kitsune_mlir.codegen.gpu.interface.operands import Arguments
from kitsune_mlir.codegen.gpu.interface.plan import Plan
from kitsune_mlir.codegen.gpu.kernel.placement import Range, advance
from kitsune_mlir.runtime.manifest import REQUEST_HEADER

__all__ = ["RequestTable", "acquire_map"]

_WORD = 8
_MAP_BYTES = 128


@dataclasses.dataclass(frozen=True)
class RequestTable:
    """The table of requests, at a kernel's start.

    Attributes:
        address: pointer to it.
        pointers: of a request's row.
        maps: tensor maps of a request.
        slots, partial_bytes: counters, and bytes of partial results, of a request.
    """

    address: Value
    pointers: int
    maps: int
    slots: int
    partial_bytes: int

    @property
    def count(self) -> Value:
        """Requests of the launch, i32."""
        return load(self.address, "i32", constant=True)

    @property
    def workspace(self) -> Value:
        """Pointer to the workspace."""
        return self._pointer(1)

    def arguments(self, request: Value) -> Arguments:
        """What the kernel's parameters would be for one request."""
        row = offset(self.address, i64(request) * (_WORD * self.pointers) + REQUEST_HEADER)
        maps = offset(self._pointer(2), i64(request) * (_MAP_BYTES * self.maps))
        maps = wrap(llvm.addrspacecast(as_type("!llvm.ptr"), maps.ir))
        return Arguments(row, maps, None, request, self.slots, self.partial_bytes)

    def for_each(
        self,
        mine: Range,
        starts: Sequence[Value | int],
        plans: Sequence[Plan],
        body: Callable[[Value, Sequence[Value], Value], None],
    ) -> None:
        """Emit `body(request, firsts, count)` for each request of which the block has pieces of a run's tasks: of each task its
        first one, and each `count`-th one after it.

        Args:
            mine: the blocks of the tasks.
            starts: pieces of a request that are dealt out before each task's first.
            plans: of the tasks; one task, or several of which no pieces wait for each other.
        """
        if plans[0].together:
            assert len(plans) == 1, "pieces that wait for each other are of one task"
            self._for_each_of_all(mine, starts[0], plans[0].pieces, lambda request, own: body(request, [own], mine.count))
            return
        blocks = maximum(mine.count // self.count, 1)
        groups, group = mine.count // blocks, mine.first // blocks
        firsts = [advance(mine.first % blocks, start, blocks) for start in starts]
        busy = functools.reduce(operator.or_, (first < plan.pieces for first, plan in zip(firsts, plans, strict=True)))

        def one(request: Value) -> None:
            if_(busy, lambda: body(request, firsts, blocks))

        # Blocks that are left over belong to no group.
        for_(group, select(group < groups, self.count, i32(0)), groups, one)

    def _for_each_of_all(self, mine: Range, start: Value | int, pieces: int, body: Callable[[Value, Value], None]) -> None:
        """Emit `body(request, first)` with all requests' pieces dealt out one by one to all blocks."""
        total = self.count * pieces
        start = start if isinstance(start, int) and not start else self.count * start

        def step(number: Value) -> Value:
            request, own = number // pieces, number % pieces
            body(request, own)
            turns = (i32(pieces - 1) - own) // mine.count + 1
            return number + turns * mine.count

        while_([advance(mine.first, start, mine.count)], lambda number: number < total, step)

    def _pointer(self, number: int) -> Value:
        address = load(offset(self.address, number * _WORD), "i64", constant=True)
        return wrap(llvm.inttoptr(as_type(GLOBAL), address.ir))


def acquire_map(address: Value) -> None:
    """Let the calling thread use a tensor map that the host has written to device memory (CUDA C++ Programming Guide, "Tensor
    Memory Access", tensor maps in global memory)."""
    inline_ptx("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", [address], memory=True)
