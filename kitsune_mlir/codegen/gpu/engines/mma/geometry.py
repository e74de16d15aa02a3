"""How two warpgroups share a tile of a product."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.dialects.match_failure import MatchFailure

__all__ = ["Geometry", "up"]


def up(number: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-number // unit) * unit


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How two warpgroups share a tile: 64 rows each, or, up to 64 rows, half of the columns each.

    Attributes:
        rows, cols: of the tile.
        by_rows: the warpgroups have different rows (else columns).
        groups: warpgroups with work of their own; with 1 the second repeats what the first does, and stores nothing.
        a_rows, b_rows: rows and columns that a stage holds.
        part: columns from one warpgroup's first to the other's; 0 if they have the same.
        n: columns that one warpgroup multiplies, of all products of a tile.
        products: of one A, whose columns lie behind each other.
    """

    rows: int
    cols: int
    by_rows: bool
    groups: int
    a_rows: int
    b_rows: int
    part: int
    n: int
    products: int = 1

    @staticmethod
    def of(rows: int, cols: int, b_transposed: bool, products: int = 1, held: int = 8) -> Geometry:
        """Share a tile of up to 128 x 256.

        Args:
            held: what the columns that a stage holds are a multiple of.

        Raises:
            MatchFailure: several products whose columns can not lie behind each other.
        """
        unit = 64 if b_transposed else 8
        if products > 1:
            if rows <= 64 or b_transposed:
                raise MatchFailure(f"{products} products of {rows} rows; several need more than 64, and memory along the sum")
            if up(cols, 8) % held:
                raise MatchFailure(f"{products} products of {cols} columns that are held by {held}")
            n = products * up(cols, 8)
            return Geometry(rows, cols, True, 2, 128, n, 0, n, products)
        if rows > 64:
            return Geometry(rows, cols, True, 2, 128, up(cols, max(unit, held)), 0, up(cols, 8))
        part = up(-(-cols // 2), unit)
        if cols <= part:
            return Geometry(rows, cols, False, 1, 64, up(cols, max(unit, held)), 0, up(cols, 8))
        return Geometry(rows, cols, False, 2, 64, up(2 * part, held), part, part)

    @property
    def covered_rows(self) -> int:
        """Rows that are computed: what is beyond `rows` is not stored."""
        return self.a_rows

    @property
    def covered_cols(self) -> int:
        """Columns of each product that are computed."""
        return self.part * (self.groups - 1) + self.width

    @property
    def partial_bytes(self) -> int:
        """Accumulators of a warpgroup."""
        return 64 * self.n * 4

    @property
    def width(self) -> int:
        """Columns of one product that a warpgroup has."""
        return self.n // self.products
