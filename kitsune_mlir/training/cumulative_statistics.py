"""Batch normalization with cumulative statistics (`momentum=None`), whose factor is a tensor while a step is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["cumulative_statistics"]


@contextmanager
def cumulative_statistics() -> Iterator[None]:
    """While it is entered, modules of batch normalization do not ask how many batches there were, which a trace cannot say.

    PyTorch's compute with the number `1 / num_batches_tracked`.
    """
    forward = _BatchNorm.forward

    def traced(self: _BatchNorm, x: Tensor) -> Tensor:
        counted = self.training and self.momentum is None and self.track_running_stats
        if not counted or self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return forward(self, x)
        self._check_input_dim(x)
        self.num_batches_tracked.add_(1)
        running = self.running_mean, self.running_var
        found = torch.zeros_like(running[0]), torch.zeros_like(running[1])  # with momentum 1: those of this batch alone
        y = F.batch_norm(x, *found, self.weight, self.bias, True, 1.0, self.eps)
        with torch.no_grad():
            for mean, of_batch in zip(running, found, strict=True):
                factor = 1.0 / self.num_batches_tracked.to(mean.dtype)
                mean.mul_(1.0 - factor).add_(of_batch * factor)
        return y

    _BatchNorm.forward = traced
    try:
        yield
    finally:
        _BatchNorm.forward = forward
