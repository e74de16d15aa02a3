"""Published models at their full depth, in plain PyTorch, with the layers of the zoo: what compile time is measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.modules import BertLayer, LlamaStack

__all__ = ["MODELS", "Bert", "Gpt2", "ResNet", "ViT", "layers"]


class Bert(nn.Module):
    """BERT (arXiv 1810.04805): embeddings, encoder layers, and the first token's pooled row."""

    def __init__(self, depth: int, width: int, heads: int, words: int = 30522, positions: int = 512):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, 4 * width) for _ in range(depth))
        self.pooler = nn.Linear(width, width)

    def forward(self, tokens: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(places) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Attention(nn.Module):
    """Self-attention with q, k and v of one product, as ViT and GPT-2 have it."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(a.transpose(1, 2).reshape(batch, tokens, width))


class PreNormLayer(nn.Module):
    """A layer whose norms come first."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.form = "tanh" if causal else "none"

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate=self.form))


class Gpt2(nn.Module):
    """GPT-2's decoder and its product with the embedding."""

    def __init__(self, depth: int, width: int, heads: int, words: int = 50257, positions: int = 1024):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.layers = nn.ModuleList(PreNormLayer(width, heads, causal=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.words.weight.t()


class ViT(nn.Module):
    """A vision transformer (arXiv 2010.11929) with a class token."""

    def __init__(self, depth: int, width: int, heads: int, size: int = 224, patch: int = 16, classes: int = 1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(PreNormLayer(width, heads, causal=False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, channels: int, middle: int, stride: int):
        super().__init__()
        out = 4 * middle
        shapes = [(channels, middle, 1, 1), (middle, middle, 3, stride), (middle, out, 1, 1)]
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, k, s, padding=k // 2, bias=False), nn.BatchNorm2d(o)) for i, o, k, s in shapes
        )
        other = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if channels == out and stride == 1 else other

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.convolutions
        return F.relu(third(F.relu(second(F.relu(first(x))))) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet (arXiv 1512.03385) of bottlenecks: depths [3, 4, 6, 3] are ResNet-50."""

    def __init__(self, depths: Sequence[int], classes: int = 1000):
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        blocks, channels = [], 64
        for level, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(channels, 64 << level, 2 if level and not number else 1))
                channels = 256 << level
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean((2, 3)))


def layers(depth: int, width: int = 768, heads: int = 12, tokens: int = 128) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """So many equal layers and nothing else."""
    return nn.Sequential(*(PreNormLayer(width, heads, causal=False) for _ in range(depth))), (torch.randn(1, tokens, width),)


def _bert(depth: int, width: int, heads: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    tokens = torch.zeros(1, 128, dtype=torch.int64)
    return Bert(depth, width, heads), (tokens, tokens, torch.ones(1, 128, dtype=torch.bool))


MODELS: Mapping[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "bert_base": lambda: _bert(12, 768, 12),
    "vit_s": lambda: (ViT(12, 384, 6), (torch.randn(1, 3, 224, 224),)),
    "gpt2": lambda: (Gpt2(12, 768, 12), (torch.zeros(1, 128, dtype=torch.int64),)),
    "resnet50": lambda: (ResNet([3, 4, 6, 3]), (torch.randn(1, 3, 224, 224),)),
    "llama_4": lambda: (LlamaStack(4, 2048, 32, 8, 8192), (torch.randn(1, 128, 2048),)),
    "layers_12": lambda: layers(12),
    "layers_48": lambda: layers(48),
    "small_layers": lambda: layers(2, 32, 2, 16),
}
"""Models with example arguments, in f32, by name."""
