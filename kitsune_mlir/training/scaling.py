"""What a `torch.amp.GradScaler` does, on its device: gradients divided by the scale, updates skipped, the next scale."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.errors import UnsupportedError

__all__ = ["next_scale", "prepared", "scaling_constants", "skipping", "unscaled"]


def prepared(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """See that the tensors of a scaler are there, which it makes when it is first used."""
    if getattr(scaler, "_scale", None) is None:
        device = next(p.device for group in optimizer.param_groups for p in group["params"])
        scaler._lazy_init_scale_growth_tracker(device)


def scaling_constants(scaler: torch.amp.GradScaler | None) -> Any:
    """What of a scaler are constants of a graph."""
    if scaler is None:
        return None
    return scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval(), scaler._scale is None


def unscaled(scaler: torch.amp.GradScaler, gradients: Sequence[Tensor]) -> Tensor:
    """Divide gradients by the scale, in place; one where one of them has an infinity or no number, else zero.

    Raises:
        UnsupportedError: gradients are f16, which GradScaler refuses.
    """
    if any(gradient.dtype == torch.float16 for gradient in gradients):
        raise UnsupportedError("train_step", "GradScaler takes no f16 gradients: parameters are f32 and the forward is in f16")
    scale: Tensor = scaler._scale  # type: ignore[assignment]
    found = torch.zeros((), dtype=torch.float32, device=scale.device)
    if gradients:
        torch.ops.aten._amp_foreach_non_finite_check_and_unscale_(list(gradients), found, scale.reciprocal())
    return found


@contextlib.contextmanager
def skipping(found: Tensor | None, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """An update is called while it is entered; what it changed is as before where `found` is not zero.

    Raises:
        UnsupportedError: it made state, which a skipped update does not.
    """
    if found is None:
        yield
        return
    before = [(tensor, tensor.clone()) for tensor in _changing(optimizer)]
    yield
    if len(_changing(optimizer)) > len(before):
        raise UnsupportedError("train_step", "the optimizer makes its state in its first update, which GradScaler may skip")
    for tensor, old in before:
        tensor.copy_(torch.where(found != 0, old, tensor))


def _changing(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters that have a gradient, and their state."""
    found = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return found + [v for p in found for v in optimizer.state.get(p, {}).values() if isinstance(v, Tensor)]


def next_scale(scaler: torch.amp.GradScaler, found: Tensor) -> None:
    """What `update()` does."""
    factors = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
    torch._amp_update_scale_(scaler._scale, scaler._growth_tracker, found, *factors)  # type: ignore[arg-type]
