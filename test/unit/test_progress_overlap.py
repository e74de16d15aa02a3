"""Which boxes share bytes: decided for all pairs at once, against sets of bytes."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_indices import Points
from kitsune_mlir.dialects.tile_reader import TileProgram
from kitsune_mlir.dialects.tile_regions import Region
from kitsune_mlir.passes.progress import overlap

EXTENTS = (3, 2)  # of both grids
PROGRAM = ir.Module.parse(
    """func.func @main(%arena: memref<4096xi8>)
           attributes {kitsune.program, kitsune.arguments = 0 : i64, kitsune.results = 0 : i64} { return }""",
    new_context(),
)
ARENA = TileProgram(PROGRAM.body.operations[0].operation).arena


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """Boxes of any shape, some of which stick out of it, somewhere in one argument."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    element = draw(st.sampled_from([1, 2, 4]))
    sizes = tuple(draw(st.integers(1, n)) for n in shape)
    offsets = []
    for extent in shape:
        axis = draw(st.sampled_from([None, 0, 1]))
        grid = [1 if a != axis else n for a, n in enumerate(EXTENTS)]
        places = draw(st.lists(st.integers(0, extent - 1), min_size=int(np.prod(grid)), max_size=int(np.prod(grid))))
        offsets.append(np.array(places, np.int64).reshape(grid))
    return Region(dataclasses.replace(ARENA, offset=draw(st.integers(0, 40))), shape, element, tuple(offsets), sizes)


def bytes_of(region: Region, tile: tuple[int, ...]) -> set[int]:
    """The bytes of one box, as far as it is inside the shape."""
    elements = np.zeros(region.shape, bool)
    starts = [int(np.broadcast_to(offset, EXTENTS)[tile]) for offset in region.offsets]
    elements[tuple(slice(start, start + size) for start, size in zip(starts, region.sizes, strict=True))] = True
    firsts = region.buffer.offset + np.flatnonzero(elements) * region.element
    return {int(first) + byte for first in firsts for byte in range(region.element)}


@settings(max_examples=300, deadline=None)
@given(regions(), regions())
def test_boxes_meet_where_their_bytes_do(first: Region, second: Region) -> None:
    points = Points.every(EXTENTS)
    found = set()
    for i, j in overlap.pairs_that_touch(first, points, second, points):
        meet = overlap.which_meet(first, i, points, second, j, points)
        found |= set(zip(i[meet].tolist(), j[meet].tolist(), strict=True))
    tiles = [points.tile(number) for number in range(points.count)]
    sets = [[bytes_of(region, tile) for tile in tiles] for region in (first, second)]
    assert found == {(i, j) for i, a in enumerate(sets[0]) for j, b in enumerate(sets[1]) if a & b}


def image(tiles: int, channels_last: bool) -> Region:
    """An image of 64 channels: `tiles` boxes of two rows each, with its channels first or last."""
    rows = np.arange(tiles, dtype=np.int64)[:, None] * 2
    zero = np.zeros((1, 1), np.int64)
    if channels_last:
        return Region(ARENA, (2 * tiles, 56, 64), 4, (rows, zero, zero), (2, 56, 64))
    return Region(ARENA, (64, 2 * tiles, 56), 4, (zero, rows, zero), (64, 2, 56))


@pytest.mark.parametrize("tiles", [128, 256])
def test_distances_are_found_once_for_all_pairs(tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    distances = overlap._distances
    monkeypatch.setattr(overlap, "_distances", lambda *arguments: asked.append(arguments) or distances(*arguments))
    first, second = image(tiles, channels_last=False), image(tiles, channels_last=True)
    points = Points.every((tiles, 1))
    i, j = (numbers.ravel() for numbers in np.indices((tiles, tiles)))
    start = time.process_time()
    meet = overlap.which_meet(first, i, points, second, j, points)
    assert time.process_time() - start < 5  # 65,536 pairs one by one take over 20 s
    assert len(asked) == 1
    assert 0 < meet.sum() < len(meet)
