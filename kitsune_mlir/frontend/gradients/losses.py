"""Gradients of losses that name a class for each sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["LOSS_GRADIENTS"]

aten = torch.ops.aten
MEAN = 1
"""PyTorch's number of the reduction "mean"."""


def _nll_loss_backward(
    given: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, total: Tensor
) -> Tensor:
    """The negative log-likelihood's gradient of its input, (samples, classes, ...) or (classes,): found for each class by
    comparison, so that it is computed where it is read. PyTorch's own decomposition scatters -1 into zeros.

    Args:
        given: the gradient of the loss, a number, or one a sample.
        total: the sum of the samples' weights.
    """
    classes = 0 if x.ndim == 1 else 1
    if reduction == MEAN:
        given = given / total
    along = [1] * x.ndim
    along[classes] = x.shape[classes]
    numbers = torch.arange(x.shape[classes], device=x.device).view(along)
    target = target.unsqueeze(classes)
    found = given if given.ndim == 0 else given.unsqueeze(classes)
    if weight is not None:
        found = found * weight.view(along)
    hit = (numbers == target) & (target != ignored)
    return torch.where(hit, -found, 0.0).to(x.dtype)


LOSS_GRADIENTS: dict[Any, Any] = {
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
}
