"""Rows added to rows of a buffer that indices name: what is added, and by how wide reductions."""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.window import BASE_ALIGN
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS
from kitsune_mlir.dialects.tile_records import Buffer, Load

__all__ = ["Addition", "SIZES", "WIDTHS", "crosses", "widest"]

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8}
"""Bytes of an element that can be added."""


WIDTHS = {"bf16": (8, 4, 2), "f16": (8, 4, 2), "f32": (4, 2, 1), "f64": (1,), "i32": (1,), "i64": (1,)}
"""Elements that one reduction adds, widest first."""


LEAST_CROSSING = 8
"""Columns from which on rows that no vector divides are added by vectors nevertheless."""


def crosses(kind: str, dtype: str, columns: int) -> bool:
    """Whether rows are added by vectors that are aligned in the result, and begin and end anywhere in a row."""
    return kind in ADDITIONS and dtype == "f32" and columns >= LEAST_CROSSING and columns % WIDTHS[dtype][0] != 0


@dataclasses.dataclass(frozen=True)
class Addition:
    """A `kitsune.atomic_scatter` that adds rows which the task computes.

    Attributes:
        indices: what is loaded.
        first: rows of the tile before it are left out.
        destination: the result that is added to.
        columns: elements of a row.
        width: elements of one reduction.
    """

    indices: Load
    first: ir.Value
    destination: Buffer
    columns: int
    width: int


def widest(dtype: str, columns: int, offsets: list[int]) -> int | None:
    """Elements of the widest reduction that fits every row: rows and starts are multiples of it; None if there is none."""
    if dtype not in WIDTHS:
        return None
    align = math.gcd(BASE_ALIGN, columns * SIZES[dtype], *offsets)
    return next((width for width in WIDTHS[dtype] if align % (width * SIZES[dtype]) == 0), None)
