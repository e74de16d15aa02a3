"""The gradient of scaled dot-product attention: four products, with the softmax's gradient in the last step of one of them.

Autograd's own goes through each operator of the softmax, in f32: exponentials, sums and quotients are kept or made again, and
gradients of scores reach two products as f32. Here the probabilities are made again in the operands' type from the logarithm of
each row's sum of exponentials, which forward leaves, and the sum of each row's gradient times probabilities is that of the
result's gradient times the result (FlashAttention, Dao et al. 2022, section 3.1 and appendix B.2), which needs no scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.attention import (
    batched,
    grouped_rows,
    masked_scores,
    probabilities,
    scaled_dot_product_attention,
)
from kitsune_mlir.frontend.attention_dropout import attention_keep, keep_factor, new_seed
from kitsune_mlir.frontend.dtypes import NARROW, widened

__all__ = ["Dropout", "attention_gradients", "attention_with_statistics", "trained_attention"]

DROPPED_INSIDE = {"cuda"}
"""Devices on which dropout can be part of attention."""


def attention_with_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    factor: float,
    dropout: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention, and of each row the logarithm of its sum of exponentials of scores, `[..., H, L]` in f32."""
    rows = grouped_rows(query, key)
    scores = masked_scores(query, key, rows, factor, mask, is_causal, batched)
    weights, statistics = probabilities(scores, query.dtype, mask is not None, dropout)
    out = batched(weights.reshape(*rows.shape[:-1], key.shape[-2]), value)
    return out.reshape(*query.shape[:-1], value.shape[-1]).to(query.dtype), statistics


def attention_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    factor: float,
    out: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    of_statistics: Tensor | None = None,
    dropout: Dropout | None = None,
) -> list[Tensor]:
    """Gradients of query, key and value.

    Args:
        out, statistics: what `attention_with_statistics` gave.
        gradient: of `out`; of_statistics: of `statistics`, which only second derivatives have.
    """
    rows = grouped_rows(query, key)
    columns = key.shape[-2]
    scores = masked_scores(query, key, rows, factor, mask, is_causal, batched)
    weights = torch.exp(scores - statistics.unsqueeze(-1))
    summed = weights if dropout is None else dropout(weights)
    weights, summed = (w.to(query.dtype).reshape(*rows.shape[:-1], columns) for w in (weights, summed))
    given = gradient.reshape(*rows.shape[:-1], value.shape[-1])
    # Of each row: what its probabilities' gradients are less, as they add up to 1.
    mean = (widened(gradient) * widened(out)).sum(-1, keepdim=True)
    mean = (mean if of_statistics is None else mean - of_statistics.unsqueeze(-1)).reshape(*rows.shape[:-1], 1)
    of_weights = batched(given, value.transpose(-2, -1))
    if dropout is not None:
        of_weights = dropout(of_weights.reshape(scores.shape)).reshape(of_weights.shape)
    of_scores = (widened(weights) * (of_weights - mean) * factor).to(query.dtype)
    products = [
        batched(of_scores, key).reshape(query.shape),
        batched(of_scores.transpose(-2, -1), rows),
        batched(summed.transpose(-2, -1), given),
    ]
    return [product.to(query.dtype) for product in products]


class Dropout:
    """Keeps probabilities, or their gradients, by a seed.

    Args:
        seed: i64 [].
        p: chance that one is dropped, less than 1.
    """

    def __init__(self, seed: Tensor, p: float):
        self.seed, self.p = seed, p

    def __call__(self, weights: Tensor) -> Tensor:
        """Those of `[..., L, S]` that are kept, by one over their chance; 0 for the others."""
        return torch.where(attention_keep(self.seed, list(weights.shape), self.p), weights * keep_factor(self.p), 0.0)


class _Attention(torch.autograd.Function):
    """Attention of which the mask has no gradient, and its statistics, through which second derivatives go, too.

    `factor` is that of the scores; `seed` and `p` are those of its dropout, if there is a seed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        factor: float,
        seed: Tensor | None,
        p: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.is_causal, ctx.factor, ctx.p = is_causal, factor, p
        ctx.set_materialize_grads(False)
        dropout = None if seed is None else Dropout(seed, p)
        out, statistics = attention_with_statistics(query, key, value, mask, is_causal, factor, dropout)
        ctx.save_for_backward(query, key, value, out, statistics, mask, seed)
        return out, statistics

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        query, key, value, out, statistics, mask, seed = ctx.saved_tensors
        dropout = None if seed is None else Dropout(seed, ctx.p)
        gradient, of_statistics = gradients
        gradient = torch.zeros_like(out) if gradient is None else gradient
        given = (mask, ctx.is_causal, ctx.factor, out, statistics, gradient, of_statistics, dropout)
        return *attention_gradients(query, key, value, *given), None, None, None, None, None


def trained_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    dropout_inside: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` with a gradient of its own; arguments and results are the same.

    A mask that is trained, and operands whose leading dimensions differ, have autograd's. With
    `dropout_inside` dropout of 16-bit operands on a GPU is part of it, of a seed from PyTorch's generator: repeatable, but not
    eager's numbers. Else attention with dropout is PyTorch's.
    """
    given = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    operands = (query, key, value)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    alike = query.ndim == key.ndim == value.ndim > 2 and query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
    alike = alike and key.shape[-3] == value.shape[-3] and (enable_gqa or query.shape[-3] == key.shape[-3])
    one_type = query.dtype == key.dtype == value.dtype and query.dtype.is_floating_point
    inside = dropout_inside and query.device.type in DROPPED_INSIDE and query.dtype in NARROW and dropout_p < 1
    inside = inside or dropout_p == 0
    if not trained or not inside or not alike or not one_type or (attn_mask is not None and attn_mask.requires_grad):
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, **given)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    seed = new_seed(query) if dropout_p > 0 else None
    return _Attention.apply(query, key, value, attn_mask, is_causal, factor, seed, dropout_p)[0]  # type: ignore[no-any-return]
