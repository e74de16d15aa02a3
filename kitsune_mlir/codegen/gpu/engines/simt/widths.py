"""How wide vectors should be: found by emitting the code once for each width and counting its accesses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.dialects.sizes import element_bytes

__all__ = ["best_width", "widest_vector"]

GAPS = 2
"""Stores of a vector up to which a 32-byte sector is not sent to L2 more often than it takes to issue them."""

WIDEST = 16
"""Bytes of the widest access."""

MOST_BYTES = 64
"""Of a tensor that a thread has side by side: what a warp's first loads leave of 32 lines is not in the cache for later ones.
(Comparisons of 33 M pairs of i64, 128 bytes of each a thread, took 170 us on an H200, of i32 73.)"""

CLOSE = 0.9
"""A wider vector must bring the accesses below this share of the narrower one's."""


def widest_vector(sizes: Sequence[int]) -> int:
    """Elements of the widest vector, of tensors with elements of so many bytes."""
    return min(WIDEST // min(sizes), MOST_BYTES // max(sizes))


def best_width(widths: Sequence[int], trial: Callable[[int], Sequence[Access]], graph: Graph) -> tuple[int, Sequence[Access]]:
    """The width with the fewest memory instructions a point, and its accesses; `trial` emits a vector of some width."""
    windows = (*graph.task.loads, *graph.task.stores)
    most = widest_vector([element_bytes(window.buffer.element) for window in windows])
    best: tuple[int, Sequence[Access]] | None = None
    cost = 0.0
    for width in widths:
        if width > max(1, most):
            break
        accesses = trial(width)
        each = sum(map(_slots, accesses)) / width
        if best is None or each < CLOSE * cost:
            best, cost = (width, accesses), each
    assert best is not None
    return best


def _slots(access: Access) -> float:
    """Instructions of an access; of stores that leave gaps between threads, which later ones fill, as many as L2 sees."""
    if not access.writes or access.shared:
        return access.instructions
    return access.instructions * max(1, access.instructions / GAPS)
