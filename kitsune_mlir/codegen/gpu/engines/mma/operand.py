"""The operands of a product: how A and B lie in global memory, in what order the sum runs, and TMA's view of them."""

from __future__ import annotations

import dataclasses
import itertools

from kitsune_mlir.codegen.gpu.contraction.match import Product
from kitsune_mlir.codegen.gpu.emit.memory import Cache
from kitsune_mlir.codegen.gpu.interface.operands import cache_of
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window, tensor_map_of
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap

__all__ = ["CHUNK_BYTES", "Box", "Operand", "Sum", "box_of", "merge_sums", "choose_sum"]

CHUNK_BYTES = 128
"""Bytes along the sum that one stage of the ring holds: the width of the swizzle."""
WITHIN_LINES = 128
"""Bytes that L2 brings from DRAM at a time for rows across the sum that begin within its lines. Each is in two lines, and with
256 bytes the neighbours of both came, too (65,536 rows on an H200: 264 x 1000 108.2 and 92.8 us, 1544 x 1544 749 and 669)."""
STEP_BYTES = 32
"""Bytes along the sum of one instruction."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """The order of a sum: an innermost loop in chunks, and loops around it.

    Attributes:
        inner: side and length of the loop that is walked in chunks.
        outer: the other loops, outermost first.
        element_bytes: of the operands.
        ranges: first term and length of each range of the inner loop that A has a tensor for (`mma.k_ranges`); none: it is one.
    """

    inner: tuple[str, int]
    outer: tuple[tuple[str, int], ...] = ()
    element_bytes: int = 2
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return CHUNK_BYTES // self.element_bytes

    @property
    def inner_chunks(self) -> int:
        """Chunks of one run of the inner loop; each is of one range."""
        return sum(-(-length // self.chunk) for _, length in self.ranges or ((0, self.inner[1]),))

    @property
    def firsts(self) -> tuple[int, ...]:
        """Number of the first chunk of each range."""
        counts = [-(-length // self.chunk) for _, length in self.ranges]
        return tuple(itertools.accumulate(counts[:-1], initial=0))

    @property
    def chunks(self) -> int:
        """Chunks of the whole sum."""
        count = self.inner_chunks
        for _, length in self.outer:
            count *= length
        return count

    @property
    def steps(self) -> int:
        """Instructions a chunk; those that would only add zeros are left out."""
        elements = STEP_BYTES // self.element_bytes
        longest = max((length for _, length in self.ranges), default=self.inner[1])
        return min(self.chunk, longest + elements - 1) // elements

    @property
    def length(self) -> int:
        """Number of terms."""
        total = self.inner[1]
        for _, length in self.outer:
            total *= length
        return total


@dataclasses.dataclass(frozen=True)
class Operand:
    """A or B.

    Attributes:
        window: where it is; dimensions that the sum walks together are merged.
        side: "row" for A, "col" for B.
        size: elements of the tile along `side`.
        transposed: neighbours along `side`, not along the sum, are neighbours in memory.
        turned: so are those of f32, which tensor cores read along the sum only: threads turn what TMA has loaded
            (`contraction.tf32x3.turn_parts`).
    """

    window: Window
    side: str
    size: int
    transposed: bool
    turned: bool = False


@dataclasses.dataclass(frozen=True)
class Box:
    """An operand that TMA can load, and how.

    Attributes:
        window: the operand's window; static starts along the inner loop of the sum have become part of the buffer's offset.
        map: box = one panel of a stage: `rows` x one chunk, or one chunk x 128 bytes of a transposed or turned operand.
        dims: the map's dimensions, as those of the window.
        panels: of a stage.
        cache: how L2 should treat it.
        together: blocks of a cluster that load it together (`mma.multicast`), each some of the panels ...
        by_rows: ... or, as `map` says then, some rows of each.
    """

    window: Window
    map: TensorMap
    dims: tuple[Dim, ...]
    panels: int
    cache: Cache
    together: int = 1
    by_rows: bool = False

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.map.box_bytes * (self.together if self.by_rows else 1)

    @property
    def bytes(self) -> int:
        """Bytes of a stage."""
        return self.panels * self.panel_bytes


def merge_sums(product: Product, a: Window, b: Window) -> tuple[Window, Window, list[tuple[str, int]]]:
    """Join neighbouring loops of the sum that both operands walk without a gap; the windows and the loops that are left."""
    loops = [(f"k{loop}", length) for loop, length in product.sums]
    merged = True
    while merged:
        merged = False
        for outer, inner in ((x, y) for x in loops for y in loops if x != y):
            pairs = [_joined(window, outer[0], inner[0]) for window in (a, b)]
            if pairs[0] is not None and pairs[1] is not None:
                a, b = pairs[0], pairs[1]
                loops = [loop for loop in loops if loop != outer]
                loops[loops.index(inner)] = (inner[0], outer[1] * inner[1])
                merged = True
                break
    return a, b, loops


def _joined(window: Window, outer: str, inner: str) -> Window | None:
    first = next(dim for dim in window.dims if dim.side == outer)
    second = next(dim for dim in window.dims if dim.side == inner)
    whole = second.size == second.extent and second.start == 0 and first.stride == second.stride * second.extent
    if not whole or not isinstance(first.start, int):
        return None
    joined = Dim(inner, first.size * second.size, first.extent * second.extent, second.stride, first.start * second.extent)
    dims = [joined if dim is second else dim for dim in window.dims if dim is not first]
    return Window(window.buffer, tuple(dims))


def choose_sum(loops: list[tuple[str, int]], a: Window, b: Window) -> Sum:
    """Chunks run along a loop that is contiguous in memory, of both operands if there is one; else along the longest."""
    if not loops:
        return Sum(("k", 1), (), a.bytes)
    inner = max(loops, key=lambda loop: (sum(window.stride(loop[0]) == 1 for window in (a, b)), loop[1]))
    return Sum(inner, tuple(loop for loop in loops if loop != inner), a.bytes)


def box_of(operand: Operand, sum: Sum, rows: int, dtype: str, once: bool = False) -> Box | str:
    """TMA's view of an operand, or the reason why there is none.

    Args:
        dtype: of the map: "tf32" rounds f32 elements to what tensor cores multiply.
        rows: rows of a stage's tile along the operand's side (a multiple of 8, of 64 if transposed, of 32 if turned).
        once: it comes from memory, and no other tile reads it.
    """
    window, inner = operand.window, sum.inner[0]
    moved = _clip(window, inner, sum.chunk)
    if isinstance(moved, str):
        return moved
    window = moved
    across = CHUNK_BYTES // window.bytes if operand.transposed or operand.turned else 0
    starts = (window.buffer.offset, *(dim.stride * window.bytes for dim in window.dims if dim.stride != 1))
    promotion = WITHIN_LINES if across and any(start % WITHIN_LINES for start in starts) else 2 * WITHIN_LINES
    box = {inner: sum.chunk, operand.side: across} if across else {operand.side: rows, inner: sum.chunk}
    found = tensor_map_of(window, box, promotion=promotion, dtype=dtype)
    if isinstance(found, str):
        return found
    last = found[1][-1]
    # Tiles along neighbours in memory begin at multiples of their size, the last one where the tensor's end wants it. (An H200
    # takes a tensor copy that begins at 194 bytes of a row for an illegal instruction: rows of one term, 129 columns of f16.)
    if last.size != last.extent and (begin := (last.extent - last.size) * window.bytes) % 16:
        return f"the last tile begins at {begin} bytes of a row, no multiple of 16"
    cache = Cache.STREAM if once and window.constant else cache_of(window.buffer)
    return Box(window, *found, rows // across if across else 1, cache)


def _dim(window: Window, side: str) -> Dim:
    """The window's dimension along a side; one element where it has none (TMA fills the rest of the box with zeros)."""
    return next((dim for dim in window.dims if dim.side == side), Dim(side, 1, 1, 1, 0))


def _clip(window: Window, inner: str, chunk: int) -> Window | str:
    """The window with the inner loop's part of the tensor as the whole tensor, so that TMA fills with zeros beyond it."""
    dim = _dim(window, inner)
    if dim.size == dim.extent or dim.size % chunk == 0:
        return window
    if not isinstance(dim.start, int):
        return f"a part of {dim.size} along the sum starts anywhere"
    start = window.buffer.offset + dim.start * dim.stride * window.bytes
    dims = tuple(Dim(d.side, d.size, d.size, d.stride, 0) if d is dim else d for d in window.dims)
    return Window(dataclasses.replace(window.buffer, offset=start), dims)
