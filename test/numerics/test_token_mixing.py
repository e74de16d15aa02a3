"""Layers over tokens as products of a batch: the GPU's plan, on the processor, against float64."""

import copy

import pytest
import torch

import kitsune_mlir
from bench.breadth.vision import Mixer
from test.emulators.runner import emulated
from test.gpu.unassembled import unassembled
from test.rotation import in_turn


@pytest.mark.parametrize(
    "batch, tokens, width, hidden, depth, products",
    in_turn(
        [
            (2, 7, 64, 264, 2, 4),
            (3, 9, 120, 300, 1, 2),
            (1, 7, 64, 264, 1, 0),
            (2, 7, 72, 264, 1, 0),
            (2, 8, 64, 32, 1, 0),
            (2, 7, 48, 33, 1, 2),
        ],
        1,
    ),
)
def test_values(batch: int, tokens: int, width: int, hidden: int, depth: int, products: int) -> None:
    """`products` of them are of a batch: not those of one image, of rows that waste a tile, of layers that a chain holds."""
    torch.manual_seed(0)
    model = Mixer(tokens, width, hidden, 16, depth).bfloat16().eval().requires_grad_(False)
    x = torch.randn(batch, tokens, width).bfloat16()
    with unassembled():
        program = kitsune_mlir.compile(model, (x,), target="sm_90a")
    sizes = [stage["tile"] for stage in program.summary["stages"] if stage["engine"] == "mma"]
    assert sum(len(tile) == 3 for tile in sizes) == products
    eager = model(x).double()
    wanted = copy.deepcopy(model).double()(x.double())
    found = emulated(program)(x).double()
    assert (found - wanted).norm() <= 2 * (eager - wanted).norm()
