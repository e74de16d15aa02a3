"""What a tile program touches of its caller's memory: ranges of bytes, read or written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from .tile_accesses import read_accesses
from .tile_regions import Access, runs

__all__ = ["Touched", "touched_ranges"]

MOST_RANGES = 8
"""Of one argument; more are one range from the first to the last byte."""
MOST_RUNS = 1 << 16


@dataclass(frozen=True)
class Touched:
    """Bytes [low, high) of argument number `argument` of a tile program: whether their values before it are used, and
    whether it may change them."""

    argument: int
    low: int
    high: int
    reads: bool
    writes: bool


def touched_ranges(function: ir.Operation) -> list[Touched]:
    """The ranges of a `func.func` with `kitsune.program`, in the order of its arguments; those of one argument do not overlap.

    What is read or written by index may be anywhere in its memory. A result that the program writes and reads again is
    written only, unless it lies in an argument's memory.

    Raises:
        MalformedProgram: as `read_accesses`.
    """
    program = read_accesses(function)
    declared = program.declared
    found: dict[int, list[tuple[int, int, bool, bool]]] = {}
    for task in program.tasks:
        for access in (*task.fetches, *task.accesses):
            buffer = access.region.buffer
            if buffer.role not in ("input", "result"):
                continue
            old = buffer.role == "input" or declared.holds_values(buffer)
            reads = old and (access.kind == "read" or (access.kind == "atomic" and _combines(access.op)))
            writes = access.kind != "read"
            if reads or writes:
                ranges = found.setdefault(buffer.argument, [])
                ranges += [(low, high, reads, writes) for low, high in _ranges(access)]
    for wait in (wait for task in program.tasks for wait in task.row_waits):
        indices = wait.named.indices
        found.setdefault(indices.argument, []).append((0, indices.bytes, True, False))
    return [Touched(n, *each) for n in sorted(found) for each in _merged(found[n])]


def _combines(op: ir.Operation) -> bool:
    return op.name != "kitsune.atomic_scatter" or ir.StringAttr(op.attributes["kind"]).value != "assign"


def _ranges(access: Access) -> list[tuple[int, int]]:
    """The bytes of an access, of all tiles."""
    region = access.region
    low, high = region.span
    apart = not region.exact or region.dims is None
    if apart or (low == region.buffer.offset and high - low == region.buffer.bytes):
        return [(low, high)]
    inside, length = runs(region, region.sizes)
    starts = np.unique(region.start.ravel())
    if len(inside) * len(starts) > MOST_RUNS:
        return [(low, high)]
    begins = np.unique((starts[:, None] + inside).ravel())
    breaks = np.flatnonzero(np.diff(begins) > length)
    if len(breaks) >= MOST_RANGES:
        return [(low, high)]
    edges = [0, *(int(b) + 1 for b in breaks), len(begins)]
    return [(int(begins[a]), int(begins[b - 1]) + length) for a, b in zip(edges, edges[1:], strict=False)]


def _merged(ranges: list[tuple[int, int, bool, bool]]) -> list[tuple[int, int, bool, bool]]:
    """Disjoint ranges, each with all that is done to its bytes; one of all where there were many."""
    edges = sorted({edge for low, high, *_ in ranges for edge in (low, high)})
    if len(edges) > 2 * MOST_RANGES:
        return [(edges[0], edges[-1], any(r for *_, r, _ in ranges), any(w for *_, w in ranges))]
    found: list[tuple[int, int, bool, bool]] = []
    for low, high in zip(edges, edges[1:], strict=False):
        over = [(reads, writes) for a, b, reads, writes in ranges if a <= low and high <= b]
        if not over:
            continue
        reads, writes = any(r for r, _ in over), any(w for _, w in over)
        if found and found[-1][1:] == (low, reads, writes):
            found[-1] = (found[-1][0], high, reads, writes)
        else:
            found.append((low, high, reads, writes))
    return found
