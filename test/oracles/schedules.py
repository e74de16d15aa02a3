"""A slow, independent judge of small tile programs: tile by tile and byte by byte, by running schedules.

Whether tile X comes before tile Y is found by never letting X finish: Y comes after X exactly when Y then cannot start, however
many workers there are. `verdict` is None for a good program, else the first fault found, in words.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()


def width(type_) -> int:
    element = ir.ShapedType(type_).element_type
    if isinstance(element, ir.IndexType):
        return 8
    return max(1, (element.width if isinstance(element, ir.IntegerType) else ir.FloatType(element).width) // 8)


def owner(value):
    return value.owner.operation if isinstance(value, ir.OpResult) else None


@dataclass
class Tile:
    task: int
    name: str
    waits: list[tuple[int, range, int]] = field(default_factory=list)
    posts: list[tuple[int, int]] = field(default_factory=list)
    reads: list[tuple[int, object, np.ndarray]] = field(default_factory=list)  # memory, name, bytes
    writes: list[tuple[int, object, np.ndarray, int]] = field(default_factory=list)  # ..., which store


class Program:
    def __init__(self, function):
        self.tiles: list[Tile] = []
        self.slots: list[int] = []
        self.results = ir.IntegerAttr(function.attributes["kitsune.results"]).value
        self.inputs = ir.IntegerAttr(function.attributes["kitsune.arguments"]).value
        self.block = function.regions[0].blocks[0]
        self.sems = {}
        task = 0
        for op in self.block.operations:
            if op.operation.name == "kitsune.make_semaphore":
                self.sems[op.operation.results[0]] = len(self.slots)
                self.slots.append(ir.IntegerAttr(op.attributes["slots"]).value)
            if op.operation.name == "kitsune.task":
                self.add(op.operation, task)
                task += 1

    def add(self, op, task):
        block = op.regions[0].blocks[0]
        for at in itertools.product(*(range(n) for n in ir.DenseI64ArrayAttr(op.attributes["grid"]))):
            tile = Tile(task, f"{op.attributes['sym_name']}{at}")
            env = dict(zip(block.arguments, at, strict=True))
            for inner in (o.operation for o in block.operations):
                self.step(inner, env, tile)
            self.tiles.append(tile)

    def step(self, op, env, tile):
        if op.name == "kitsune.wait":
            lo, hi = (self.number(v, env) for v in list(op.operands)[1:])
            tile.waits.append((self.sems[op.operands[0]], range(lo, hi), ir.IntegerAttr(op.attributes["count"]).value))
        elif op.name == "kitsune.post":
            tile.posts.append((self.sems[op.operands[0]], self.number(op.operands[1], env)))
        elif op.name == "bufferization.to_tensor":
            tile.reads.append(self.where(op.operands[0], env))
        elif op.name == "bufferization.materialize_in_destination":
            tile.writes.append((*self.where(op.operands[1], env), hash(op)))

    def number(self, value, env) -> int:
        if value in env:
            return env[value]
        op = owner(value)
        if op.name == "arith.constant":
            return op.attributes["value"].value
        a, b = (self.number(v, env) for v in op.operands)
        by = {"addi": a + b, "subi": a - b, "muli": a * b, "minui": min(a, b), "divui": a // b if b else None}
        return by[op.name.removeprefix("arith.")]

    def where(self, value, env):
        """(memory, the name it is known by, byte numbers in the value's shape with a last axis of bytes)."""
        op = owner(value)
        shape = list(ir.ShapedType(value.type).shape)
        if op is None:
            number = ir.BlockArgument(value).arg_number
            return number, number, np.arange(int(np.prod(shape)) * width(value.type)).reshape(*shape, width(value.type))
        memory, name, numbers = self.where(op.operands[0], env)
        if op.name == "memref.view":
            start = self.number(op.operands[1], env)
            count = int(np.prod(shape)) * width(value.type)
            return memory, hash(op), numbers.ravel()[start : start + count].reshape(*shape, width(value.type))
        if op.name == "memref.subview":
            dynamic = iter(list(op.operands)[1:])
            places = [self.number(next(dynamic), env) if o == _DYNAMIC else o for o in op.attributes["static_offsets"]]
            cut = tuple(slice(o, o + n) for o, n in zip(places, op.attributes["static_sizes"], strict=True))
            return memory, name, numbers[cut]
        return memory, name, numbers.reshape(*shape, numbers.shape[-1])

    def started(self, stuck: int | None) -> set[int]:
        """The tiles that can start when tile `stuck` never finishes."""
        posts = [[0] * n for n in self.slots]
        begun: set[int] = set()
        while True:
            before = len(begun)
            for i, tile in enumerate(self.tiles):
                if i not in begun and all(posts[s][slot] >= k for s, r, k in tile.waits for slot in r):
                    begun.add(i)
                    for s, slot in tile.posts if i != stuck else ():
                        posts[s][slot] += 1
            if len(begun) == before:
                return begun


def verdict(function) -> str | None:
    program = Program(function)
    tiles = program.tiles
    posts = [np.zeros(n, int) for n in program.slots]
    for tile in tiles:
        for s, slots, count in tile.waits:
            if slots.start < 0 or slots.stop > len(posts[s]):
                return f"{tile.name} waits outside of its semaphore"
            if slots and posts[s][slots.start : slots.stop].min() < count:
                return f"deadlock at {tile.name}"
        for s, slot in tile.posts:
            if not 0 <= slot < len(posts[s]):
                return f"{tile.name} posts outside of its semaphore"
            posts[s][slot] += 1
    started = functools.cache(program.started)

    def before(x: int, y: int) -> bool:
        return y not in started(x)

    size = {}
    for tile in tiles:
        for memory, _, numbers, *_ in [*tile.reads, *tile.writes]:
            size[memory] = max(size.get(memory, 0), int(numbers.max()) + 1)
    # For each byte its writers so far: (tile, name, store), and its readers.
    writers = {m: [[] for _ in range(n)] for m, n in size.items()}
    readers = {m: [[] for _ in range(n)] for m, n in size.items()}
    for y, tile in enumerate(tiles):
        for memory, name, numbers in tile.reads:
            if memory < program.inputs:
                continue
            for byte in numbers.ravel()[:: numbers.shape[-1]]:
                past = writers[memory][byte]
                if not past:
                    return f"{tile.name} reads what nobody wrote"
                if past[-1][1] != name:
                    return f"{tile.name} reads what {tiles[past[-1][0]].name} has overwritten"
                for store in {w[2] for w in past}:
                    if not any(before(w[0], y) for w in past if w[2] == store):
                        return f"{tile.name} reads before {tiles[past[-1][0]].name} has written"
                readers[memory][byte].append(y)
        for memory, name, numbers, store in tile.writes:
            for byte in numbers.ravel()[:: numbers.shape[-1]]:
                for x, _, other in writers[memory][byte]:
                    if other != store and x != y and not before(x, y):
                        return f"{tile.name} and {tiles[x].name} write the same"
                for x in readers[memory][byte]:
                    if x == y or not before(x, y):
                        return f"{tile.name} overwrites what {tiles[x].name} reads"
                writers[memory][byte].append((y, name, store))
    for number in range(program.inputs, program.inputs + program.results):
        type_ = program.block.arguments[number].type
        bytes_ = writers.get(number, [])
        if len(bytes_) < int(np.prod(ir.ShapedType(type_).shape)) * width(type_) - width(type_) + 1:
            return f"result {number - program.inputs} is not complete"
        if any(not w for w in bytes_[:: width(type_)]):
            return f"result {number - program.inputs} is not complete"
    return None
