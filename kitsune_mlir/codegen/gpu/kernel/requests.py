"""A kernel that does several requests in a launch: the same program on other memory (OoO VLIW JIT, section 4: coalescing).

The request is the outermost dimension of each task, so pieces of work are numbered (request, piece) and dealt out to the blocks
as those of one request would be: block b of G takes every G-th. A block does what it has of a request as it would do a run of
its own, with the pointers, tensor maps, counters and partial results of that request, and goes on with the next one in which it
has a piece. So engines know nothing of requests, and every wait is for an earlier piece still: pieces of a request wait for
those of the same one, in tasks before.

All that the kernel is given is a table in device memory (`runtime.manifest.REQUEST_HEADER`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.control_flow import while_
from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, load, offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i32, i64, wrap
from kitsune_mlir.codegen.gpu.interface.operands import Arguments
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

    def for_each(self, first: Value, pieces: int, blocks: Value, body: Callable[[Value, Value], None]) -> None:
        """Emit `body(request, first)` for each request in which the block has pieces of a task: `first`, and every G-th one.

        Args:
            first: number of the block's first piece of all requests' together.
            pieces: of the task, in a request.
            blocks: how many blocks the pieces are dealt out to.
        """
        total = self.count * pieces

        def step(number: Value) -> Value:
            request, own = number // pieces, number % pieces
            body(request, own)
            turns = (i32(pieces - 1) - own) // blocks + 1
            return number + turns * blocks

        while_([first], lambda number: number < total, step)

    def _pointer(self, number: int) -> Value:
        address = load(offset(self.address, number * _WORD), "i64", constant=True)
        return wrap(llvm.inttoptr(as_type(GLOBAL), address.ir))


def acquire_map(address: Value) -> None:
    """Let the calling thread use a tensor map that the host has written to device memory (CUDA C++ Programming Guide, "Tensor
    Memory Access", tensor maps in global memory)."""
    inline_ptx("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", [address], memory=True)
