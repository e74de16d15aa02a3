"""Attention in all its forms, and the layers around it; recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from test.gpu.operators.case import BF16, F16, F32, Case, Input, floats

__all__ = ["CASES"]

CASES: dict[str, Case] = {}


def _attention(b: int, h: int, g: int, m: int, n: int, d: int, dtype: torch.dtype = BF16, **numbers) -> Case:
    """Grouped where there are fewer key heads (g) than query heads (h)."""
    inputs = [floats(b, h, m, d, dtype=dtype), floats(b, g, n, d, dtype=dtype), floats(b, g, n, d, dtype=dtype)]
    return Case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=g != h, **numbers), inputs, dtype=dtype)


def _masked(mask: Input, h: int = 4, m: int = 27, n: int = 129, d: int = 64, dtype: torch.dtype = BF16) -> Case:
    inputs = [floats(2, h, m, d, dtype=dtype), floats(2, h, n, d, dtype=dtype), floats(2, h, n, d, dtype=dtype), mask]
    return Case(lambda q, k, v, a: F.scaled_dot_product_attention(q, k, v, attn_mask=a), inputs, dtype=dtype)


def _some(*shape: int) -> Input:
    """Flags of which each row has one that is set."""

    def make(device: str) -> Tensor:
        made = torch.rand(*shape, device=device) < 0.5
        made[..., 0] = True
        return made

    return make


def _cached(q: Tensor, k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, torch.cat([old_k, k], 2), torch.cat([old_v, v], 2), enable_gqa=True)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * angles.cos() - right * angles.sin(), left * angles.sin() + right * angles.cos()], -1)


def _own_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT / 8.0).masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ v


for _d in (32, 64, 80, 96, 128, 192, 256):
    CASES[f"attention_d{_d}"] = _attention(2, 3, 3, 129, 129, _d, is_causal=True)
CASES |= {
    "attention_plain": _attention(2, 4, 4, 128, 128, 64),
    "attention_f16": _attention(2, 4, 4, 128, 128, 64, F16, is_causal=True),
    "attention_f32": _attention(2, 4, 4, 27, 129, 64, F32),
    "attention_f32_causal": _attention(1, 2, 2, 129, 129, 64, F32, is_causal=True),
    "attention_odd": _attention(1, 3, 3, 7, 13, 64),
    "attention_d13": _attention(1, 3, 3, 27, 129, 13),
    "attention_one": _attention(1, 1, 1, 1, 1, 64),
    "attention_cross": _attention(2, 4, 4, 27, 1000, 64),
    "attention_grouped": _attention(2, 8, 2, 129, 129, 64, is_causal=True),
    "attention_multi_query": _attention(2, 8, 1, 27, 129, 128),
    "attention_scaled": _attention(2, 4, 4, 27, 129, 64, scale=0.05),
    "attention_decode": _attention(3, 8, 2, 1, 1000, 128),
    "attention_decode_long": _attention(1, 8, 8, 1, 4097, 64),
    "attention_decode_few": _attention(2, 8, 2, 3, 129, 64),
    "attention_values_wide": Case(
        F.scaled_dot_product_attention, [floats(2, 4, 27, 64), floats(2, 4, 129, 64), floats(2, 4, 129, 128)]
    ),
    "attention_mask_bool": _masked(_some(2, 4, 27, 129)),
    "attention_mask_row": _masked(_some(2, 1, 1, 129)),
    "attention_mask_shared": _masked(_some(27, 129)),
    "attention_mask_added": _masked(floats(2, 4, 27, 129)),
    "attention_mask_bias": _masked(floats(1, 4, 27, 129)),
    "attention_mask_f32": _masked(_some(2, 1, 27, 129), dtype=F32),
    "attention_cached": Case(
        _cached, [floats(2, 8, 1, 64), floats(2, 2, 1, 64), floats(2, 2, 1, 64), floats(2, 2, 129, 64), floats(2, 2, 129, 64)]
    ),
    "attention_own_softmax": Case(_own_softmax, [floats(2, 4, 129, 64)] * 3),
    "attention_rotary": Case(
        lambda q, k, v, a: F.scaled_dot_product_attention(_rotated(q, a), _rotated(k, a), v, is_causal=True),
        [floats(2, 4, 27, 64), floats(2, 4, 27, 64), floats(2, 4, 27, 64), floats(27, 32)],
    ),
    "attention_module": Case(
        lambda m, x: m(x, x, x, need_weights=False)[0],
        [floats(3, 27, 64)],
        lambda: [nn.MultiheadAttention(64, 4, batch_first=True)],
    ),
    "attention_weights": Case(
        lambda m, x: m(x, x, x), [floats(3, 27, 64)], lambda: [nn.MultiheadAttention(64, 4, batch_first=True)]
    ),
    "attention_soft_cap": Case(
        lambda q, k, v: torch.softmax(20.0 * torch.tanh(q @ k.mT / 160.0), -1) @ v, [floats(2, 4, 27, 64)] * 3
    ),
    "attention_seq_first": Case(
        lambda q, k, v: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2).flatten(2),
        [floats(2, 129, 4, 64)] * 3,
    ),
    "transformer_layer": Case(
        lambda m, x: m(x),
        [floats(3, 27, 64)],
        lambda: [nn.TransformerEncoderLayer(64, 4, 100, batch_first=True, norm_first=True)],
    ),
    "lstm": Case(lambda m, x: m(x)[0], [floats(3, 5, 13, dtype=F32)], lambda: [nn.LSTM(13, 7, batch_first=True)], dtype=F32),
    "gru": Case(lambda m, x: m(x)[0], [floats(3, 5, 13, dtype=F32)], lambda: [nn.GRU(13, 7, batch_first=True)], dtype=F32),
}
