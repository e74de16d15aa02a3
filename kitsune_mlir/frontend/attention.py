"""Scaled dot-product attention as two batched products with a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["batched", "grouped_rows", "masked_scores", "probabilities", "scaled_dot_product_attention"]


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
    rows = grouped_rows(query, key) if enable_gqa else query
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = masked_scores(query, key, rows, factor, attn_mask, is_causal)
    weights, _ = probabilities(scores, query.dtype, attn_mask is not None)
    weights = weights.reshape(*rows.shape[:-1], key.shape[-2])
    out = torch.matmul(widened(weights), widened(value))
    return out.reshape(*query.shape[:-1], value.shape[-1]).to(query.dtype)


def grouped_rows(query: Tensor, key: Tensor) -> Tensor:
    """`[..., G, H/G*L, E]` of a query `[..., H, L, E]`: the heads that share keys become more rows of one product.

    Nothing is repeated in memory.
    """
    heads = key.shape[-3]
    if query.shape[-3] == heads:
        return query
    return query.reshape(*query.shape[:-3], heads, query.shape[-3] // heads * query.shape[-2], query.shape[-1])


def batched(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, `[..., m, k]` by `[..., k, n]` of the same leading dimensions, in f32, as one batched product."""
    found = torch.bmm(widened(a).reshape(-1, *a.shape[-2:]), widened(b).reshape(-1, *b.shape[-2:]))
    return found.reshape(*a.shape[:-1], b.shape[-1])


def masked_scores(
    query: Tensor,
    key: Tensor,
    rows: Tensor,
    factor: float,
    attn_mask: Tensor | None,
    is_causal: bool,
    product: Callable[[Tensor, Tensor], Tensor] = torch.matmul,
) -> Tensor:
    """Scaled and masked scores `[..., H, L, S]` in f32.

    Args:
        rows: the query, or `grouped_rows` of it.
        factor: of the scores.
        product: of rows and keys.
    """
    length, columns = query.shape[-2], key.shape[-2]
    scores = product(widened(rows), widened(key).transpose(-2, -1)) * factor
    scores = scores.reshape(*scores.shape[:-3], query.shape[-3], length, columns) if rows is not query else scores
    if is_causal:
        row = torch.arange(length, device=query.device).unsqueeze(1)
        column = torch.arange(columns, device=query.device).unsqueeze(0)
        scores = torch.where(column <= row, scores, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, float("-inf"))
        else:
            scores = scores + widened(attn_mask)
    return scores


def probabilities(
    scores: Tensor, dtype: torch.dtype, guarded: bool, dropout: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The softmax of scores in `dtype`, and the logarithm of each row's sum of exponentials in f32.

    Args:
        scores: `[..., H, L, S]`.
        guarded: rows of minus infinity have probabilities of 0, and infinity for the logarithm.
        dropout: what becomes of the softmax before it is rounded.
    """
    top = torch.amax(scores, -1, keepdim=True)
    if guarded:
        top = torch.where(top == float("-inf"), 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    statistics = top + torch.log(total)
    if guarded:
        statistics = torch.where(total == 0, float("inf"), statistics)
        total = torch.where(total == 0, 1.0, total)
    weights = weights / total
    return (weights if dropout is None else dropout(weights)).to(dtype), statistics.squeeze(-1)
