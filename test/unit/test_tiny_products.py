"""Batches of products of tiny matrices: threads make their numbers, and larger ones stay on tensor cores."""

import pytest
import torch

import kitsune_mlir
from test.programs.emulated import compiled, emulated, engines

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.rotated(3)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
@pytest.mark.parametrize(
    "a, b, equation",
    [
        ((1000, 3, 1), (1000, 1, 3), "bij,bjk->bik"),
        ((129, 6, 8), (129, 6, 8), "bij,bkj->bik"),
        ((2, 70, 7, 16), (2, 70, 16, 5), "abij,abjk->abik"),
        ((300, 1, 13), (300, 13, 9), "bij,bjk->bik"),
        ((300, 9, 33), (300, 9, 33), "bij,bkj->bik"),
        ((129, 7, 37), (129, 7, 37), "bij,bkj->bik"),
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


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "a, b, equation",
    [
        ((63, 129), (129,), "ij,j->i"),
        ((63,), (63, 129), "i,ij->j"),
        ((7, 1677), (1677, 1), "ij,jk->ik"),
        ((27, 63), (27, 129), "ji,jk->ik"),
        ((5, 1000), (1000, 7), "ij,jk->ik"),
        ((1, 1), (1, 1), "ij,jk->ik"),
    ],
)
def test_small_products_of_f32_are_sums_of_rows(a, b, equation):
    torch.manual_seed(0)
    x, y = torch.randn(a), torch.randn(b)

    def function(x, y):
        return torch.tanh(torch.einsum(equation, x, y))

    program = compiled(function, [x, y])
    assert set(engines(program)) == {"simt"}
    (found,) = emulated(program, [x, y], [function(x, y)])
    exact = function(x.double(), y.double())
    assert (found.double() - exact).norm() <= 2e-6 * exact.norm()


@pytest.mark.parametrize("a, b", [((129, 1000), (1000,)), ((129, 65), (65, 129)), ((7, 1677), (1677, 3)), ((63, 129), (129,))])
def test_larger_ones_of_f32_and_others_have_tensor_cores(a, b):
    dtype = BF16 if a == (63, 129) else F32
    program = compiled(lambda x, y: x @ y, [torch.randn(a).to(dtype), torch.randn(b).to(dtype)])
    assert "simt" not in engines(program)


@pytest.mark.parametrize(
    "equation, b", [("abc,abd->acd", (7, 129, 31)), ("abc,ab->ac", (7, 129)), ("abc,abd->adc", (7, 129, 1))]
)
def test_outer_dimensions_are_summed_where_they_lie(equation, b):
    torch.manual_seed(0)
    x, y = torch.randn(7, 129, 100), torch.randn(b)

    def function(x, y):
        return torch.einsum(equation, x, y)

    exact = function(x.double(), y.double())
    found = kitsune_mlir.compile(function, (x, y), target="host")(x, y)
    assert found.shape == exact.shape and (found.double() - exact).norm() <= 2e-6 * exact.norm()
    assert len(engines(compiled(function, [x, y]))) == 1, "no stage that only moves"
