"""Slices of what maps make, of which nobody reads the rest: the maps are done on slices."""

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir
from bench.sweeps import Function
from test.programs.emulated import compiled

CASES = {
    "rows, every third": lambda x, y: (F.gelu(x) * y)[11:90:3],
    "columns of one that is repeated": lambda x, y: (x.exp() + y).clamp(max=2.0)[:, 5:19:2] * 2,
    "half of the rows": lambda x, y: torch.tanh(x - y)[:50],
    "one row": lambda x, y: torch.sigmoid(x * y)[7],
    "read twice": lambda x, y: (lambda z: (z[::4], z.sum(0)))(torch.relu(x) + y),
    "most of it": lambda x, y: torch.sin(x + y)[1:],
}


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name):
    torch.manual_seed(len(name))
    args = torch.randn(101, 33), torch.randn(33)
    found = kitsune_mlir.compile(Function(CASES[name]), args, target="host")(*args)
    torch.testing.assert_close(found, CASES[name](*args), rtol=1e-5, atol=1e-5)


def test_one_stage_that_makes_what_is_read():
    program = compiled(lambda x: F.gelu(x)[2911:3537:3], [torch.randn(4096, 129)])
    stages = program.ir("stages")
    assert stages.count('"kitsune.stage"') == 1 and "-> tensor<4096x129xf32>" not in stages
