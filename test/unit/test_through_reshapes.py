"""Dimensions that two shapes are made of."""

import math
import random

import pytest

from kitsune_mlir.passes.stages.through_reshapes import common_factors


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((2, 4, 512), (2, 64, 32), ([(2,), (4,), (16, 32)], [(2,), (4, 16), (32,)])),
        ((6, 4), (24,), ([(6,), (4,)], [(6, 4)])),
        ((2, 3), (3, 2), None),
        ((64, 12), (12, 64), None),
        ((1, 6), (6,), None),
        ((4,), (5,), None),
    ],
)
def test_common_factors(a, b, expected):
    assert common_factors(a, b) == expected


def test_factors_are_the_same_on_both_sides():
    draw = random.Random(0)
    for _ in range(200):
        parts = [draw.choice((2, 3, 5, 7)) for _ in range(draw.randint(1, 6))]

        def merged(parts=parts):
            cuts = sorted(draw.sample(range(1, len(parts)), draw.randint(0, len(parts) - 1)))
            return tuple(math.prod(parts[low:high]) for low, high in zip([0, *cuts], [*cuts, len(parts)], strict=True))

        a, b = merged(), merged()
        found = common_factors(a, b)
        assert found is not None
        assert [math.prod(factors) for factors in found[0]] == list(a) and [math.prod(f) for f in found[1]] == list(b)
        assert [size for factors in found[0] for size in factors] == [size for factors in found[1] for size in factors]
