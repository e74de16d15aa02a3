"""Tiles of products on tensor cores, from the model of the chip in `codegen/gpu/engines/mma/cost.py`."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.mma.column_groups import column_groups
from kitsune_mlir.codegen.gpu.engines.mma.cost import CHUNK_BYTES, CLUSTERS, LINE_BYTES, Reading, Work, choose_way
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.codegen.gpu.interface.tiny_products import is_tiny
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, plain_loops, shape_of
from kitsune_mlir.dialects.contraction import matrix_extents, operand_bytes
from kitsune_mlir.dialects.products import is_projected_product
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.machine.target import Target

__all__ = ["ROWS", "Layout", "mma_tile", "offer"]

ROWS, COLUMNS = (128, 64), (256, 128, 64, 32)
BETWEEN, FEW_WAVES = (224, 192, 160, 112, 96), 4
"""Widths that fill the last wave better, for products of so few waves (of 128 x 256) that this counts."""
EXACT_PRODUCTS = 3
MOST_EXACT_COLUMNS = 128
"""Wider tiles of f32 leave room for two stages only."""
NARROW = (48,)
"""Widths for up to 64 rows: more blocks ask for weights."""
SHARE_UNIT = 16
"""Widths are multiples of this: the narrowest slice of a result that TMA stores."""
NARROWER = 0.01
"""By which part tiles of half the size have to be faster."""
NEAR_BYTES = 8 << 20
"""Operands of together as many bytes are read again from L2 at full speed: then tiles of 64 rows pay, which read more."""


PANEL = 64
"""Columns that operands of 16 bits which run across the sum are loaded by."""


class Layout(NamedTuple):
    """How an operand lies in memory.

    Attributes:
        across: neighbours in memory are not neighbours along the sum.
        straddling: rows in memory do not begin with a line of L2.
    """

    across: bool = False
    straddling: bool = False

    def reading(self, size: int) -> Reading:
        """Of a tile that has `size` rows, or columns, of it."""
        return Reading(-(-size // PANEL) * PANEL if self.across else size, self.straddling)


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """A stage of one product, or of several of one input, whose factors come from memory and whose columns are tiled."""
    products = candidate.products
    if not any(map(is_projected_product, products)):
        return Decline(name, "it holds no product of matrices")
    if all(map(is_tiny, products)):
        return Decline(name, "its matrices are too small for tensor cores")
    if (reason := candidate.several_passes or candidate.after_products) is not None:
        return Decline(name, reason)
    dims, product = candidate.space.dims, products[0]
    roles = candidate.roles(product)
    sizes = [d.size for d in dims]
    terms, count = matrix_extents(product)[2], len(candidate.contractions)
    layouts = _layouts(product) if candidate.alone and count == 1 else None
    tile = list(candidate.tile or mma_tile(sizes, roles, terms, machine, operand_bytes(product), count, layouts))
    groups = column_groups(roles, [-(-size // each) for size, each in zip(sizes, tile, strict=True)], machine)
    return Offer(name, tuple(tile), column_groups=groups)


def mma_tile(
    sizes: Sequence[int],
    kinds: Sequence[str],
    terms: int,
    target: Target,
    element_bytes: int = 2,
    products: int = 1,
    layouts: tuple[Layout, Layout] | None = None,
) -> list[int]:
    """The tile of each shared dimension of a product that takes the least time.

    Args:
        sizes: of the shared dimensions.
        kinds: "m" (rows), "n" (columns) or "batch" of each. Only the last "m" and the last "n" are tiled.
        terms: of the sum.
        element_bytes: of the operands: f32 ones are multiplied by three products of tf32 numbers.
        products: of one input that share the tile, each with its own columns.
        layouts: of both operands, if the kernel does nothing else: then blocks of a cluster may have operands in common.
    """
    return list(_best_tile(tuple(sizes), tuple(kinds), terms, target.workers, element_bytes, products, layouts))


@functools.cache
def _best_tile(
    sizes: tuple[int, ...],
    kinds: tuple[str, ...],
    terms: int,
    workers: int,
    number_bytes: int,
    products: int,
    layouts: tuple[Layout, Layout] | None,
) -> tuple[int, ...]:
    exact = number_bytes > 2
    places = {kind: last for last, kind in enumerate(kinds) if kind != "batch"}
    row, col = (sizes[places[kind]] if kind in places else 1 for kind in ("m", "n"))
    others = math.prod(size for place, size in enumerate(sizes) if place not in places.values())
    chunks = -(-terms * number_bytes // CHUNK_BYTES)

    def time(rows: int, cols: int) -> float:
        work = Work(
            others * -(-row // rows) * -(-col // cols),
            chunks,
            -(-min(rows, row) // 64) * 64,
            products * _up(min(cols, col)),
            EXACT_PRODUCTS if exact else 1,
            number_bytes,
            number_bytes,
            others * (row + products * col) * terms * number_bytes,
            row % min(rows, row) != 0 or col % min(cols, col) != 0,
        )
        ways = [work] if exact or layouts is None else _ways(work, layouts, rows, cols, (-(-row // rows), -(-col // cols)))
        # Of about equal ones the larger, which read less.
        halvings = math.log2(ROWS[0] * COLUMNS[0] / (rows * cols)) if products == 1 else 0
        return choose_way(ways, workers)[0] * (1 + NARROWER * halvings)

    near = (row + col) * terms * number_bytes <= NEAR_BYTES
    # Several products need the rows of both warpgroups.
    heights = ROWS if (near or row <= 64) and products == 1 else ROWS[:1]
    # Of equal ones the first: larger tiles read less.
    most = (MOST_EXACT_COLUMNS if exact else COLUMNS[0]) // products
    shares = _shares(col, -(-row // ROWS[0]) * others, workers) if products > 1 else []
    few = -(-row // ROWS[0]) * -(-col // COLUMNS[0]) * others <= FEW_WAVES * workers
    between = (*BETWEEN, *(NARROW if row <= ROWS[1] else ())) if few and products == 1 else ()
    if layouts is not None and any(layout.straddling for layout in layouts) and not exact:
        heights, shares = (*heights, *_even(row, ROWS[0], ROWS[1])), [*shares, *_even(col, COLUMNS[0], 0)]
    widths = [cols for cols in (*COLUMNS, *between, *shares) if cols <= most]
    rows, cols = min(((rows, cols) for rows in heights for cols in widths), key=lambda tile: time(*tile))
    tile = [1] * len(sizes)
    for kind, most in (("m", rows), ("n", cols)):
        if kind in places:
            tile[places[kind]] = min(sizes[places[kind]], most)
    return tuple(tile)


def _shares(cols: int, rows: int, workers: int) -> list[int]:
    """Widths that give every multiprocessor one tile, or two or three, where there are `rows` tiles of each column."""
    found = []
    for waves in (1, 2, 3):
        across = workers * waves // rows
        if across:
            found.append(-(-cols // (across * SHARE_UNIT)) * SHARE_UNIT)
    return found


def _ways(work: Work, layouts: tuple[Layout, Layout], rows: int, cols: int, grid: tuple[int, int]) -> Iterator[Work]:
    """The work by blocks of their own, and by clusters that have columns, or rows, of tiles in common."""
    a, b = layouts[0].reading(work.rows).lines, layouts[1].reading(cols).lines
    yield dataclasses.replace(work, lines=a + b)
    for blocks in CLUSTERS:
        if grid[0] % blocks == 0:
            yield dataclasses.replace(work, lines=a + b // blocks, cluster=blocks)
        if grid[1] % blocks == 0:
            yield dataclasses.replace(work, lines=a // blocks + b, cluster=blocks)


def _even(size: int, most: int, above: int) -> list[int]:
    """Sizes of tiles, above `above`, which are about equal and as many as clusters divide."""
    counts = {-(-size // (most * blocks)) * blocks for blocks in (1, *CLUSTERS)}
    return [tile for count in sorted(counts) if above < (tile := -(-size // (8 * count)) * 8) <= most]


def _layouts(product: ir.Operation) -> tuple[Layout, Layout]:
    """Of the operands with the rows and with the columns."""

    def layout(number: int) -> Layout:
        value, last = product.operands[number], plain_loops(affine_maps(product)[number])[-1]
        across = last is not None and iterator_kinds(product)[last] == "parallel"
        return Layout(across, shape_of(value)[-1] * element_bytes(value.type) % LINE_BYTES != 0)

    return layout(0), layout(1)


def _up(cols: int) -> int:
    return -(-cols // 8) * 8
