"""Loads and stores of vectors: as wide as the indices prove to be neighbours, and aligned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import Cache, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, vector
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear, add, at, emit, scale
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes, ScalarEmitter, carrier
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.operands import cache_of
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Buffer

__all__ = ["Access", "CrossedWindow", "Memory", "SharedWindow"]

_ALIGNED = {"input": 16, "result": 16, "arena": 256, "shared": 16}
"""Alignment of a program's arguments in bytes."""

WORD = 4
"""Bytes of the smallest access that can say how L2 should treat its line."""


@dataclasses.dataclass(frozen=True)
class Access:
    """What a vector's load or store costs.

    Attributes:
        writes: it is a store.
        bytes: bytes moved.
        instructions: how many loads or stores that takes.
        shared: it is to shared memory.
        once: it is for a row's results, not for each of its columns.
    """

    writes: bool
    bytes: int
    instructions: int
    shared: bool = False
    once: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class SharedWindow:
    """A tile's window of a buffer in shared memory, or a span of the buffer, with what accesses ask of a `Buffer`.

    Attributes:
        pointer: where it begins.
        element: element type.
        shape: extents, row-major and contiguous.
        offset: what the address of its beginning is known to be a multiple of (an address that is 0 modulo that).
        role: "shared", or the buffer's.
    """

    pointer: Value
    element: ir.Type
    shape: tuple[int, ...]
    offset: int
    role: str = "shared"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * dtype_bytes(str(self.element))

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @property
    def memory(self) -> object:
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class CrossedWindow:
    """A window in shared memory whose rows are read across, with its 16 bytes in an order that spares banks.

    Attributes:
        pointer: where it begins.
        element: element type.
        shape: extents; rows lie along the last one.
        across: the dimension that vectors run along.
        row_bytes: distance of rows.
        parts: extents that the last one is made of.
    """

    pointer: Value
    element: ir.Type
    shape: tuple[int, ...]
    across: int
    row_bytes: int
    parts: tuple[int, ...]

    def address(self, coordinates: Sequence[Linear]) -> Value:
        """Of one element; of those that follow along `across` in a group of `group`, too, `row_bytes` times `pitch` apart.

        Args:
            coordinates: one an extent, or one for each of the `parts` instead of the last.
        """
        size = dtype_bytes(str(self.element))
        if len(coordinates) > len(self.shape):
            rest: Index = Linear()
            for index, extent in zip(coordinates[-len(self.parts) :], self.parts, strict=True):
                rest = add(scale(rest, extent), index)
            assert isinstance(rest, Linear)
            coordinates = (*coordinates[: -len(self.parts)], rest)
        row: Index = Linear()
        for dim, index in enumerate(coordinates[:-1]):
            row = add(row, scale(index, math.prod(self.shape[dim + 1 : -1])))
        assert isinstance(row, Linear)
        chunks = self.row_bytes // 16
        along, lanes = coordinates[-1], 16 // size
        column = emit(along)
        group = (emit(coordinates[self.across]) // self.group) & (chunks - 1)
        chunk = (column // lanes) ^ group
        return offset(self.pointer, emit(row) * self.row_bytes + chunk * 16 + (column % lanes) * size)

    @property
    def group(self) -> int:
        """Neighbours along `across` whose 16 bytes lie in the same order: those of one vector."""
        return 16 // dtype_bytes(str(self.element))

    @property
    def pitch(self) -> int:
        """Rows between neighbours along `across`."""
        return math.prod(self.shape[self.across + 1 : -1])


class Memory:
    """Global memory seen from one tile. `accesses` lists what was emitted, for those who plan, as `once` or not."""

    def __init__(self, tile: TileContext, scalars: ScalarEmitter):
        self.tile, self.scalars = tile, scalars
        self.accesses: list[Access] = []
        self.once = False
        self._known: list[dict] = [{}]

    def enter(self) -> None:
        """A loop or branch begins: pointers and values made from now on are forgotten at its end."""
        self._known.append({})

    def leave(self) -> None:
        self._known.pop()

    def load(self, buffer: Buffer | SharedWindow | CrossedWindow, coordinates: Sequence[Index]) -> Lanes:
        """The elements of a buffer at coordinates; one if all points of the vector read the same one."""
        width = self.scalars.width
        if isinstance(buffer, CrossedWindow):
            return self._load_crossed(buffer, coordinates)
        dtype = str(buffer.element)
        index = _linearized(buffer, coordinates)
        if isinstance(index, Linear) and index.lane == 1 and width > 1 and self._aligned(buffer, index, dtype, width):
            return self._load(buffer, index, dtype, width)
        if isinstance(index, Linear) and not index.lane:
            return self._load(buffer, index, dtype, 1)
        parts = [at(index, e) for e in range(width)]
        alike: dict[tuple, set[int]] = {}
        for part in parts:
            alike.setdefault(part.terms, set()).add(part.const)
        found: dict[Linear, Value] = {}
        for terms, places in alike.items():
            found.update(self._load_near(buffer, terms, places, dtype))
        return [found[part] for part in parts]

    def _aligned(self, buffer: Buffer | SharedWindow, index: Linear, dtype: str, count: int) -> bool:
        """Whether instructions for neighbours are as wide as they can be, or would be no wider for what lies around them."""
        memory = "i64" if dtype == "index" else dtype
        own = self._align(buffer, index, memory)
        wide = min(16, count * dtype_bytes(memory))
        return own >= wide or own >= self._align(buffer, Linear(index.terms), memory)

    def _load_near(self, buffer: Buffer | SharedWindow, terms: tuple, places: set[int], dtype: str) -> dict[Linear, Value]:
        """Elements at constant distances from each other: by aligned vectors where several are in one."""
        size = dtype_bytes("i64" if dtype == "index" else dtype)
        # What nobody writes meanwhile may be read although it is not needed, and may be needed later.
        spare, word = buffer.role == "input", max(1, WORD // size)
        most = self._align(buffer, Linear(terms), "i64" if dtype == "index" else dtype) // size
        most = math.gcd(max(1, most), math.prod(buffer.shape)) if spare or len(places) > 1 else 1
        found: dict[Linear, Value] = {}

        def take(start: int, count: int, wanted: list[int]) -> None:
            if count == 1 or len(wanted) == count or (spare and (len(wanted) > 1 or count <= word)):
                values = self._load(buffer, Linear(terms, 1 if count > 1 else 0, start), dtype, count)
                found.update({Linear(terms, 0, place): values[place - start] for place in wanted})
                return
            for half in (start, start + count // 2):
                if inside := [place for place in wanted if half <= place < half + count // 2]:
                    take(half, count // 2, inside)

        for start in sorted({place // most * most for place in places}):
            take(start, most, sorted(place for place in places if start <= place < start + most))
        return found

    def _load_crossed(self, window: CrossedWindow, coordinates: Sequence[Index]) -> Lanes:
        """Elements across the rows of a window: each by itself, from one address where they belong to one group."""
        width, memory, register = self.scalars.width, str(window.element), carrier(window.element)
        memory = "i64" if memory == "index" else memory
        moving = [index for index in coordinates if isinstance(index, tuple) or index.lane]
        across = coordinates[window.across]
        regular = len(moving) == 1 and isinstance(across, Linear) and across.lane == 1
        if regular and isinstance(across, Linear) and across.multiple % width == 0 and window.group % width == 0:
            first = window.address([at(index, 0) for index in coordinates])
            step = window.pitch * window.row_bytes
            places = [offset(first, e * step) for e in range(width)]
        else:
            places = [window.address([at(index, e) for index in coordinates]) for e in range(width if moving else 1)]
        self.accesses.append(Access(False, len(places) * dtype_bytes(memory), len(places), True, self.once))
        return [load_elements(place, memory, 1, register)[0] for place in places]

    def _load(self, buffer: Buffer | SharedWindow, index: Linear, dtype: str, count: int) -> Lanes:
        """One load; what is known in this scope is not loaded again."""
        key = (buffer.memory, dtype, index, count)
        known = next((memo[key] for memo in self._known if key in memo), None)
        if known is None:
            known = self._known[-1][key] = self._read(buffer, index, dtype, count)
        return known

    def _read(self, buffer: Buffer | SharedWindow, index: Linear, dtype: str, count: int) -> Lanes:
        register = carrier(buffer.element)
        memory = "i64" if dtype == "index" else dtype
        align = self._align(buffer, index, memory)
        self._record(buffer, False, memory, count, align)
        place = self._pointer(buffer, index, memory)
        constant_data = buffer.role == "input"
        if count == 1:
            return load_elements(place, memory, 1, register, None, constant_data)
        return load_elements(place, memory, count, register, align, constant_data, _cache(buffer))

    def store(self, buffer: Buffer | SharedWindow, coordinates: Sequence[Index], values: Lanes) -> None:
        """Write the points of a vector, or the one value that all of them have."""
        width, dtype = self.scalars.width, str(buffer.element)
        memory = "i64" if dtype == "index" else dtype
        index = _linearized(buffer, coordinates)
        if isinstance(index, Linear) and not index.lane:
            self._store(buffer, index, memory, values[:1])
            return
        full = [values[e if len(values) > 1 else 0] for e in range(width)]
        if isinstance(index, Linear) and index.lane == 1:
            self._store(buffer, index, memory, full)
            return
        for e, value in enumerate(full):
            self._store(buffer, at(index, e), memory, [value])

    def _store(self, buffer: Buffer | SharedWindow, index: Linear, memory: str, values: Lanes) -> None:
        align = self._align(buffer, index, memory)
        self._record(buffer, True, memory, len(values), align)
        place = self._pointer(buffer, index, memory)
        size = dtype_bytes(memory)
        run = max(1, min(len(values), align // size, 16 // size))
        if memory in HALF_TYPES and run > 1:
            words = self.scalars.words(values, memory)
            each = run // 2
            pieces = [words[i : i + each] for i in range(0, len(words), each)]
        else:
            raw = [cast(value, "i8", signed=False) if memory == "i1" else cast(value, memory) for value in values]
            pieces = [raw[i : i + run] for i in range(0, len(raw), run)]
        hint = _cache(buffer) if run * size >= WORD else Cache.DEFAULT
        for number, piece in enumerate(pieces):
            where = offset(place, number * run * size)
            store(piece[0] if len(piece) == 1 else vector(piece), where, min(16, run * size), hint)

    def _record(self, buffer: Buffer | SharedWindow, writes: bool, memory: str, count: int, align: int) -> None:
        size = dtype_bytes(memory)
        each = max(1, min(count, align // size, 16 // size))
        self.accesses.append(Access(writes, count * size, -(-count // each), buffer.role == "shared", self.once))

    @staticmethod
    def _align(buffer: Buffer | SharedWindow, index: Linear, memory: str) -> int:
        """Bytes that the address is known to be a multiple of, a power of two up to 16."""
        known = math.gcd(index.multiple * dtype_bytes(memory), buffer.offset, _ALIGNED[buffer.role], 16)
        return known & -known

    def alignment(self, buffer: Buffer | SharedWindow, coordinates: Sequence[Index], size: int) -> int:
        """Bytes that the address of an element is known to be a multiple of, at most 16."""
        index = at(_linearized(buffer, coordinates), 0)
        known = math.gcd(index.multiple * size, buffer.offset, _ALIGNED[buffer.role], 16)
        return known & -known

    def address(self, buffer: Buffer | SharedWindow, coordinates: Sequence[Index], size: int) -> Value:
        """Pointer to the first element of a vector; `size` bytes an element."""
        index = at(_linearized(buffer, coordinates), 0)
        return self._pointer(buffer, index, {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[size])

    def _pointer(self, buffer: Buffer | SharedWindow, index: Linear, memory: str) -> Value:
        size = dtype_bytes(memory)
        wide = buffer.bytes >= 1 << 31
        key = (buffer.memory, size, index.terms)
        pointer = next((memo[key] for memo in self._known if key in memo), None)
        if pointer is None:
            pointer = buffer.pointer if isinstance(buffer, SharedWindow) else self.tile.pointer(buffer)
            if index.terms:
                moved = scale(Linear(index.terms), size)
                assert isinstance(moved, Linear)
                pointer = offset(pointer, emit(moved, "i64" if wide else "i32"))
            self._known[-1][key] = pointer
        place = index.const * size
        return offset(pointer, place) if place < 1 << 31 else offset(pointer, constant(place, "i64"))


def _linearized(buffer: Buffer | SharedWindow, coordinates: Sequence[Index]) -> Index:
    """Element offset in a contiguous buffer."""
    total: Index = Linear()
    for index, stride in zip(coordinates, buffer.strides, strict=True):
        total = add(total, scale(index, stride))
    return total


def _cache(buffer: Buffer | SharedWindow) -> Cache:
    """How L2 should treat what is read and written there."""
    return cache_of(buffer) if isinstance(buffer, Buffer) else Cache.DEFAULT
