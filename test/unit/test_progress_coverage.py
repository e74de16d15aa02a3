"""What boxes cover: the quick answer is never more than the exact one, and numbers are sorted in time."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kitsune_mlir.dialects.tile_indices import Points
from kitsune_mlir.dialects.tile_regions import Region
from kitsune_mlir.passes.progress.coverage import Cover, _distinct, boxes_of, fills

GRID = (3, 2)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """Boxes of a grid of tiles, whose offsets follow one coordinate, both or none."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    offsets, sizes = [], []
    for extent in shape:
        size = draw(st.integers(1, extent))
        uses = draw(st.sampled_from([(1, 1), (3, 1), (1, 2), (3, 2)]))
        steps = draw(st.lists(st.integers(0, extent - size), min_size=uses[0] * uses[1], max_size=uses[0] * uses[1]))
        offsets.append(np.array(steps, np.int64).reshape(uses))
        sizes.append(size)
    return Region(cast(Any, SimpleNamespace(offset=0)), shape, 4, tuple(offsets), tuple(sizes))


def written(region: Region) -> np.ndarray:
    """Which elements the tiles write, one by one."""
    seen = np.zeros(region.shape, bool)
    for tile in np.ndindex(*GRID):
        at = [int(o[tuple(c if n > 1 else 0 for c, n in zip(tile, o.shape, strict=True))]) for o in region.offsets]
        seen[tuple(slice(a, a + n) for a, n in zip(at, region.sizes, strict=True))] = True
    return seen


@settings(max_examples=300, deadline=None)
@given(regions())
def test_what_fills_a_shape_leaves_no_hole(region: Region) -> None:
    seen = written(region)
    cover = Cover(region.shape, [boxes_of(region, Points.telling(GRID, region.offsets), linear=False)])
    assert cover.empty.any() == (not seen.all())
    if fills(region):
        assert seen.all()
    axes = [tuple(n > 1 for n in offset.shape) for offset in region.offsets]
    if len(axes) == 1 or not any(a and b for a, b in zip(*axes, strict=True)):  # coordinates of their own: the answer is exact
        assert fills(region) == seen.all()


def test_distinct_numbers_are_sorted() -> None:
    numbers = np.random.default_rng().integers(0, 50, (3, 40))
    assert _distinct([*numbers]).tolist() == sorted({*numbers.ravel().tolist()})
    assert _distinct([np.array([7])]).tolist() == [7]
