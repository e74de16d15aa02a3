"""Models that are written to files of other frameworks and read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["MODELS", "fresh"]


class Written(nn.Module):
    """A function of a module's parts and of tensors."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.run(self, *args)


class Block(nn.Module):
    """A transformer's block with causal attention."""

    def __init__(self, width: int = 24, heads: int = 3):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.first(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


def images() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm.get_buffer("running_mean").normal_()
    norm.get_buffer("running_var").uniform_(0.5, 2)
    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 129)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm, nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, 1, 1, groups=8), *last)


def halves(x: torch.Tensor) -> Any:
    return x[:, 1:7:2].flip(1), F.pad(x, (1, 2), value=3.0), x.cumsum(1), x.std(-1), x.logsumexp(-1)


R = torch.randn
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(7, 129), nn.ReLU(), nn.Linear(129, 1000)), lambda: (R(5, 7),)),
    "block": (Block, lambda: (R(2, 9, 24),)),
    "images": (images, lambda: (R(2, 3, 17, 13),)),
    "lookups": (lambda: Written(lambda m, i: m.e(i).mean(1), e=nn.Embedding(31, 12)), lambda: (torch.randint(0, 31, (4, 7)),)),
    "two": (lambda: Written(lambda m, x, y: (x @ y, (x + 1).sum(0), torch.where(x > 0, x, -x))), lambda: (R(7, 5), R(5, 9))),
    "same": (lambda: Written(lambda m, x: (x * 2, x * 2, x)), lambda: (R(3, 4),)),
    "moves": (lambda: Written(lambda m, x: halves(x)), lambda: (R(4, 9),)),
    "bilinear": (
        lambda: Written(lambda m, x: F.interpolate(x, size=(9, 11), mode="bilinear", align_corners=False)),
        lambda: (R(1, 3, 5, 7),),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), lambda: (R(2, 4, 5, 6),)),
    "gather": (lambda: Written(lambda m, x, i: x.gather(1, i)), lambda: (R(4, 9), torch.randint(0, 9, (4, 3)))),
    "groups": (lambda: nn.GroupNorm(2, 6), lambda: (R(2, 6, 5, 4),)),
    "lstm": (lambda: Written(lambda m, x: m.l(x)[0], l=nn.LSTM(5, 6, batch_first=True)), lambda: (R(2, 4, 5),)),
    "gru": (lambda: Written(lambda m, x: m.l(x)[0], l=nn.GRU(5, 6, batch_first=True)), lambda: (R(2, 4, 5),)),
    "bf16": (lambda: nn.Linear(8, 16).bfloat16(), lambda: (R(4, 8).bfloat16(),)),
    "f16": (lambda: nn.Linear(8, 16).half(), lambda: (R(4, 8).half(),)),
    "f64": (lambda: nn.Linear(8, 16).double(), lambda: (R(4, 8).double(),)),
    "tables": (
        lambda: Written(lambda m, x: x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor([[1, 2, 3]])),
        lambda: (R(4, 3),),
    ),
    "truths": (lambda: Written(lambda m, x: ((x > 0) & (x < 1)).any(1)), lambda: (R(4, 7),)),
}
"""By name, what makes a model and what makes its arguments."""


def fresh(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A model with random weights, and two sets of arguments."""
    make, arguments = MODELS[name]
    torch.manual_seed(len(name))
    return make().eval().requires_grad_(False), arguments(), arguments()
