"""Maps that permute dimensions: windows of loads that are read across their rows come through shared memory.

Neighbours of the result are rows apart in such a load. Threads read the window along its rows, in wide accesses, write it to
shared memory, and take it out across the rows. Sixteen bytes at a time change places there by the exclusive or of their number
with that of the row's group, so that both ways touch all banks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Index, Linear, add, at, clamp, emit
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.memory import CrossedWindow
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load

__all__ = ["CrossedLoad", "crossed_loads", "emit_crossed", "place_crossed"]

CHUNK = 16
"""Bytes that move together."""

LEAST = 8
"""Shorter windows are read as they lie."""

MOST_UNREAD = 4
"""Times the elements of the result that a window may have: of a tensor that is read by index, a tile reads a small part."""


@dataclasses.dataclass(frozen=True)
class CrossedLoad:
    """A load that is read across its rows.

    Attributes:
        load: the load.
        across: dimension of its window that neighbours of the result run along; its rows run along the last one.
        start: bytes from the beginning of the block's shared memory.
        row_bytes: of a row of the window in shared memory: a power of two times `CHUNK`.
        inner: dimensions that are a row together: rows of an image, all of which the window has, lie behind each other.
    """

    load: Load
    across: int
    start: int
    row_bytes: int
    inner: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The window with rows of one dimension."""
        return (*self.load.sizes[: -self.inner], math.prod(self.load.sizes[-self.inner :]))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


def crossed_loads(seen: Sequence[tuple[Load, int]], points: int) -> list[CrossedLoad]:
    """Where loads go that are read along another dimension than their last.

    Args:
        seen: by a trial: each load with that dimension.
        points: elements of the result.
    """
    found, start = [], 0
    for window, across in seen:
        inner = 1
        while inner < len(window.sizes) - across - 1 and window.sizes[-inner] == window.buffer.shape[-inner]:
            inner += 1
        run = math.prod(window.sizes[-inner:])
        if min(window.sizes[across], run) < LEAST or math.prod(window.sizes) > MOST_UNREAD * points:
            continue
        chunks = -(-run * element_bytes(window.buffer.element) // CHUNK)
        crossed = CrossedLoad(window, across, start, CHUNK << (chunks - 1).bit_length(), inner)
        found.append(crossed)
        start += crossed.bytes
    return found


def place_crossed(crossed: CrossedLoad, tile: TileContext) -> CrossedWindow:
    """The window in the block's shared memory."""
    load = crossed.load
    return CrossedWindow(
        offset(tile.task.shared, crossed.start),
        load.buffer.element,
        crossed.shape,
        crossed.across,
        crossed.row_bytes,
        tuple(load.sizes[-crossed.inner :]),
    )


def emit_crossed(loads: Sequence[CrossedLoad], graph: Graph, tile: TileContext) -> dict[ir.Value, CrossedWindow]:
    """Bring windows into shared memory; the caller puts a barrier behind it. All threads of the block take part."""
    windows = {}
    for crossed in loads:
        window = windows[crossed.load.tensor] = place_crossed(crossed, tile)
        _fill(crossed, window, graph, tile)
    return windows


def _fill(crossed: CrossedLoad, window: CrossedWindow, graph: Graph, tile: TileContext) -> None:
    source = crossed.load
    size = element_bytes(source.buffer.element)
    probe = Evaluator(graph, tile, 1)
    first = probe.memory.alignment(source.buffer, probe.places(source, tuple(Linear() for _ in source.sizes)), size)
    shape, gap = crossed.shape, (Linear(),) * (crossed.inner - 1)
    row_step = math.gcd(CHUNK, shape[-1] * size, *(s * size for s in source.buffer.strides[: -crossed.inner]), first)
    width = max(1, row_step // size)
    count, threads = math.prod(source.sizes), tile.task.threads
    evaluator = Evaluator(graph, tile, width)
    lanes = 1 if width > 1 else 0

    def move(base: Linear, inside: Value | None) -> tuple[Value, Value, Value | None]:
        point = Linear(base.terms, lanes, base.const)
        where = evaluator.spread(point, shape)
        full = (*where[:-1], *gap, where[-1])
        place = evaluator.memory.address(source.buffer, evaluator.places(source, full), size)
        bits = 8 * size * width
        kind = f"i{bits}" if bits <= 32 else f"vector<{bits // 32}xi32>"
        value = load(place, kind, min(CHUNK, size * width), source.buffer.role == "input")
        return value, window.address(tuple(_first(index) for index in where)), inside

    steps = -(-count // (threads * width))
    together = min(steps, 8)
    exact = count % (threads * width * together) == 0
    own = Linear(((Atom(tile.task.thread, 1, threads), width),))

    def step(origin: Linear) -> None:
        pending = []
        for number in range(together):
            base = add(add(origin, own), number * threads * width)
            assert isinstance(base, Linear)
            inside = None
            if not exact:
                inside = emit(base) < count
                base = clamp(base, count - width)
            pending.append(move(base, inside))
        for value, target, inside in pending:
            write = _write(value, target, size * width)
            if inside is None:
                write()
            else:
                if_(inside, write)

    if steps <= together:
        step(Linear())
        return

    def body(start: Value) -> None:
        with evaluator.scope():
            step(Linear.of(Atom(start, threads * width * together, count)))

    for_(0, count, threads * width * together, body)


def _write(value: Value, target: Value, bytes: int):
    return lambda: store(value, target, min(CHUNK, bytes))


def _first(index: Index) -> Linear:
    return at(index, 0)
