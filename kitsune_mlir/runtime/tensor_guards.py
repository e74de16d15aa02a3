"""PyTorch's own check that tensors are like earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["guard_of"]


def guard_of(args: Sequence[Any]) -> Callable[..., bool] | None:
    """Checks that other arguments are like these: type, dispatch keys, dtype, device, gradient, sizes and strides.

    It is what torch.compile's code asks before it runs, one call for all tensors. It holds metadata only, and is false where
    two arguments are the same tensor.
    """
    import torch

    if not args:
        return None
    try:
        return torch._C._dynamo.guards.TensorGuards(*args, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (AttributeError, TypeError):  # a version of PyTorch whose guards are made in another way
        return None
