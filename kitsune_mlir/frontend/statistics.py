"""Covariances and correlations, without the questions about degrees of freedom that PyTorch asks of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.python_kernels import kernels_restored

__all__ = ["STATISTICS", "statistics_known"]

aten = torch.ops.aten
_KEY = torch._C.DispatchKey.CompositeImplicitAutograd


def _cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Of rows. Weights stay PyTorch's, which raises errors for negative ones; where `correction` leaves nothing, it warns."""
    if x.dtype.is_complex or x.ndim > 2 or not x.numel() or fweights is not None or aweights is not None:
        return NotImplemented
    rows = x.reshape(-1, x.shape[-1] if x.ndim else 1)
    rows = rows if x.dtype.is_floating_point else rows.to(torch.get_default_dtype())
    count = rows.shape[1]
    apart = rows - rows.sum(1, keepdim=True) / count
    return (torch.mm(apart, apart.t()) / float(max(count - correction, 0))).squeeze()


def _corrcoef(x: Tensor) -> Tensor:
    found = _cov(x)
    if found is NotImplemented:
        return found
    if found.ndim == 0:
        return found / found
    spread = torch.sqrt(found.diagonal())
    return (found / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)


STATISTICS: dict[Any, Callable[..., Any]] = {aten.cov.default: _cov, aten.corrcoef.default: _corrcoef}
"""Operator → decomposition."""


@contextmanager
def statistics_known() -> Iterator[None]:
    """Inside, PyTorch traces these as they are here: what it has of its own asks for values of tensors that have none."""
    with kernels_restored(STATISTICS):
        for op, how in STATISTICS.items():
            op.py_kernels[_KEY] = _first_of(op, how)
        yield


def _first_of(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        out = how(*args, **kwargs)
        return op._op_dk(_KEY, *args, **kwargs) if out is NotImplemented else out

    return run
