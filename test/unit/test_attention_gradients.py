"""Gradients of scaled dot-product attention through torch.compile, beside eager's, against float64."""

import pytest
import torch
import torch.nn.functional as F

from kitsune_mlir.frontend.gradients.attention import trained_attention
from test.rotation import in_turn

CASES = {
    # heads, heads of keys, rows, keys, width, width of values, type, options
    "odd sizes": (3, 3, 17, 23, 9, 13, torch.float32, {}),
    "bf16": (4, 4, 64, 64, 32, 32, torch.bfloat16, {}),
    "causal, heads share keys": (8, 2, 65, 65, 16, 16, torch.bfloat16, {"is_causal": True, "enable_gqa": True}),
    "a scale": (6, 2, 33, 33, 16, 8, torch.float32, {"is_causal": True, "scale": 0.3, "enable_gqa": True}),
    "rows without keys": (4, 4, 17, 23, 8, 8, torch.float32, {"mask": "bool"}),
    "added to scores": (4, 2, 7, 129, 8, 8, torch.bfloat16, {"mask": "float", "enable_gqa": True}),
    "one element": (1, 1, 1, 1, 1, 1, torch.float32, {}),
}


def gradients_of(function, tensors, kind):
    given = [t.detach().clone().to(kind).requires_grad_() for t in tensors]
    function(*given).backward()
    return [g.grad for g in given]


@pytest.mark.parametrize("name", in_turn([*CASES], 1))
def test_gradients(name):
    heads, shared, length, columns, width, out, dtype, options = CASES[name]
    options = dict(options)
    kind = options.pop("mask", None)
    mask = torch.rand(2, 1, length, columns) > 0.3 if kind == "bool" else torch.randn(length, columns) if kind else None
    if kind == "bool":
        mask[:, :, 0] = False
    sizes = (heads, length, width), (shared, columns, width), (shared, columns, out)
    tensors = [torch.randn(2, *size) for size in sizes]
    weight = torch.randn(2, heads, length, out)

    def loss(query, key, value):
        given = mask.to(query.dtype) if kind == "float" else mask
        return (F.scaled_dot_product_attention(query, key, value, given, **options) * weight.to(query.dtype)).sum()

    exact = gradients_of(loss, tensors, torch.float64)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="kitsune", options={"guard": False, "require_full": True})
    found = gradients_of(compiled, tensors, dtype)
    eager = gradients_of(loss, tensors, dtype)
    for ours, theirs, wide in zip(found, eager, exact, strict=True):
        assert ours.dtype == dtype and ours.shape == wide.shape
        scale = wide.norm().clamp(min=1e-6)
        error, usual = ((x.double() - wide).norm() / scale for x in (ours, theirs))
        assert error <= 2 * usual + 1e-5


def test_a_trained_mask_and_broadcast_keys_have_autograds():
    q, k, v = (torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: trained_attention(*given), (q, k, v, mask))
    one = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: trained_attention(*given), (q, one, one))
    assert torch.autograd.gradgradcheck(lambda *given: trained_attention(*given, is_causal=True), (q, k, v))
