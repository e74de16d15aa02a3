"""Histograms: elements are counted in many copies of the bins, so that neighbours do not wait for each other, then added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["HISTOGRAMS"]

aten = torch.ops.aten
COUNTERS = 1 << 16
"""Of all copies together."""


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Of integers too, which PyTorch has on GPUs alone: there all is counted in integers."""
    exact = not x.dtype.is_floating_point
    if x.dtype in (torch.bool, torch.complex64, torch.complex128) or not x.numel() or bins < 1:
        return NotImplemented
    if exact:
        min, max = int(min), int(max)
    values = (x.to(torch.int64) if exact else widened(x)).reshape(-1)
    if min == max:
        least, most = values.amin(), values.amax()
        apart = (most == least).to(values.dtype)
        least, most = least - apart, most + apart
    else:
        least, most = values.new_full((), min), values.new_full((), max)
    inside = (values >= least) & (values <= most)
    far, span = values - least, most - least
    place = (torch.div(far * bins, span, rounding_mode="floor") if exact else (far / span * bins).floor()).clamp(0, bins - 1)
    copies = COUNTERS // bins if bins < COUNTERS else 1
    copy = torch.arange(values.numel(), device=x.device) % copies
    place = torch.where(inside, place, 0).to(torch.int64) + copy * bins
    counts = values.new_zeros(copies * bins).index_add(0, place, inside.to(values.dtype))
    return counts.reshape(copies, bins).sum(0).to(x.dtype)


HISTOGRAMS: dict[Any, Callable[..., Any]] = {aten.histc.default: _histc}
"""Operator → decomposition."""
