"""How a product's operands come in: TMA's views of them, as far as it has any, and what the warpgroups have of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.match import Pattern
from kitsune_mlir.codegen.gpu.contraction.tf32x3 import TURNED
from kitsune_mlir.codegen.gpu.engines.mma.cost import HELD_BYTES
from kitsune_mlir.codegen.gpu.engines.mma.geometry import Geometry, up
from kitsune_mlir.codegen.gpu.engines.mma.k_ranges import Range
from kitsune_mlir.codegen.gpu.engines.mma.operand import Box, Operand, Sum, box_of
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["Views", "tensor_bytes", "views_of"]


@dataclasses.dataclass(frozen=True)
class Views:
    """The operands of a tile.

    Attributes:
        geometry: the warpgroups' shares.
        a, weights: A (its first range), and each product's B.
        boxes, why: as `MmaPlan.boxes` and `MmaPlan.why_copied`.
        once: every tile has weights of its own, which come from memory: L2 need not keep them, and the ring holds what memory
            takes to answer.
    """

    geometry: Geometry
    a: Operand
    weights: tuple[Operand, ...]
    boxes: tuple[Box | None, ...] | None
    why: str
    once: bool

    def stage_tiles(self, sum: Sum) -> tuple[SharedTile, SharedTile]:
        """A and B of a stage."""
        return _stage_tile(self.a, self.geometry.a_rows, sum), _stage_tile(self.weights[0], self.geometry.b_rows, sum)


def views_of(pattern: Pattern, windows: Sequence[Window], ranges: Sequence[Range], sum: Sum, dtype: str, exact: bool) -> Views:
    """The views of A and of each product's B, which are these windows.

    Exact f32 operands that run across the sum are loaded by TMA and turned by threads; where TMA cannot load one of them,
    threads copy all.

    Args:
        dtype: of the operands; "tf32" where f32 ones are rounded.

    Raises:
        MatchFailure: several products whose columns cannot lie behind each other.
    """
    product, count = pattern.product, len(pattern.products)
    turning = exact and (count == 1 or up(product.cols, 8) % TURNED == 0)

    def operand(window: Window, side: str, size: int, turning: bool) -> Operand:
        """Tensor cores read only 16-bit elements across the sum."""
        across = window.stride(side) == 1 and window.stride(sum.inner[0]) != 1
        return Operand(window, side, size, across and window.bytes == 2, across and turning)

    def views(turning: bool) -> Views:
        a = operand(windows[0], ROW, product.rows, turning)
        weights = tuple(operand(window, COL, product.cols, turning) for window in windows[1:])
        held = TURNED if weights[0].turned else 8
        geometry = Geometry.of(product.rows, product.cols, weights[0].transposed, count, held)
        once = tensor_bytes(weights) > HELD_BYTES and min(_windows(one.window) for one in weights) >= pattern.task.tiles
        boxes, why = _boxes(a, ranges, weights, sum, geometry, dtype, exact, once)
        return Views(geometry, a, weights, boxes, why, once)

    found = views(turning)
    return views(False) if found.boxes is None and turning else found


def tensor_bytes(operands: Sequence[Operand | Range]) -> int:
    """Bytes of the tensors that operands are parts of."""
    return sum(operand.window.bytes * math.prod(dim.extent for dim in operand.window.dims) for operand in operands)


def _boxes(
    a: Operand,
    ranges: Sequence[Range],
    weights: Sequence[Operand],
    sum: Sum,
    geometry: Geometry,
    dtype: str,
    exact: bool,
    once: bool,
) -> tuple[tuple[Box | None, ...] | None, str]:
    """TMA's views of the operands (see `MmaPlan.boxes`), and why threads copy what they have to."""

    def view(part: Range) -> Box | str:
        if part.gather is not None:
            return "gathered rows"
        alone = dataclasses.replace(sum, inner=(sum.inner[0], part.length), ranges=())
        return box_of(dataclasses.replace(a, window=part.window), alone, geometry.a_rows, dtype)

    rows = [view(part) for part in ranges] or [box_of(a, sum, geometry.a_rows, dtype)]
    columns = [box_of(one, sum, geometry.b_rows // len(weights), dtype, once) for one in weights]
    odd = next((start for start, _ in sum.ranges if start * sum.element_bytes % 16), 0)
    if odd and not all(one.transposed or one.turned for one in weights):
        columns.append(f"a range begins at term {odd}, and TMA reads memory from multiples of 16 bytes")
    why = next((box for box in (*columns, *rows) if isinstance(box, str)), "")
    # Where f32 operands are halved, the warps that would copy beside TMA do that.
    whole = not ranges or exact or any(isinstance(box, str) for box in columns)
    if why and whole:
        return None, why
    return tuple(None if isinstance(box, str) else box for box in (*rows, *columns)), why


def _windows(window: Window) -> int:
    """How many windows of this size a buffer has; if there are as many tiles, each has its own."""
    return math.prod(-(-dim.extent // dim.size) for dim in window.dims)


def _stage_tile(operand: Operand, rows: int, sum: Sum) -> SharedTile:
    size = sum.element_bytes
    return SharedTile(sum.chunk, rows, size) if operand.transposed else SharedTile(rows, sum.chunk, size)
