"""What random models are made of: sizes, and the layers that several families have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from test.numerics.recorded import Recorder, Value

__all__ = ["ACTIVATIONS", "F", "LARGE", "SMALL", "Sizes", "act", "decided", "heads_of", "linear", "mlp", "norm", "sizes_of"]

F = "torch.nn.functional."
ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid", "tanh", "softplus", "elu", "leaky_relu", "mish", "hardswish")


@dataclass(frozen=True)
class Sizes:
    """What sizes are drawn from.

    Attributes:
        rows, widths: of row layers. batch, lengths: of sequences. nodes, edges: of graphs. table: rows of embeddings.
        images, channels, side: number, channels, and the range of heights and widths.
        most: elements of a tensor.
    """

    rows: Sequence[int]
    widths: Sequence[int]
    batch: Sequence[int]
    lengths: Sequence[int]
    nodes: Sequence[int]
    edges: Sequence[int]
    table: Sequence[int]
    images: Sequence[int]
    channels: Sequence[int]
    side: tuple[int, int]
    most: int


SMALL = Sizes(
    rows=(1, 3, 7, 17, 63, 64, 100, 128, 129, 256, 257, 512, 1000, 2048),
    widths=(1, 2, 3, 7, 8, 16, 27, 32, 63, 64, 65, 96, 128, 129, 130),
    batch=(1, 1, 2, 3, 7),
    lengths=(1, 3, 7, 8, 17, 33, 63, 64),
    nodes=(1, 3, 8, 17, 50, 129),
    edges=(1, 5, 16, 77, 200, 300),
    table=(1, 7, 50, 129, 1000),
    images=(1, 1, 2, 3),
    channels=(1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 31, 32, 33),
    side=(3, 18),
    most=1 << 21,
)
LARGE = Sizes(
    rows=(2048, 4096, 5000, 10_000, 16_384, 65_536),
    widths=(3, 27, 32, 63, 64, 65, 96, 128, 129, 192, 256, 320, 512),
    batch=(4, 8, 16, 32),
    lengths=(64, 100, 128, 129, 256, 512),
    nodes=(5000, 10_000, 20_000),
    edges=(40_000, 100_000),
    table=(1000, 10_000, 100_000),
    images=(4, 8, 16, 32),
    channels=(3, 16, 24, 32, 48, 63, 64, 96, 128),
    side=(14, 64),
    most=1 << 26,
)


def sizes_of(m: Recorder) -> Sizes:
    """Those of a model."""
    return LARGE if m.large else SMALL


def linear(r: random.Random, m: Recorder, x: Value, width: int, bias: float = 0.6) -> Value:
    """A linear layer over the last dimension, with a bias as often as `bias` says."""
    added = m.weight(width, dtype=x.dtype, fan=9) if r.random() < bias else None
    return m(F + "linear", x, m.weight(width, x.shape[-1], dtype=x.dtype), added)


def act(r: random.Random, m: Recorder, x: Value) -> Value:
    """Any activation."""
    return m(F + r.choice(ACTIVATIONS), x)


def mlp(r: random.Random, m: Recorder, x: Value, *widths: int) -> Value:
    """Linear layers with activations between them."""
    for number, width in enumerate(widths):
        x = linear(r, m, act(r, m, x) if number else x, width)
    return x


def norm(r: random.Random, m: Recorder, x: Value) -> Value:
    """RMS or layer norm of the last dimension, or one written out."""
    width, kind = x.shape[-1], r.choice(("rms", "layer", "layer", "own", "unit"))
    w = m.weight(width, dtype=x.dtype, around=1.0, fan=10)
    if kind == "rms":
        return m(F + "rms_norm", x, (width,), w, 1e-5)
    if kind == "own":  # as language models write it, in f32
        wide = m("torch.Tensor.to", x, torch.float32)
        mean = m("torch.mean", m("torch.pow", wide, 2), -1, keepdim=True)
        return m(
            "torch.mul", w, m("torch.Tensor.type_as", m("torch.mul", wide, m("torch.rsqrt", m("torch.add", mean, 1e-5))), w)
        )
    if kind == "unit":
        return m(F + "normalize", x, dim=-1)
    return m(F + "layer_norm", x, (width,), *((w, m.weight(width, dtype=x.dtype, fan=10)) if r.random() < 0.8 else ()))


def heads_of(r: random.Random, m: Recorder, x: Value, heads: int, size: int) -> Value:
    """Heads [batch, heads, length, size] of rows [batch, length, width]."""
    y = linear(r, m, x, heads * size)
    return m("torch.transpose", m("torch.reshape", y, (*x.shape[:2], heads, size)), 1, 2)


def decided(m: Recorder, x: Value, dim: int = -1) -> bool:
    """Whether the order of numbers along a dimension cannot depend on rounding: they are exact, or f32 and far enough apart."""
    if x.exact or m.large:  # few of the many
        return x.exact or x.dtype == torch.float32
    if x.dtype != torch.float32 or not bool(torch.isfinite(x.sample).all()):
        return False
    gaps = x.sample.sort(dim).values.diff(dim=dim).abs()
    return gaps.numel() == 0 or bool(gaps.min() > 1e-4 * x.sample.abs().max())
