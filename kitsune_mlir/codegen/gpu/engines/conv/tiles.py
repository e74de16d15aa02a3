"""Convolutions as products of the weight with a tile of pixels: how a tile lies in shared memory, and which tiles are fastest.

Pure Python, no IR. The weight's output channels ("features") are the rows of the product, 64 for each of two warpgroups;
pixels are its columns, up to 256 at a time: any multiple of eight, which suits images of 7 or 14 pixels a row. Of the image
a stage of shared memory holds `chunk` channels, in one of two ways:

- *taps apart*: the pixels that one tap of the weight sees, loaded once for every tap;
- *halo*: all that the tile's pixels see, loaded once for all taps. A tap then is a distance in rows: rows are 32 to 128
  bytes, and tensor cores start reading at any of them. Columns between the tile's rows of pixels are computed and dropped.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from kitsune_mlir.machine import rates

__all__ = ["Geometry", "Problem", "arrange", "choose_tile", "cycles", "depthwise_run", "depthwise_tile"]

GROUP_ROWS = 64
MOST_COLUMNS = 256
STEP_BYTES = 32  # of the sum that one instruction takes
MOST_BOX = 256
MOST_STAGES = 8
MOST_WEIGHT_STAGES = 24
LEAST_WEIGHT_STAGES = 3  # for stages of several taps

MOST_EXACT_COLUMNS = 128  # of sums that are in registers twice
EXACT_PRODUCTS = 3  # of tf32 numbers, for one of f32 numbers

MOST_PIECES = 16

DEPTHWISE_THREADS = 256
FEW_TAPS = 9
DEPTHWISE_CHANNELS = 16  # vectors of neighbouring channels that a tile has
MOST_DEPTHWISE = 2048  # items of a tile


@dataclasses.dataclass(frozen=True)
class Problem:
    """A convolution. Tuples have one entry for each dimension of the image but its channels: batch, rows, columns, ...

    Attributes:
        pixels: extents of the result.
        strides, taps, dilations: of the weight; 1 for the batch.
        channels: of the image.
        features: channels of the result.
        inside: no tap reads beyond the ends of the image's last dimension.
        element_bytes: of image and weight.
        exact: f32 factors are multiplied as sums of two tf32 numbers (`contraction.tf32x3`), the rests behind what they are
            rests of.
        group: the dimension that counts groups of channels, each with a weight of its own, of which a tile has one; or None.
    """

    pixels: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[int, ...]
    dilations: tuple[int, ...]
    channels: int
    features: int
    inside: bool = False
    element_bytes: int = 2
    exact: bool = False
    group: int | None = None

    def merged(self) -> Problem:
        """The same with the taps of the last dimension as channels, where there are few.

        Channels of neighbouring pixels are neighbours in memory: what all taps of a row read is one run, and runs may overlap.
        """
        width = self.taps[-1] * self.channels
        if not self.inside or self.taps[-1] == 1 or self.dilations[-1] != 1:
            return self
        if self.channels * self.element_bytes % 16 or width * self.element_bytes > 128:
            return self
        ones = (1,)
        return dataclasses.replace(self, strides=self.strides[:-1] + ones, taps=self.taps[:-1] + ones, channels=width)

    @property
    def row_bytes(self) -> int:
        """A row of a stage: 128, 64 or 32 bytes."""
        wanted = self.channels * self.element_bytes
        return 128 if wanted > 64 else 64 if wanted > 32 else 32

    @property
    def chunk(self) -> int:
        """Channels of a stage."""
        return self.row_bytes // self.element_bytes

    @property
    def copies(self) -> int:
        """Numbers in shared memory for one of the image or the weight."""
        return 2 if self.exact else 1

    @property
    def products(self) -> int:
        """Products on tensor cores for one of the convolution."""
        return EXACT_PRODUCTS if self.exact else 1

    @property
    def chunks(self) -> int:
        """Stages that hold all channels."""
        return -(-self.channels // self.chunk)

    @property
    def steps(self) -> int:
        """Steps of tensor cores, each of `STEP_BYTES` of channels, in one tap of a stage; what is behind all channels is not
        multiplied."""
        return -(-min(self.chunk, self.channels) * self.element_bytes // STEP_BYTES)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How a tile lies in shared memory.

    Attributes:
        halo: a stage of the image serves all taps.
        loaded: rows of a stage, along each dimension of the tile.
        pitches: rows from one pixel to the next, along each dimension.
        positions: rows from the first pixel to the last, and one.
        by_features: the warpgroups have different features of all pixels, and not different pixels of the same features.
        columns: of one warpgroup's product, a multiple of 8; columns are pixels and what lies between them.
        weight_taps: taps that a stage of the weight holds.
        image_bytes, weight_bytes: of a stage, the rests of exact factors included.
        image_stages, weight_stages: how many there are.
    """

    halo: bool
    loaded: tuple[int, ...]
    pitches: tuple[int, ...]
    positions: int
    by_features: bool
    columns: int
    weight_taps: int
    image_bytes: int
    weight_bytes: int
    image_stages: int
    weight_stages: int

    @property
    def weight_rows(self) -> int:
        """Features that a stage holds."""
        return 2 * GROUP_ROWS if self.by_features else GROUP_ROWS

    groups = 2
    """Warpgroups with accumulators of their own."""

    @property
    def partial_bytes(self) -> int:
        """One warpgroup's accumulators."""
        return GROUP_ROWS * self.columns * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all stages, the image's first; each starts at a multiple of 1024."""
        return self.image_stages * self.image_bytes + self.weight_stages * self.weight_bytes


def arrange(problem: Problem, tile: tuple[int, ...], features: int, halo: bool, shared_bytes: int) -> Geometry | str:
    """Lay out a tile of `tile` pixels by `features`, or the reason why it cannot be."""
    if halo:
        if max(problem.strides) > 1 or max(problem.taps) == 1:
            return "a halo needs steps of one pixel and several taps"
        loaded = tuple(size + (t - 1) * d for size, t, d in zip(tile, problem.taps, problem.dilations, strict=True))
        boxes = loaded
    else:
        loaded = tile
        boxes = tuple((size - 1) * stride + 1 for size, stride in zip(tile, problem.strides, strict=True))
    if max(boxes) > MOST_BOX:
        return f"{max(boxes)} elements along one dimension; TMA loads {MOST_BOX}"
    pitches = tuple(math.prod(loaded[dim + 1 :]) for dim in range(len(loaded)))
    positions = 1 + sum((size - 1) * pitch for size, pitch in zip(tile, pitches, strict=True))
    by_features = features > GROUP_ROWS
    columns = _up(positions if by_features else -(-positions // 2), 8)
    most = MOST_EXACT_COLUMNS if problem.exact else MOST_COLUMNS
    if columns > most or features > 2 * GROUP_ROWS:
        return f"{features} features by {positions} columns; {2 * GROUP_ROWS} by {most} fit the registers"
    row = problem.row_bytes
    image = _up(math.prod(loaded) * row, 1024) * problem.copies
    weight = (2 if by_features else 1) * GROUP_ROWS * row * problem.copies
    taps = math.prod(problem.taps)
    together = problem.taps[-1] if halo else 1
    if 2 * image + LEAST_WEIGHT_STAGES * weight * together > shared_bytes:
        together = 1
    weight *= together
    if halo:
        image_stages = 2 if 2 * image + LEAST_WEIGHT_STAGES * weight <= shared_bytes else 1
        weight_stages = min(MOST_WEIGHT_STAGES, (shared_bytes - image_stages * image) // weight, 2 * taps // together)
    else:
        image_stages = weight_stages = min(MOST_STAGES, shared_bytes // (image + weight))
    if weight_stages < 2:
        return f"stages of {image} and {weight} bytes do not fit {shared_bytes}"
    return Geometry(
        halo, loaded, pitches, positions, by_features, columns, together, image, weight, image_stages, weight_stages
    )  # fmt: skip


def cycles(problem: Problem, geometry: Geometry, active: int, pieces: int = 1) -> float:
    """Time of one tile where `active` multiprocessors work at a time; of the longest of `pieces` that share the tile."""
    taps = math.prod(problem.taps)
    images = -(-problem.chunks * (1 if geometry.halo else taps) // pieces)
    steps = images * (taps if geometry.halo else 1)
    row = problem.row_bytes
    rate = rates.CONV_MACS * 2 / problem.element_bytes / problem.products
    tensor = steps * 2 * GROUP_ROWS * geometry.columns * problem.steps * STEP_BYTES / problem.element_bytes / rate
    shared = steps * 2 * (GROUP_ROWS + geometry.columns) * row * problem.products / rates.CONV_SHARED_RATE
    loaded = steps // geometry.weight_taps * geometry.weight_bytes // problem.copies + images * math.prod(geometry.loaded) * row
    cache = loaded / min(rates.CONV_LINK_RATE, rates.CONV_CACHE_RATE / active)
    total = max(tensor, shared, cache, steps // geometry.weight_taps * rates.CONV_STEP_CYCLES)
    total += rates.CONV_TILE_CYCLES + rates.CONV_COLUMN_CYCLES * geometry.columns
    if pieces > 1:
        total += rates.CONV_EXCHANGE_CYCLES + pieces * geometry.groups * geometry.partial_bytes / min(
            rates.CONV_LINK_RATE, rates.CONV_CACHE_RATE / active
        )
    return total


def best_pieces(problem: Problem, geometry: Geometry, tiles: int, workers: int) -> tuple[float, int]:
    """In how many pieces, each some channels (or taps) of the sum, to cut every tile, and the time of all tiles then."""
    images = problem.chunks * (1 if geometry.halo else math.prod(problem.taps))
    found = []
    for pieces in range(1, min(MOST_PIECES, images, max(1, workers // tiles)) + 1):
        count = tiles * pieces
        found.append((-(-count // workers) * cycles(problem, geometry, min(count, workers), pieces), pieces))
    return min(found)


def best_arrangement(
    problem: Problem, tile: tuple[int, ...], features: int, tiles: int, workers: int, shared_bytes: int
) -> tuple[float, Geometry, int] | str:
    """The fastest way to hold and to cut a tile: time of all `tiles`, layout, pieces; or the reason why there is none."""
    found = [arrange(problem, tile, features, halo, shared_bytes) for halo in (False, True)]
    timed = []
    for geometry in found:
        if isinstance(geometry, Geometry):
            total, pieces = best_pieces(problem, geometry, tiles, workers)
            timed.append((total, geometry, pieces))
    return min(timed, key=lambda item: item[0]) if timed else str(found[0])


def choose_tile(problem: Problem, workers: int, shared_bytes: int) -> tuple[tuple[int, ...], int] | None:
    """Pixels along each dimension, and features, of the tiles that together take the least time; None if nothing fits."""
    best: tuple[float, tuple[int, ...], int] | None = None
    widths = sorted({min(problem.features, GROUP_ROWS), min(problem.features, 2 * GROUP_ROWS)})
    for features, tile in itertools.product(widths, _tiles_of_one_group(problem)):
        count = -(-problem.features // features)
        for size, whole in zip(tile, problem.pixels, strict=True):
            count *= -(-whole // size)
        found = best_arrangement(problem, tile, features, count, workers, shared_bytes)
        if not isinstance(found, str) and (best is None or found[0] < best[0]):
            best = (found[0], tile, features)
    return None if best is None else best[1:]


def depthwise_run(size: int, taps: int, items: int, workers: int) -> int:
    """Pixels that one thread does of a depthwise convolution, of `size` in a row: as many as leave all threads work.

    Args:
        taps: of the weight; many of them and many pixels take too many registers.
        items: vectors of the result.
    """
    for run in (4, 2) if taps <= FEW_TAPS else (2,):
        if size >= run and items // run >= workers * DEPTHWISE_THREADS:
            return run
    return 1


def depthwise_tile(problem: Problem, width: int, workers: int) -> tuple[tuple[int, ...], int]:
    """Pixels along each dimension, and channels, of a depthwise convolution's tiles: whole rows of pixels, several of them.

    Args:
        problem: its `channels` are those of the image.
        width: channels of a vector.
    """
    items = math.prod(problem.pixels) * -(-problem.channels // width)
    run = depthwise_run(problem.pixels[-1], math.prod(problem.taps), items, workers)
    wanted = min(max(items // run // (4 * workers), DEPTHWISE_THREADS), MOST_DEPTHWISE)
    channels = problem.channels
    while channels > DEPTHWISE_CHANNELS * width and channels % (2 * width) == 0:
        channels //= 2
    groups = -(-channels // width)
    tile: list[int] = []
    for dim in reversed(range(len(problem.pixels))):
        unit = run if dim == len(problem.pixels) - 1 else 1
        most = max(1, wanted // groups) * unit
        size = min(problem.pixels[dim], most)
        parts = -(-problem.pixels[dim] // size)
        tile.append(min(problem.pixels[dim], _up(-(-problem.pixels[dim] // parts), unit)))
        wanted //= -(-tile[-1] // unit)
    return tuple(tile[::-1]), channels


def _tiles_of_one_group(problem: Problem):
    """Tiles of pixels, of one group's where there are groups."""
    if problem.group is None:
        yield from _pixel_tiles(problem.pixels)
        return
    before, behind = problem.pixels[: problem.group], problem.pixels[problem.group + 1 :]
    for tile in _pixel_tiles(before + behind):
        yield (*tile[: len(before)], 1, *tile[len(before) :])


def _pixel_tiles(pixels: tuple[int, ...]):
    """Tiles of up to 512 pixels: runs of the last dimension, then whole runs of the one before, and so on."""
    for dim in range(len(pixels)):
        whole = math.prod(pixels[dim + 1 :])
        if whole > 2 * MOST_COLUMNS:
            continue
        for size in sorted({-(-pixels[dim] // parts) for parts in range(1, pixels[dim] + 1)}):
            if size * whole > 2 * MOST_COLUMNS:
                break
            yield (*(1 for _ in pixels[:dim]), size, *pixels[dim + 1 :])
    if len(pixels) >= 2:  # blocks of rows and columns
        sides = [{-(-extent // parts) for parts in range(1, 17)} for extent in pixels[-2:]]
        for rows, cols in itertools.product(*sides):
            if rows > 1 and cols < pixels[-1] and 16 <= rows * cols <= 2 * MOST_COLUMNS:
                yield (*(1 for _ in pixels[:-2]), rows, cols)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
