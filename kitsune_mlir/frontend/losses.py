"""Losses of which PyTorch's own decomposition gives something else than its kernels; these take its place in all tracing.

It is registered at the key of autograd, above every table of decompositions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["LOSSES"]

aten = torch.ops.aten
NONE, MEAN = 0, 1
"""PyTorch's numbers of the reductions "none" and "mean"."""


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The sum, over a sample's classes and the others, of how far the score of one of these is above the former's less 1.

    PyTorch 2.13's decomposition takes class 0 for each place that names none.

    Args:
        x: scores, (samples, classes) or (classes,).
        target: the numbers of a sample's classes, up to the first negative one; of x's shape.

    Returns:
        The loss, divided by the number of classes, and 1 for each class that is named, in x's shape and type. A comparison with
        nan is false, and adds nothing.
    """
    scores, named = torch.atleast_2d(widened(x)), torch.atleast_2d(target)
    samples, classes = scores.shape
    numbers = torch.arange(classes, device=x.device)
    end = torch.amin(torch.where(named < 0, numbers, classes), -1, keepdim=True)
    counts = numbers < end
    own = torch.gather(scores, -1, torch.where(counts, named, 0))
    is_target = ((numbers == named.unsqueeze(-1)) & counts.unsqueeze(-1)).any(1)
    above = 1.0 - own.unsqueeze(-1) + scores.unsqueeze(1)
    added = (above > 0) & counts.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = torch.where(added, above, 0.0).sum((1, 2)) / classes
    if reduction != NONE:
        loss = loss.sum() / samples if reduction == MEAN else loss.sum()
    elif x.ndim < 2:
        loss = loss.squeeze(0)
    return loss.to(x.dtype), is_target.to(x.dtype).reshape(target.shape)


LOSSES: dict[Any, Callable[..., Any]] = {aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss}

for op, right in LOSSES.items():
    op.py_kernels[DispatchKey.Autograd] = right
    op._dispatch_cache.clear()
