"""Images: patches, token mixing, inverted bottlenecks, one- and two-dimensional stacks up and down."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.sequence import Encoder

__all__ = ["ConvNeXtBlock", "Conv1dStack", "Decoder", "DiffusionBlock", "InvertedBottleneck", "Mixer", "PatchEncoder", "UNet"]


class PatchEncoder(nn.Module):
    """A vision transformer (arXiv 2010.11929): a convolution as wide as its stride, encoder layers, a head."""

    def __init__(self, patch: int, width: int, heads: int, depth: int, tokens: int):
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.encoder, self.head = Encoder(width, heads, 4 * width, depth), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))


class Mixer(nn.Module):
    """Layers over tokens and layers over channels in turn (arXiv 2105.01601)."""

    def __init__(self, tokens: int, width: int, token_hidden: int, hidden: int, depth: int):
        super().__init__()

        def pair(a: int, b: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, a)) for _ in range(depth))

        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.tokens, self.channels = pair(tokens, token_hidden), pair(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width]."""
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        return x


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution of 7 x 7, a norm over channels, two layers (arXiv 2201.03545)."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


class InvertedBottleneck(nn.Module):
    """Wide, depthwise, squeeze-and-excite, narrow (MobileNetV3, arXiv 1905.02244)."""

    def __init__(self, width: int, factor: int, kernel: int):
        super().__init__()
        inner = width * factor
        self.wide, self.narrow = nn.Conv2d(width, inner, 1, bias=False), nn.Conv2d(inner, width, 1, bias=False)
        self.depthwise = nn.Conv2d(inner, inner, kernel, padding=kernel // 2, groups=inner, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (inner, inner, width))
        self.squeeze, self.excite = nn.Conv2d(inner, inner // 4, 1), nn.Conv2d(inner // 4, inner, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.norms[0](self.wide(x)))
        h = F.hardswish(self.norms[1](self.depthwise(h)))
        h = h * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(h, 1)))))
        return x + self.norms[2](self.narrow(h))


class Conv1dStack(nn.Module):
    """Dilated convolutions of a sequence with residuals (WaveNet's and TCN's form)."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, width, length]."""
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return x


class Decoder(nn.Module):
    """Transposed convolutions from a small map to an image (DCGAN's generator, arXiv 1511.06434)."""

    def __init__(self, *widths: int):
        super().__init__()
        pairs = list(zip(widths, widths[1:], strict=False))
        self.layers = nn.ModuleList(nn.ConvTranspose2d(a, b, 4, stride=2, padding=1) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return torch.tanh(self.layers[-1](x))


class DiffusionBlock(nn.Module):
    """A residual block of a diffusion U-Net: group norms, SiLU, convolutions, a time embedding (arXiv 2006.11239)."""

    def __init__(self, fan_in: int, width: int, time: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, fan_in), nn.GroupNorm(32, width)
        self.conv1, self.conv2 = nn.Conv2d(fan_in, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.skip = nn.Conv2d(fan_in, width, 1) if fan_in != width else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """Two levels down and up, with what was on the way down beside what comes up."""

    def __init__(self, width: int):
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.middle = block(2 * width, 4 * width)
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        held = []
        for block in self.down:
            x = block(x)
            held.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, held.pop()], 1))
        return self.last(x)
