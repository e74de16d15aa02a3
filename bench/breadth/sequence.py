"""Recurrences, scans, routing, caches, attention with everything around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["CachedAttention", "Encoder", "LSTMCells", "Mamba", "Recurrent", "RoutedExperts", "Router"]


class Recurrent(nn.Module):
    """`nn.LSTM`, `nn.GRU` or `nn.RNN`; the outputs of all steps."""

    def __init__(self, kind: str, *args: int, **settings: bool | int):
        super().__init__()
        self.net = getattr(nn, kind)(*args, batch_first=True, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[0]


class LSTMCells(nn.Module):
    """Cells called step by step."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.cell, self.hidden = nn.LSTMCell(width, hidden), hidden

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return h


class Router(nn.Module):
    """The two best of the experts, their weights scattered to a dense row, and an einsum of three operands."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        best, index = torch.softmax(self.gate(x), -1).topk(2, -1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, index, best)
        return torch.einsum("te,td,edf->tf", weights, x, self.experts)


class RoutedExperts(nn.Module):
    """Each token to its expert's slots and back: a one-hot dispatch of bounded capacity (Switch, arXiv 2101.03961)."""

    def __init__(self, width: int, hidden: int, experts: int, capacity: int):
        super().__init__()
        self.gate, self.experts, self.capacity = nn.Linear(width, experts, bias=False), experts, capacity
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        probability, expert = torch.softmax(self.gate(x).float(), -1).max(-1)
        chosen = F.one_hot(expert, self.experts)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        kept = place < self.capacity
        slot = expert * self.capacity + place.clamp(max=self.capacity - 1)
        slots = x.new_zeros(self.experts * self.capacity, x.shape[1]).index_add(0, slot, x * kept[:, None])
        hidden = F.gelu(torch.bmm(slots.view(self.experts, self.capacity, -1), self.up))
        back = torch.bmm(hidden, self.down).flatten(0, 1)
        return back[slot] * (probability * kept).to(x.dtype)[:, None]


class Mamba(nn.Module):
    """The selective scan of a Mamba block (arXiv 2312.00752) as a cumulative sum in logarithms, with its gates."""

    def __init__(self, width: int, inner: int, states: int):
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.mix = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.parameters_of = nn.Linear(inner, 1 + 2 * states)
        self.decay = nn.Parameter(torch.rand(inner, states))

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.enter(x).chunk(2, -1)
        u = F.silu(self.mix(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.parameters_of(u).split([1, self.decay.shape[1], self.decay.shape[1]], -1)
        step = F.softplus(step)[..., None]
        logs = torch.cumsum(-step * self.decay, 1).clamp(min=-20)
        state = torch.cumsum(step * b[:, :, None] * u[..., None] * torch.exp(-logs), 1) * torch.exp(logs)
        return self.leave((state * c[:, :, None]).sum(-1) * F.silu(gate))


class CachedAttention(nn.Module):
    """One token: rotary positions, grouped heads, and a cache that is written by `index_copy`."""

    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))

    def rotated(self, x: Tensor, angle: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * angle.cos().to(x.dtype) + torch.cat([-b, a], -1) * angle.sin().to(x.dtype)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: [batch, 1, width]; keys, values: [batch, kv_heads, length, size]; position: [1]."""
        n = x.shape[0]
        half = torch.arange(self.size // 2, device=x.device, dtype=torch.float32)
        angle = (position * 10000.0 ** (-half / (self.size // 2))).repeat(2)
        q = self.rotated(self.q(x).view(n, 1, self.heads, self.size).transpose(1, 2), angle)
        k = self.rotated(self.k(x).view(n, 1, self.kv_heads, self.size).transpose(1, 2), angle)
        v = self.v(x).view(n, 1, self.kv_heads, self.size).transpose(1, 2)
        keys, values = keys.index_copy(2, position, k), values.index_copy(2, position, v)
        mask = torch.arange(keys.shape[2], device=x.device) <= position
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None, None, None], enable_gqa=True)
        return self.o(out.transpose(1, 2).reshape(n, 1, -1)), keys, values


class Encoder(nn.Module):
    """Layers of `nn.TransformerEncoderLayer`'s form, norms first or last, written without its fast path."""

    def __init__(self, width: int, heads: int, hidden: int, depth: int, first: bool = True, causal: bool = False):
        super().__init__()
        self.heads, self.first, self.causal = heads, first, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.qs, self.ks, self.vs, self.os = (nn.ModuleList(nn.Linear(width, width) for _ in range(depth)) for _ in range(4))
        self.ups = nn.ModuleList(nn.Linear(width, hidden) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(hidden, width) for _ in range(depth))

    def attend(self, i: int, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (layers[i](x).view(shape).transpose(1, 2) for layers in (self.qs, self.ks, self.vs))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.os[i](out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width]."""
        for i in range(len(self.ups)):
            if self.first:
                x = x + self.attend(i, self.norms[2 * i](x))
                x = x + self.downs[i](F.gelu(self.ups[i](self.norms[2 * i + 1](x))))
            else:
                x = self.norms[2 * i](x + self.attend(i, x))
                x = self.norms[2 * i + 1](x + self.downs[i](F.gelu(self.ups[i](x))))
        return x
