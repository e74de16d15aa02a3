"""Numbers along the columns (biases, gains) that a chain keeps in shared memory: which they are, and how they come there."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i64, select
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.chain.core.body import Chain
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import align, load_key
from kitsune_mlir.codegen.gpu.engines.chain.core.records import Vector
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.window import Window

__all__ = ["copy_vectors", "vectors_of"]

LOADS = 16
"""Elements that a thread reads before it writes the first: a way to memory each, in turns, takes longer than the layers."""


def vectors_of(chain: Chain, short: bool) -> tuple[dict[tuple, Vector], int]:
    """Everything that is read along the columns only, by its place, with offsets from 0 on; bytes of all, a multiple of 16.

    Args:
        short: those of 16-bit numbers stay as they are.
    """
    vectors: dict[tuple, Vector] = {}
    used = 0
    for step in chain.steps.values():
        if step.kind in ("alias", "concat") or step.op.name == "linalg.fill":
            continue
        for number in step.operands:
            load = chain.task.load_of(step.op.operands[number])
            if load is None or chain.operand_sides(step.op, number) != (COL,) or load_key(load) in vectors:
                continue
            if not load.given or str(load.buffer.element) not in ("bf16", "f16", "f32"):
                continue
            if not all(isinstance(start, int) for start in load.offsets):
                continue
            vector = Vector(load, Window.of(load, (COL,)), max(load.sizes), used, short and str(load.buffer.element) != "f32")
            vectors[load_key(load)] = vector
            used += vector.bytes * align(vector.length, 8)
    return vectors, align(used, 16)


def copy_vectors(vectors: Iterable[Vector], task: TaskContext, thread: Value, threads: int) -> None:
    """Copy vectors to shared memory by `threads` threads, of which this one is number `thread`; a barrier has to follow."""
    pieces = [(vector, first) for vector in vectors for first in range(0, align(vector.length, 8), threads)]
    for some in range(0, len(pieces), LOADS):
        _copy(pieces[some : some + LOADS], task, thread)


def _copy(pieces: Sequence[tuple[Vector, int]], task: TaskContext, thread: Value) -> None:
    """Copy parts of vectors, each from an element on, one element a thread: all are read before the first is written."""
    found = []
    for vector, first in pieces:
        window = vector.window
        start = sum(dim.start * dim.stride for dim in window.dims if isinstance(dim.start, int))
        index = thread + first
        exists = index < vector.length
        at = i64(select(exists, index, 0) * window.stride(COL) + start) * window.bytes
        dtypes = ("i16", "i16") if vector.short else (window.dtype, "f32")
        value = load_elements(offset(task.pointer(window.buffer), at), dtypes[0], 1, dtypes[1], constant=window.constant)[0]
        found.append((vector, index, select(exists, value, 0)))
    for vector, index, value in found:
        target = offset(offset(task.shared, vector.offset), index * vector.bytes)
        if_(index < align(vector.length, 8), functools.partial(store, value, target))
