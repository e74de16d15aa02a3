"""Chains are no longer than the instruction cache."""

import pytest
import torch
from torch import nn

from test.programs.compiled import planned


@pytest.mark.parametrize("layers, options, wanted", [(12, "", [12]), (13, "", [7, 6]), (13, "cut=products:5", [5, 5, 3])])
def test_long_chains_are_several(layers: int, options: str, wanted: list[int]) -> None:
    """Of 256 columns a layer; option `cut` makes them shorter still."""
    model = nn.Sequential(*(one for _ in range(layers) for one in (nn.Linear(256, 256), nn.ReLU()))).bfloat16()
    program = planned(model, torch.randn(65_536, 256, dtype=torch.bfloat16), passes={"kitsune-form-stages": options})
    held = [stage["ops"]["product"] for stage in program.summary["stages"] if stage["engine"] == "chain"]
    assert held == wanted
