"""Where the temporaries of a lowered body live: in the block's shared memory while they fit, else in its global scratch.

Two temporaries share bytes when one is used up before the other is first written. Allocations inside loops that threads
run on their own become arrays of the thread.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir
from torch_mlir.dialects import arith, memref

from kitsune_mlir.codegen.gpu.engines.generic.bufferize import GLOBAL_SPACE, SHARED_SPACE
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Placement", "Storage", "place", "rewrite"]

ALIGN = 128
THREAD_LIMIT = 16384
"""Bytes of one thread-private array."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """A temporary: its space ("shared" or "scratch") and bytes [start, end) in it."""

    space: str
    start: int
    end: int


@dataclasses.dataclass
class Storage:
    """All temporaries of a body, by allocation, and how much of each space they take."""

    placements: dict[ir.Value, Placement]
    shared_bytes: int
    scratch_bytes: int

    def interval(self, root: ir.Value) -> tuple[str, int, int]:
        """(space, start, end) of an allocation: what `effects.Memory` asks."""
        if root not in self.placements:  # a thread's own array, or a constant
            return (f"own {hash(root)}", 0, 1)
        placement = self.placements[root]
        return placement.space, placement.start, placement.end


@dataclasses.dataclass
class _Life:
    value: ir.Value
    bytes: int
    first: int
    last: int


def _bytes_of(value: ir.Value) -> int:
    type = ir.MemRefType(value.type)
    if not type.has_static_shape:
        raise UnsupportedError("memref.alloc", "temporaries have static shapes", str(type), str(value.location))
    return tensor_bytes(type)


def place(function: ir.Operation, shared_limit: int) -> Storage:
    """Choose a place for every allocation outside of parallel loops.

    Args:
        shared_limit: bytes of shared memory that may be used; what does not fit goes to scratch.
    """
    block = function.regions[0].blocks[0]
    positions = {op.operation: number for number, op in enumerate(block.operations)}
    lives = []
    for op in walk(function):
        if op.name == "memref.alloc" and not _in_parallel(op, function):
            uses = _positions_of_uses(op.results[0], positions, function)
            lives.append(_Life(op.results[0], _bytes_of(op.results[0]), min(uses, default=0), max(uses, default=0)))
    placements: dict[ir.Value, Placement] = {}
    used = {"shared": 0, "scratch": 0}
    # Small ones first into shared memory: more of the traffic stays on chip for each byte.
    settled: list[tuple[_Life, Placement]] = []
    for life in sorted(lives, key=lambda life: life.bytes):
        for space, limit in (("shared", shared_limit), ("scratch", None)):
            start = _first_fit(life, [p for other, p in settled if p.space == space and _overlap(life, other)])
            if limit is None or start + life.bytes <= limit:
                placement = Placement(space, start, start + life.bytes)
                placements[life.value] = placement
                settled.append((life, placement))
                used[space] = max(used[space], placement.end)
                break
    return Storage(placements, used["shared"], used["scratch"])


def _in_parallel(op: ir.Operation, function: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None and parent.operation != function:
        if parent.operation.name == "scf.parallel":
            return True
        parent = parent.operation.parent
    return False


def _positions_of_uses(value: ir.Value, positions: dict[ir.Operation, int], function: ir.Operation) -> list[int]:
    """Positions in the function's block of all operations that use `value` or a view of it."""
    found: list[int] = []
    for use in value.uses:
        op = use.owner.operation
        top = op
        while top.parent.operation != function:
            top = top.parent.operation
        viewed = [r for r in op.results if isinstance(r.type, ir.MemRefType)]
        if viewed and not op.regions:
            for result in viewed:
                found += _positions_of_uses(result, positions, function)
        else:
            # A loop or branch that passes the memref on could use it anywhere later.
            found.append(len(positions) if any(isinstance(r.type, ir.MemRefType) for r in op.results) else positions[top])
            if op.name in ("scf.yield", "scf.condition"):
                found.append(len(positions))
            if op.name == "scf.for":
                found.append(len(positions))
        if top != value.owner.operation and value.owner.operation.parent.operation != function:
            found += [positions[_top(value.owner.operation, function)]]
    return found


def _top(op: ir.Operation, function: ir.Operation) -> ir.Operation:
    while op.parent.operation != function:
        op = op.parent.operation
    return op


def _overlap(a: _Life, b: _Life) -> bool:
    return a.first <= b.last and b.first <= a.last


def _first_fit(life: _Life, taken: list[Placement]) -> int:
    start = 0
    for placement in sorted(taken, key=lambda placement: placement.start):
        if start + life.bytes <= placement.start:
            break
        start = max(start, -(-placement.end // ALIGN) * ALIGN)
    return start


def rewrite(function: ir.Operation, storage: Storage) -> None:
    """Replace the allocations by views of two new arguments, appended to the function's: the shared memory and the scratch.

    Both are there even when nothing is kept in them.

    Raises:
        UnsupportedError: a thread's own array is too large.
    """
    block = function.regions[0].blocks[0]
    byte = ir.IntegerType.get_signless(8)
    bases = {}
    for space, number, size in (
        ("shared", SHARED_SPACE, storage.shared_bytes),
        ("scratch", GLOBAL_SPACE, storage.scratch_bytes),
    ):
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        type = ir.MemRefType.get([max(1, size)], byte, memory_space=attribute)
        bases[space] = block.add_argument(type, function.location)
    for op in [op for op in walk(function) if op.name in ("memref.alloc", "memref.dealloc")]:
        if op.name == "memref.dealloc":
            op.erase()
            continue
        value = op.results[0]
        type = ir.MemRefType(value.type)
        with ir.InsertionPoint.at_block_begin(block), op.location:
            if value in storage.placements:
                placement = storage.placements[value]
                base = bases[placement.space]
                offset = arith.constant(ir.IndexType.get(), placement.start)
                viewed = ir.MemRefType.get(type.shape, type.element_type, memory_space=ir.MemRefType(base.type).memory_space)
                new = memref.memory_space_cast(type, memref.view(viewed, base, offset, []))
            else:
                if _bytes_of(value) > THREAD_LIMIT:
                    raise UnsupportedError(
                        "memref.alloc",
                        f"a thread's own array has at most {THREAD_LIMIT} bytes",
                        _bytes_of(value),
                        str(op.location),
                    )
                new = memref.alloca(type, [], [])
        value.replace_all_uses_with(new)
        op.erase()
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([argument.type for argument in block.arguments], [])
    )
