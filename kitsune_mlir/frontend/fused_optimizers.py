"""Steps of optimizers that PyTorch has as one operator over all weights (`fused=True`).

Numbers are kept in f32 where weights are of 16 bits, and rounded once. Where `found_inf` is 1, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["FUSED_OPTIMIZERS"]

aten = torch.ops.aten
Lists = tuple[list[Tensor], ...]


def _step(
    update: Callable[..., Sequence[Tensor]], lists: Sequence[Sequence[Tensor]], scale: Tensor | None, skipped: Tensor | None
) -> Lists:
    """`update` of each weight, its gradient and its state; results are of the types of `lists`, as many of them each.

    Args:
        lists: of weights, of gradients, and of state; lists without elements stay so.
        scale: of the gradients, which are divided by it first.
        skipped: 1 where nothing is to change.
    """
    made: Lists = tuple([] for _ in lists)
    for number in range(len(lists[0])):
        old = [tensors[number] for tensors in lists if tensors]
        wide = [widened(tensor) for tensor in old]
        if scale is not None:
            wide[1] = wide[1] / scale
        new = [value.to(tensor.dtype) for value, tensor in zip(update(*wide), old, strict=True)]
        if skipped is not None:
            new = [torch.where(skipped == 1, before, after) for before, after in zip(old, new, strict=True)]
        values = iter(new)
        for tensors, results in zip(lists, made, strict=True):
            if tensors:
                results.append(next(values))
    return made


def _adam(decoupled: bool) -> Callable[..., Lists]:
    """Adam, or AdamW where the weights' decay is not part of the gradient."""

    def decomposed(
        weights: list[Tensor],
        grads: list[Tensor],
        means: list[Tensor],
        squares: list[Tensor],
        largest: list[Tensor],
        steps: list[Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        counts = iter(steps)

        def update(weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, *most: Tensor) -> list[Tensor]:
            step, unscaled = next(counts), grad
            grad = -grad if maximize else grad
            if weight_decay:
                if decoupled:
                    weight = weight - lr * weight_decay * weight
                else:
                    grad = grad + weight_decay * weight
            mean = mean + (1 - beta1) * (grad - mean)
            square = beta2 * square + (1 - beta2) * grad * grad
            largest = [torch.maximum(each, square) if amsgrad else each for each in most]
            rate = lr / (1 - beta1**step)
            root = (largest[0] if amsgrad else square).sqrt() / (1 - beta2**step).sqrt()
            return [weight - rate * mean / (root + eps), unscaled, mean, square, *largest]

        return _step(update, (weights, grads, means, squares, largest), grad_scale, found_inf)

    return decomposed


def _sgd(
    weights: list[Tensor],
    grads: list[Tensor],
    momenta: list[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    def update(weight: Tensor, grad: Tensor, *state: Tensor) -> list[Tensor]:
        unscaled = grad
        grad = -grad if maximize else grad
        grad = grad + weight_decay * weight if weight_decay else grad
        if state and momentum:
            moving = grad if is_first_step else momentum * state[0] + (1 - dampening) * grad
            grad, state = grad + momentum * moving if nesterov else moving, (moving,)
        return [weight - lr * grad, unscaled, *state]

    return _step(update, (weights, grads, momenta), grad_scale, found_inf)


def _adagrad(
    weights: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    steps: list[Tensor],
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    counts = iter(steps)

    def update(weight: Tensor, grad: Tensor, total: Tensor) -> list[Tensor]:
        step, unscaled = next(counts), grad
        grad = -grad if maximize else grad
        grad = grad + weight_decay * weight if weight_decay else grad
        total = total + grad * grad
        return [weight - lr / (1 + (step - 1) * lr_decay) * grad / (total.sqrt() + eps), unscaled, total]

    return (*_step(update, (weights, grads, sums), grad_scale, found_inf), list(steps))


def _adagrad_by_tensor(*args: Any, **kwargs: Any) -> Lists:
    return _adagrad(*args, **kwargs)[:3]


FUSED_OPTIMIZERS: dict[Any, Callable[..., Lists]] = {
    aten._fused_adam.default: _adam(False),
    aten._fused_adam.tensor_lr: _adam(False),
    aten._fused_adamw.default: _adam(True),
    aten._fused_adamw.tensor_lr: _adam(True),
    aten._fused_sgd.default: _sgd,
    aten._fused_sgd.tensor_lr: _sgd,
    aten._fused_adagrad.default: _adagrad,
    aten._fused_adagrad.tensor_lr: _adagrad_by_tensor,
}
"""Operator → decomposition."""
