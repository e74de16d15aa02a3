"""Tiles of memory-bound stages: maps, reductions over rows, and maps that permute dimensions.

The model is of one multiprocessor's share of the work. A tile takes `rates.SIMT_TILE`, and more for each reduction, from the
start of its loads to the end of its stores; as many tiles are under way as registers allow; and memory gives its full rate
only to threads that ask for little at a time. Its rates are `rates.SIMT_*`, fitted to times on an H200.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.offer import Candidate
from kitsune_mlir.codegen.tile_sizes import LINE, contiguous, even, fit, spread
from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, shape_of, terms_of
from kitsune_mlir.dialects.iteration import Space, inner_elements
from kitsune_mlir.dialects.joined import panels_of
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target

__all__ = ["Figures", "figures_of", "memory_tile", "row_tile", "seconds", "tile_of"]

THREADS = 256
VECTOR_BYTES = 16
REGISTER_FILE = 65536
MOST_BLOCKS = 8
ELEMENTS = 32
"""Elements that a thread keeps at a time."""
MANY_LEVELS = 4
"""From so many reductions one after the other, a thread keeps half as many elements, and tiles are that much smaller."""
CROSSED_BYTES = 256
"""Bytes that a tile of a permuting map has along the last dimension of each tensor."""
FEW_CROSSED_BYTES = 128
"""The same where larger tiles would leave multiprocessors idle: a line of memory."""
CROSSED_TILES = 8
"""Tiles for each worker that a permuting map has at least before they become larger."""
SHARED_TILES = 1
"""The same where other stages wait for its tiles, and a block with them has a multiprocessor for itself."""
CROSSED_POINTS = 4096
"""Points of such a tile where its runs alone would leave a thread an element or two."""
TURNED_POINTS, TURNED_TILES = 16384, 2
"""The same where other stages wait for its tiles, as long as each worker has so many: all of a tile goes through shared memory
between two barriers, so that a worker's tiles take a trip to memory each, one after the other."""
SHARED_TILE = 8192
"""Points of a tile where tiles hand over to other stages: each then costs posts and waits."""
LOOP_TILE = 8192
"""Points of a tile of products that threads do: 32 a thread of a block of 256, enough loads in flight for a multiprocessor."""
COLUMN_BYTES = 512
"""Bytes that a tile of a reduction over columns reads side by side: a vector for each lane of a warp."""
UNIT = 8
"""Tiles have multiples of this along the last dimension."""
LEAST_POINTS = 64
"""Of a tile, where there are few: a tile of fewer takes as long, and is one more to wait for."""
REUSED = 4
"""Rows of tiles that read weights as long as a row are this many times more, so that weights are read that much less often."""


@dataclass(frozen=True)
class Figures:
    """A stage in figures.

    Attributes:
        sizes: of the shared dimensions.
        inner: points of the widest op for each point of the shared dimensions (a row's length; of a joined tensor that of a
            panel, all of which a thread makes side by side).
        bytes: read and written for each point.
        narrowest: bytes of the smallest element.
        levels: ops that reduce.
        crossed: the shared dimensions from the outermost to that which neighbours in memory run along, of the result and of an
            input, where the last ones differ.
        columns: it reduces or moves along dimensions whose neighbours lie apart in memory: neighbours run along the last
            shared one.
        weights: it reads tensors as long as a row, the same for all rows.
        alone: no other stage waits for its tiles.
        running: one of many reductions is to the maximum, of bf16: as in a softmax, whose sums follow it.
        panels: of a joined tensor, of which `inner` is one.
    """

    sizes: tuple[int, ...]
    inner: int
    bytes: float
    narrowest: int
    levels: int = 0
    crossed: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    weights: bool = False
    alone: bool = True
    columns: bool = False
    running: bool = False
    panels: int = 1

    @property
    def points(self) -> int:
        return math.prod(self.sizes) * self.inner


def seconds(figures: Figures, points: int, target: Target) -> float:
    """Estimated time of a stage with tiles of `points`."""
    tiles = -(-figures.points // points)
    width = VECTOR_BYTES // figures.narrowest
    each = max(width, points / THREADS)  # points of a thread
    vectors = each / width
    held = min(each, ELEMENTS) if figures.levels else min(each, 2 * width)
    blocks = max(1, min(MOST_BLOCKS, int(REGISTER_FILE / THREADS / (32 + held * (1 if figures.levels else 0.5)))))
    loss = 0.0 if figures.levels else rates.SIMT_DEPTH_LOSS * math.log2(max(1, vectors))
    streaming = figures.points * figures.bytes / (target.dram_rate * (1 - loss))
    rounds = tiles / (target.workers * blocks)
    return max(streaming, rounds * (rates.SIMT_TILE + figures.levels * rates.SIMT_LEVEL))


def row_tile(figures: Figures, target: Target) -> int:
    """Points of a tile: the candidate with the least estimated time, the largest of equals."""
    least = max(figures.inner, THREADS * VECTOR_BYTES // figures.narrowest)
    candidates = [least << doubling for doubling in range(6) if least << doubling <= max(least, THREADS * ELEMENTS)]
    if not figures.alone:
        return max(candidates[0], SHARED_TILE)
    if figures.levels >= MANY_LEVELS:
        return max(figures.inner, THREADS * ELEMENTS // (1 if figures.running else 2))
    best = min(reversed(candidates), key=lambda points: seconds(figures, points, target))
    return best * REUSED if figures.weights and figures.levels and figures.inner <= SHARED_TILE else best


def tile_of(figures: Figures, target: Target) -> list[int]:
    """Tile sizes of the shared dimensions."""
    sizes = list(figures.sizes)
    if figures.crossed is not None:
        return _crossed_tile(figures, figures.crossed, target)
    if figures.columns:
        return _column_tile(figures, target)
    points = row_tile(figures, target)
    tile = fit(sizes, points // figures.inner)
    least = [1] * len(sizes)
    if len(sizes) > 1 or figures.inner == 1:
        least[-1] = min(tile[-1], LINE)
    elif figures.inner < THREADS:
        least[-1] = min(tile[-1], max(1, LEAST_POINTS // figures.inner))
    spaced = spread(sizes, tile, 2 * target.workers, least)
    if len(sizes) == 1 and figures.inner > 1:
        wave = 1 << max(0, -(-sizes[0] // target.workers) - 1).bit_length()
        if not figures.alone and spaced[0] < wave <= SHARED_TILE // (figures.inner * figures.panels):
            # One wave: a block has its multiprocessor for itself there, and its second tile would come after its first
            # (1,024 rows of 768 between products: 1.9 us less on an H200).
            return [min(sizes[0], wave)]
        # Threads have a power of two of rows at a time: 81 rows of 100 take a second turn that 64 do not (0.85 and 0.96).
        return [min(sizes[0], 1 << round(math.log2(even(sizes, spaced, 1)[0])))]
    # Where each of them has many points (the windows of a pooled plane), eight would be far more than what was chosen.
    return even(sizes, spaced, min(UNIT, max(1, points // figures.inner)))


def _crossed_tile(figures: Figures, crossed: tuple[tuple[int, ...], ...], target: Target) -> list[int]:
    """Runs of `CROSSED_BYTES` in the memory of the result and of the input: short dimensions with those outside of them."""
    sizes = figures.sizes

    def tiles(dim: int, rows: int) -> int:
        return math.prod(-(-s // (rows if d == dim else t)) for d, (s, t) in enumerate(zip(sizes, tile, strict=True)))

    def with_runs(run: int) -> list[int]:
        found = [1] * len(sizes)
        for order in crossed:
            dim = order[-1]
            equal = -(-sizes[dim] // -(-sizes[dim] // run))
            found[dim] = max(found[dim], min(sizes[dim], -(-equal // UNIT) * UNIT))
        return found

    def longest(tile: list[int]) -> int:
        """Points of a multiprocessor's tiles, where it has most."""
        return math.prod(tile) * math.ceil(math.prod(-(-s // t) for s, t in zip(sizes, tile, strict=True)) / target.workers)

    def grow(points: int, least: int, dims: Sequence[int]) -> None:
        """Up to so many points, while each worker has `least` tiles."""
        for dim in reversed(dims):
            while 2 * math.prod(tile) <= points and tile[dim] < sizes[dim]:
                rows = min(sizes[dim], 2 * tile[dim])
                if tiles(dim, rows) < least * target.workers:
                    break
                tile[dim] = rows

    run, few = (max(1, bytes_ // figures.narrowest) for bytes_ in (CROSSED_BYTES, FEW_CROSSED_BYTES))
    tile, smaller = with_runs(run), with_runs(few)
    # Shorter ones only where a multiprocessor has one tile at most, and less to move then: 128 become 256, two for each.
    if longest(tile) == math.prod(tile) and (smaller == tile or longest(smaller) < longest(tile)):
        tile, run = smaller, few
    for order in crossed:
        wanted = run // tile[order[-1]]
        for inner, dim in zip(reversed(order), reversed(order[:-1]), strict=False):
            if tile[inner] < sizes[inner] or wanted <= 1:
                break
            rows = max(tile[dim], min(sizes[dim], wanted))
            while rows > tile[dim] and tiles(dim, rows) < CROSSED_TILES * target.workers and math.prod(tile) * rows > THREADS:
                rows //= 2
            tile[dim] = max(tile[dim], even([sizes[dim]], [max(1, rows)], 1)[0])
            wanted //= tile[dim]
    # A dimension is short, and both runs are soon complete; or others wait for the tiles, of which each is posted.
    few = math.prod(tile) <= 2 * THREADS or not figures.alone
    least = CROSSED_TILES if figures.alone else SHARED_TILES
    grow(CROSSED_POINTS, least, crossed[0] if few else ())
    if not figures.alone:
        grow(TURNED_POINTS, TURNED_TILES, crossed[0])
    return tile


def _column_tile(figures: Figures, target: Target) -> list[int]:
    """Whole lines side by side, fewer where multiprocessors would be idle; further dimensions up to `SHARED_TILE` points."""
    sizes = list(figures.sizes)
    last = min(sizes[-1], COLUMN_BYTES // figures.narrowest)
    tile = [*fit(sizes[:-1], SHARED_TILE // (figures.inner * last)), last]
    # What is gone over several times stays in registers if tiles are narrow, down to two sectors of memory.
    shortest = COLUMN_BYTES // (4 if figures.levels == 1 or (figures.levels and not figures.alone) else 8)
    least = [1] * (len(sizes) - 1) + [min(last, shortest // figures.narrowest)]
    return even(sizes, spread(sizes, tile, target.workers, least), 8)


def memory_tile(candidate: Candidate, machine: Target) -> list[int]:
    """Tile sizes of the shared dimensions of a stage whose elements threads make one by one, whatever it holds."""
    space = candidate.space
    if candidate.products:
        return contiguous([d.size for d in space.dims], LOOP_TILE, 2 * machine.workers)
    return tile_of(figures_of(space, candidate.alone), machine) if space.dims else []


def figures_of(space: Space, alone: bool) -> Figures:
    """A stage in figures; see `Figures`."""
    inner = 1 if all(map(_makes_windows, space.ops)) and any(map(_slides, space.ops)) else inner_elements(space)
    sizes = tuple(d.size for d in space.dims)
    panels = _panels(space, inner)
    inner //= panels
    points = math.prod(sizes) * inner
    inside = {r for op in space.ops for r in op.results}
    read = {v for op in space.ops for v in op.operands if is_tensor(v) and v not in inside}
    used = {v for op in space.ops for v in op.operands}
    written = [r for op in space.ops for r in op.results if is_tensor(r) and r not in used]
    tensors = [*read, *written]
    moved = sum(tensor_bytes(v.type) for v in tensors)
    levels = sum(is_generic(op) and "reduction" in iterator_kinds(op) for op in space.ops)
    weights = inner > 1 and any(math.prod(shape_of(v)) == inner for v in read)
    narrowest = min((element_bytes(v.type) for v in tensors), default=4)
    crossed = None if levels else crossed_dimensions(space)
    columns = _reduces_over_columns(space) if levels else _moves_columns(space)
    running = (
        levels >= MANY_LEVELS
        and {str(ir.ShapedType(v.type).element_type) for v in tensors} == {"bf16"}
        and any(map(_is_maximum, space.ops))
    )
    return Figures(sizes, inner, moved / max(1, points), narrowest, levels, crossed, weights, alone, columns, running, panels)


def _panels(space: Space, inner: int) -> int:
    """Panels of what a stage joins (see `dialects.joined`), where that is all that it makes."""
    used = {v for op in space.ops for v in op.operands}
    made = [r for op in space.ops for r in op.results if is_tensor(r) and r not in used]
    if len(made) != 1 or not shape_of(made[0]) or shape_of(made[0])[-1] != inner:
        return 1
    return panels_of(made[0], set(space.ops))


def _slides(op) -> bool:
    """Whether an op reduces windows that overlap, or that are read by index: a thread reads on where its neighbour does."""
    if not is_generic(op) or "reduction" not in iterator_kinds(op):
        return False
    kinds = iterator_kinds(op)
    windows = [e for map_ in affine_maps(op) for e in map_.results if not isinstance(e, ir.AffineDimExpr)]
    for expression in windows:
        terms = terms_of(expression) or {}
        if any(step == 1 and kinds[loop] == "parallel" for loop, step in terms.items()):
            return True
    return any(inner.operation.name == "tensor.extract" for inner in op.regions[0].blocks[0].operations)


def _makes_windows(op) -> bool:
    """Whether an op is element-wise, or reduces such windows."""
    return not is_generic(op) or "reduction" not in iterator_kinds(op) or _slides(op)


def _is_maximum(op) -> bool:
    """Whether an op reduces to the maximum."""
    if not is_generic(op) or "reduction" not in iterator_kinds(op):
        return False
    return any(inner.operation.name == "arith.maximumf" for inner in op.regions[0].blocks[0].operations)


def _reduces_over_columns(space: Space) -> bool:
    """Whether the largest reduction runs along dimensions that are not the last of what it reads."""
    found: tuple[int, bool] = (0, False)
    for n, op in enumerate(space.ops):
        access = space.accesses[n]
        if access is None or not is_generic(op) or "reduction" not in iterator_kinds(op):
            continue
        last = space.along(n, access.operands[0])
        size = math.prod(access.sizes)
        if last and size > found[0]:
            found = (size, last[-1][0] == len(space.dims) - 1)
    return found[1]


def _moves_columns(space: Space) -> bool:
    """Whether tiles cannot be cut along a dimension of the largest that is made, but along the last one."""
    made = [n for n, access in enumerate(space.accesses) if access is not None and is_tensor(space.ops[n].results[0])]
    if not made:
        return False
    dims = space.result_dims(max(made, key=lambda n: math.prod(shape_of(space.ops[n].results[0]))), 0)
    return bool(dims) and dims[-1] == len(space.dims) - 1 and None in dims


def crossed_dimensions(space: Space) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The dimensions of a map's result and of an input in their memory's order, where the last ones differ.

    Those outside of a dimension that is not shared are left out: their neighbours are not neighbours in memory.
    """
    for n, op in enumerate(space.ops):
        access = space.accesses[n]
        if access is None or not is_generic(op) or "reduction" in iterator_kinds(op):
            continue
        results = _innermost(space.result_dims(n, 0))
        if not results:
            continue
        for number, value in enumerate(op.operands):
            if is_tensor(value) and len(shape_of(value)) > 1:
                found = _innermost([dim for dim, *_ in space.along(n, access.operands[number])])
                if found and found[-1] != results[-1]:
                    return results, found
    return None


def _innermost(dims: Sequence[int | None]) -> tuple[int, ...]:
    """The last of some dimensions, up to one that is not shared."""
    found: list[int] = []
    for dim in reversed(dims):
        if dim is None:
            break
        found.insert(0, dim)
    return tuple(found)
