"""Scaled dot-product attention as two batched products with a softmax between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Decomposition of `aten.scaled_dot_product_attention`.

    Args:
        query: `[..., H, L, E]`.
        key: `[..., G, S, E]`; `G` divides `H` and differs from it only under `enable_gqa`.
        value: `[..., G, S, V]`.
        attn_mask: bool (true: attend) or added to the scores; broadcasts to `[..., H, L, S]`.
        dropout_p: must be 0; anything else is left as it is.
        is_causal: row i attends to columns 0…i.
        scale: factor of the scores; `1/sqrt(E)` if None.
        enable_gqa: `H/G` query heads share a head of key and value.

    Returns:
        `[..., H, L, V]` in the query's type. Scores and softmax are f32; the probabilities are rounded to the query's
        type before the second product, so that both products are ones of narrow operands accumulated in f32. A row
        whose scores are all masked gives zeros.
    """
    if dropout_p > 0 or query.ndim < 2 or query.dtype.is_complex:
        return NotImplemented
    dtype = query.dtype
    narrow = dtype in (torch.bfloat16, torch.float16)
    length, width = query.shape[-2], query.shape[-1]
    columns = key.shape[-2]
    factor = 1.0 / math.sqrt(width) if scale is None else scale

    def wide(x: Tensor) -> Tensor:
        return x.to(torch.float32) if narrow else x

    rows = query
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        # The heads that share keys become more rows of one product: nothing is repeated in memory.
        group = query.shape[-3] // key.shape[-3]
        rows = query.reshape(*query.shape[:-3], key.shape[-3], group * length, width)

    scores = torch.matmul(wide(rows), wide(key).transpose(-2, -1)) * factor
    scores = scores.reshape(*scores.shape[:-3], query.shape[-3], length, columns) if rows is not query else scores
    if is_causal:
        row = torch.arange(length, device=query.device).unsqueeze(1)
        column = torch.arange(columns, device=query.device).unsqueeze(0)
        scores = torch.where(column <= row, scores, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, float("-inf"))
        else:
            scores = scores + wide(attn_mask)

    top = torch.amax(scores, -1, keepdim=True)
    if attn_mask is not None:
        top = torch.where(top == float("-inf"), 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if attn_mask is not None:
        total = torch.where(total == 0, 1.0, total)
    weights = (weights / total).to(dtype)
    if rows is not query:
        weights = weights.reshape(*rows.shape[:-1], columns)
    out = torch.matmul(wide(weights), wide(value))
    return out.reshape(*query.shape[:-1], value.shape[-1]).to(dtype)
