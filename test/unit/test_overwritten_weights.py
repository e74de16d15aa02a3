"""Weights that a training step overwrites: engines that load weights before they wait leave their products to others."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir import pipeline
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.overwritten import is_overwritten

FUNCTION = """
func.func @main(%x: tensor<4xf32>, %w: tensor<8x8xf32>, %v: tensor<8x8xf32>) -> (tensor<8x8xf32> {kitsune.mutates = 1 : i64}) {
  %flat = tensor.collapse_shape %w [[0, 1]] : tensor<8x8xf32> into tensor<64xf32>
  %sum = arith.addf %w, %v : tensor<8x8xf32>
  return %sum : tensor<8x8xf32>
}
"""


def test_arguments_and_what_shows_them() -> None:
    module = ir.Module.parse(FUNCTION, new_context())
    block = module.body.operations[0].operation.regions[0].blocks[0]
    assert [is_overwritten(argument) for argument in block.arguments] == [False, True, False]
    flat, sum_, _ = (op.operation for op in block.operations)
    assert is_overwritten(flat.results[0]) and not is_overwritten(sum_.results[0])


class Stop(BaseException):
    """What nothing on the way catches."""


def test_a_step_s_products_stay_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def generate(tiles, *given):
        texts.append(str(tiles.stages.module))
        raise Stop

    monkeypatch.setattr(pipeline, "generate", generate)
    monkeypatch.setattr("kitsune_mlir.settings.choose_target", lambda *given, **options: "sm_90a")
    layers = [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.LayerNorm(128)]
    model = nn.Sequential(*layers).to(torch.bfloat16)
    step = kitsune_mlir.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), 1e-2), options={"cache": False})
    x = torch.randn(65_536, 128, dtype=torch.bfloat16)
    with pytest.raises(Stop):
        step(x, torch.randn_like(x))
    engines = re.findall(r'engine = "(\w+)"', texts[0])
    assert engines.count("mma") >= 8 and not {"generic", "chain"} & {*engines}, engines
