"""Eager programs through `kitsune_mlir.window()`: the same paths and the same values, on many distinct paths."""

import random

import pytest
import torch

import kitsune_mlir
from bench.requests.window_nets import NETS, STATIC
from test.rotation import in_turn

PATHS = 40
"""The benchmark `bench.requests.window_run` compares 200."""


@pytest.mark.parametrize("name", [*in_turn(list(NETS), 1), *in_turn(list(STATIC), 1)])
def test_paths(name: str) -> None:
    torch.manual_seed(random.randrange(1 << 30))
    draw = random.Random(random.randrange(1 << 30))
    model, make = (NETS | STATIC)[name].make(True)
    model.eval()
    wanted = PATHS if name in NETS else 1
    paths, calls, programs = set(), 0, 0
    with torch.no_grad():
        while (len(paths) < wanted or not programs) and calls < 8 * PATHS:
            given = [make(draw) for _ in range(10)]
            expected = [model(one) for one in given]
            with kitsune_mlir.window(size=32, after=25) as captured:
                found = [model(one) for one in given]
            for (value, path), (other, same) in zip(found, expected, strict=True):
                assert path == same
                torch.testing.assert_close(value, other, rtol=2e-4, atol=2e-5)
            paths |= {path for _, path in expected}
            calls += len(given)
            programs += captured.segments["a program"]
    assert len(paths) >= wanted and programs
