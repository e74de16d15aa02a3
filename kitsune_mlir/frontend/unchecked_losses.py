"""The Gaussian loss without the question whether a variance is negative, which a traced model has no answer to.

PyTorch raises an error for one; a program gives NaN there, and in means and sums, and what PyTorch does otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["unchecked_losses"]

_checked = F.gaussian_nll_loss


@functools.wraps(_checked)
def _unchecked(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """As `torch.nn.functional.gaussian_nll_loss`; of tensors that have values, that itself."""
    if not isinstance(var, FakeTensor):
        return _checked(input, target, var, full=full, eps=eps, reduction=reduction)
    var = var.unsqueeze(-1) if var.shape != input.shape and input.shape[:-1] == var.shape else var
    wrong = sum(b for a, b in zip(input.shape, var.shape, strict=False) if a != b)
    if var.shape != input.shape and (input.ndim != var.ndim or wrong != 1):
        raise ValueError("var is of incorrect size")
    var = torch.where(var < 0, math.nan, var)
    with torch.no_grad():
        var.clamp_(min=eps)  # its gradient is that of what is not clamped
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    reductions: dict[str, Any] = {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}
    if reduction not in reductions:
        raise ValueError(reduction + " is not valid")
    return reductions[reduction]()


@contextmanager
def unchecked_losses() -> Iterator[None]:
    """Inside, traced models call it, where they have it from `torch.nn.functional` or `torch.nn.GaussianNLLLoss`."""
    before = F.gaussian_nll_loss
    replace: Any = setattr
    replace(F, "gaussian_nll_loss", _unchecked)
    try:
        yield
    finally:
        replace(F, "gaussian_nll_loss", before)
