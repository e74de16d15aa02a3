"""Batches of products of tiny matrices: threads make their numbers, and larger ones stay on tensor cores."""

import pytest
import torch

from test.programs.emulated import compiled, emulated, engines

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    "a, b, equation",
    [
        ((1000, 3, 1), (1000, 1, 3), "bij,bjk->bik"),
        ((129, 6, 8), (129, 6, 8), "bij,bkj->bik"),
        ((2, 70, 7, 16), (2, 70, 16, 5), "abij,abjk->abik"),
        ((300, 1, 13), (300, 13, 9), "bij,bjk->bik"),
    ],
)
def test_against_float64(a, b, equation, dtype):
    torch.manual_seed(0)
    x, y, bias = torch.randn(a).to(dtype), torch.randn(b).to(dtype), torch.randn(1).to(dtype)

    def function(x, y, bias):
        return torch.relu(torch.einsum(equation, x, y) + bias)

    program = compiled(function, [x, y, bias])
    assert set(engines(program)) == {"simt"}
    (found,) = emulated(program, [x, y, bias], [function(x, y, bias)])
    exact = function(x.double(), y.double(), bias.double())
    own = (function(x, y, bias).double() - exact).norm()
    assert (found.double() - exact).norm() <= 2 * own + 1e-6 * exact.norm()


@pytest.mark.parametrize("a, b", [((256, 27, 64), (256, 64, 27)), ((256, 16, 16), (256, 16, 16)), ((4000, 6), (6, 8))])
def test_larger_matrices_and_single_ones_have_tensor_cores(a, b):
    program = compiled(lambda x, y: x @ y, [torch.randn(a).to(BF16), torch.randn(b).to(BF16)])
    assert "mma" in engines(program)
