"""Losses that PyTorch's own decomposition gets wrong, against its kernels in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kitsune_mlir
from test.numerics.compare import problems
from test.numerics.gradients import HOST

LABELS = {"line": (5,), "one class": (3, 1), "rows": (6, 7), "many": (9, 129)}


@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.parametrize("shape", LABELS.values(), ids=LABELS)
def test_classes_of_a_sample_end_at_the_first_negative_one(shape: tuple[int, ...], reduction: str) -> None:
    """What is named behind it does not count; compiled alone, and with the gradient through torch.compile."""

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    x, target = torch.randn(shape) * 2, torch.randint(-1, shape[-1], shape)
    target[..., shape[-1] // 2] = -1
    wide = x.double().requires_grad_()
    wanted = loss(wide, target)
    wanted.sum().backward()
    found = problems(kitsune_mlir.compile(loss, (x, target), target="host", options=HOST)(x, target), wanted.detach())
    torch._dynamo.reset()
    leaf = x.clone().requires_grad_()
    got = torch.compile(loss, backend="kitsune", fullgraph=True, options={**HOST, "require_full": True})(leaf, target)
    got.sum().backward()
    found += problems((got.detach(), leaf.grad), (wanted.detach(), wide.grad))
    assert not found, found


def test_which_classes_are_named() -> None:
    x, target = torch.randn(4, 7), torch.tensor([[2, 0, -1, 5, 1, 1, 1], [-1] * 7, [6, 6, 3, -1, 0, 0, 0], [*range(7)]])
    x[0, 1] = float("nan")  # adds nothing, as no comparison with it is true

    def both(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.multilabel_margin_loss_forward(x, target, 0)

    got = kitsune_mlir.compile(both, (x, target), target="host", options=HOST)(x, target)
    assert not (found := problems(got, both(x, target))), found
