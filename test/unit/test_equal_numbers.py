"""Norms of rows whose numbers are equal: their variance is 0, whatever their sum was rounded to."""

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir
from bench.sweeps import Function
from test.programs.emulated import compiled, engines


def norm(x, w, b):
    return F.layer_norm(x, x.shape[1:], w, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (7,), (2, 3)])
def test_layer_norm(shape, dtype):
    torch.manual_seed(sum(shape))
    x = (torch.randn(41, *[1 for _ in shape]) * 100).expand(41, *shape).contiguous()
    x[::2] = torch.randn(21, *shape)
    args = [t.to(dtype) for t in (x, torch.randn(shape), torch.randn(shape))]
    found = kitsune_mlir.compile(Function(norm), args, target="host")(*args)
    want = norm(*(t.double() for t in args))
    assert torch.equal(found[1::2], args[2].expand(20, *shape))  # nothing but the bias
    rounded = norm(*args).double() - want
    assert (found.double() - want).norm() <= 2 * rounded.norm()


def test_the_norm_stays_one_stage():
    assert len(engines(compiled(norm, [torch.randn(5000, 5), torch.randn(5), torch.randn(5)]))) == 1
