"""A tile program read into its tiles: what each waits for, posts and touches, with memory as sets of words.

It shares nothing with `kitsune-check-progress`, which `interleavings` and `runs` judge with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

__all__ = ["Tile", "TileProgram", "Touch"]

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_OPERATIONS = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "minui": np.minimum, "minsi": np.minimum, "maxsi": np.maximum,
    "maxui": np.maximum, "divui": np.floor_divide, "remui": np.remainder, "divsi": np.floor_divide, "remsi": np.remainder,
    "ceildivui": lambda a, b: -(-a // b), "ceildivsi": lambda a, b: -(-a // b),
}  # fmt: skip
WORD = 4  # bytes of a word of memory; odd sizes are rounded outwards


def _maker(value: ir.Value) -> ir.Operation | None:
    return value.owner.operation if isinstance(value, ir.OpResult) else None


def _bytes(type_: ir.Type) -> int:
    element = ir.ShapedType(type_).element_type
    return 8 if isinstance(element, ir.IndexType) else max(1, element.width // 8)


@dataclass
class Touch:
    """What a tile does to memory: `words` as bits of a number."""

    kind: str  # "read", "write" or "add"
    memory: int
    name: int  # of the buffer that it is known by
    words: int
    store: int  # which operation


@dataclass
class Tile:
    """What a tile waits for, and does."""

    task: int
    number: int
    waits: list[tuple[int, int, int, int]] = field(default_factory=list)  # first slot, end, count, of all slots; semaphore
    posts: list[int] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)


class TileProgram:
    """All tiles of a tile program, in its order.

    Attributes:
        tiles: with the tasks' numbers.
        slots: how many counters there are, of all semaphores.
        broken: what a tile does to counters that do not exist; None in a program that may run.
        inputs: how many of the function's arguments come before its results.
        results: all words of each result, by its number among the arguments.
    """

    def __init__(self, function: ir.Operation):
        self.tiles: list[Tile] = []
        self.first_slot: dict[ir.Value, tuple[int, int]] = {}
        self.slots = 0
        self.broken: str | None = None
        self.names: dict[object, int] = {}
        self.stores = 0
        block = function.regions[0].blocks[0]
        attributes = function.attributes
        inputs, results = (ir.IntegerAttr(attributes[f"kitsune.{x}"]).value for x in ("arguments", "results"))
        self.inputs = inputs
        self.results = {number: _whole(block.arguments[number].type) for number in range(inputs, inputs + results)}
        task = 0
        for op in (o.operation for o in block.operations):
            if op.name == "kitsune.make_semaphore":
                count = ir.IntegerAttr(op.attributes["slots"]).value
                self.first_slot[op.results[0]] = (self.slots, count)
                self.slots += count
            elif op.name == "kitsune.task":
                self._task(op, task)
                task += 1

    def _task(self, op: ir.Operation, number: int) -> None:
        extents = list(ir.DenseI64ArrayAttr(op.attributes["grid"]))
        block = op.regions[0].blocks[0]
        count = math.prod(extents)
        self.known: dict[ir.Value, np.ndarray] = dict(
            zip(block.arguments, np.unravel_index(np.arange(count), extents), strict=True)
        )
        self.count = count
        tiles = [Tile(number, n) for n in range(count)]
        for inner in self._all(block):
            self.stores += 1
            if inner.name == "kitsune.wait":
                first, slots = self.first_slot[inner.operands[0]]
                wanted = ir.IntegerAttr(inner.attributes["count"]).value
                for tile, lo, hi in zip(tiles, *(self._values(v).tolist() for v in list(inner.operands)[1:]), strict=True):
                    if not (0 <= lo <= hi <= slots):
                        self.broken = self.broken or "waits outside of its semaphore"
                    tile.waits.append((first + lo, first + hi, wanted, first))
            elif inner.name == "kitsune.post":
                first, slots = self.first_slot[inner.operands[0]]
                for tile, slot in zip(tiles, self._values(inner.operands[1]).tolist(), strict=True):
                    if not 0 <= slot < slots:
                        self.broken = self.broken or "posts outside of its semaphore"
                    tile.posts.append(first + slot)
            elif inner.name == "bufferization.to_tensor":
                self._touch(tiles, "read", inner.operands[0])
            elif inner.name == "bufferization.materialize_in_destination":
                self._touch(tiles, "write", inner.operands[1])
            elif inner.name == "kitsune.atomic_scatter":
                self._touch(tiles, "add", inner.operands[3])
        self.tiles += tiles

    def _all(self, block: ir.Block):
        for op in (o.operation for o in block.operations):
            yield op
            for region in op.regions if op.name.startswith("scf.") else ():
                for inner in region.blocks:
                    yield from self._all(inner)

    def _values(self, value: ir.Value) -> np.ndarray:
        if value not in self.known:
            op = _maker(value)
            assert op is not None
            if op.name == "arith.constant":
                found = np.full(self.count, op.attributes["value"].value)
            else:
                found = _OPERATIONS[op.name.removeprefix("arith.")](*(self._values(v) for v in op.operands))
            self.known[value] = found
        return self.known[value]

    def _touch(self, tiles: list[Tile], kind: str, view: ir.Value) -> None:
        steps, value = [], view
        while (op := _maker(value)) is not None:
            steps.append(op)
            value = op.operands[0]
        memory = ir.BlockArgument(value).arg_number
        if memory < self.inputs:
            return
        name: object = memory
        shape = list(ir.ShapedType(value.type).shape)
        # The box in bytes along each dimension of the newest view that is whole: start, offsets, sizes.
        start, size = 0, _bytes(value.type)
        offsets, sizes = [np.zeros(self.count, int)] * len(shape), list(shape)
        for op in reversed(steps):
            result = list(ir.ShapedType(op.results[0].type).shape)
            if op.name == "memref.view":
                start, size, shape = int(self._values(op.operands[1])[0]), _bytes(op.results[0].type), result
                offsets, sizes, name = [np.zeros(self.count, int)] * len(shape), list(shape), (memory, hash(op))
            elif op.name == "memref.subview":
                dynamic = iter(list(op.operands)[1:])
                for d, (offset, extent) in enumerate(
                    zip(op.attributes["static_offsets"], op.attributes["static_sizes"], strict=True)
                ):
                    offsets[d] = offsets[d] + (self._values(next(dynamic)) if offset == _DYNAMIC else offset)
                    sizes[d] = extent
            else:
                assert sizes == shape, "a reshape of a part"
                shape, offsets, sizes = result, [np.zeros(self.count, int)] * len(result), list(result)
        number = self.names.setdefault(name, len(self.names))
        patterns: dict[tuple[int, ...], int] = {}
        for n, tile in enumerate(tiles):
            at = tuple(int(o[n]) for o in offsets)
            if at not in patterns:
                patterns[at] = _words(shape, at, sizes, start, size)
            tile.touches.append(Touch(kind, memory, number, patterns[at], self.stores))


def _whole(type_: ir.Type) -> int:
    """All words of a memref, as bits."""
    shape = list(ir.ShapedType(type_).shape)
    return _words(shape, (0,) * len(shape), shape, 0, _bytes(type_))


def _words(shape: list[int], at: tuple[int, ...], sizes: list[int], start: int, size: int) -> int:
    """The words of a box as bits: `sizes` elements of `size` bytes from `at` on, in an array of `shape` at byte `start`."""
    if not shape:
        return ((1 << -(-size // WORD)) - 1) << (start // WORD)
    offsets = np.zeros(1, np.int64)
    for d in range(len(shape) - 1):
        stride = math.prod(shape[d + 1 :]) * size
        offsets = (offsets[:, None] + (at[d] + np.arange(sizes[d])) * stride).ravel()
    low = start + offsets + at[-1] * size
    length, words = sizes[-1] * size, 0
    for first in low.tolist():
        begin, end = first // WORD, -(-(first + length) // WORD)
        words |= ((1 << (end - begin)) - 1) << begin
    return words
