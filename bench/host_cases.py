"""The cases of `bench.host`: models and small nets at sizes that fit a processor. The list stands before anything is tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.fields import HashGridField, PointNet, RadialBasis, Siren, SwiGLURows
from bench.breadth.graphs import EdgeConv, GraphAttention, MeanStep, MeshSteps, ScatterStep
from bench.breadth.recommenders import BagDLRM, CrossNetwork, DeepFM, TableDLRM
from bench.breadth.sequence import Encoder, Mamba, Recurrent, Router
from bench.breadth.vision import Conv1dStack, ConvNeXtBlock, Decoder, DiffusionBlock, InvertedBottleneck, Mixer, UNet
from bench.models import Maker
from bench.modules import LlamaStack, NeRF, mlp
from bench.whole_models import Bert, ViT

__all__ = ["HOST_CASES", "HostCase", "MobileNet", "ResNet18"]

Draw = Callable[[Maker], tuple[Tensor, ...]]


@dataclass(frozen=True)
class HostCase:
    """A model and its inputs; `small`: one of the small nets."""

    name: str
    build: Callable[[], nn.Module]
    draw: Draw
    small: bool

    def make(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """PyTorch's own initialisation and normal inputs, from a seed."""
        torch.manual_seed(0)
        model = self.build().eval().requires_grad_(False).to(dtype)
        return model, self.draw(Maker(dtype, "cpu"))


class BasicBlock(nn.Module):
    """ResNet's block of two convolutions of 3 x 3."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out))
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        other = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if channels == out and stride == 1 else other

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 (arXiv 1512.03385)."""

    def __init__(self) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [BasicBlock(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:], strict=False)]
        self.body, self.head = nn.Sequential(*stem, *blocks), nn.Linear(512, 1000)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean((2, 3)))


class MobileBlock(nn.Module):
    """MobileNetV3's block: wide, depthwise, squeeze-and-excite or not, narrow."""

    def __init__(self, channels: int, kernel: int, inner: int, out: int, squeeze: bool, hard: bool, stride: int):
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        wider = nn.Sequential(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), act())
        self.wide = nn.Identity() if inner == channels else wider
        spatial = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False)
        self.depthwise = nn.Sequential(spatial, nn.BatchNorm2d(inner), act())
        self.narrow = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
        less = max(8, (inner // 4 + 4) // 8 * 8)
        gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, less, 1), nn.ReLU(), nn.Conv2d(less, inner, 1))
        self.gate = gate if squeeze else None
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(self.wide(x))
        if self.gate is not None:
            h = h * F.hardsigmoid(self.gate(h))
        return x + self.narrow(h) if self.residual else self.narrow(h)


class MobileNet(nn.Module):
    """MobileNetV3-small (arXiv 1905.02244)."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [
            (16, 3, 16, 16, True, False, 2), (16, 3, 72, 24, False, False, 2), (24, 3, 88, 24, False, False, 1),
            (24, 5, 96, 40, True, True, 2), (40, 5, 240, 40, True, True, 1), (40, 5, 240, 40, True, True, 1),
            (40, 5, 120, 48, True, True, 1), (48, 5, 144, 48, True, True, 1), (48, 5, 288, 96, True, True, 2),
            (96, 5, 576, 96, True, True, 1), (96, 5, 576, 96, True, True, 1),
        ]  # fmt: skip
        first = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
        last = [nn.Conv2d(96, 576, 1, bias=False), nn.BatchNorm2d(576), nn.Hardswish()]
        self.body = nn.Sequential(*first, *(MobileBlock(*shape) for shape in shapes), *last)
        self.head = nn.Sequential(nn.Linear(576, 1024), nn.Hardswish(), nn.Linear(1024, 1000))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean((2, 3)))


NODES, EDGES = 2000, 12_000


def _normal(*shape: int) -> Draw:
    return lambda m: (m.normal(*shape),)


def _graph(width: int) -> Draw:
    return lambda m: (m.normal(NODES, width), m.below(NODES, 2, EDGES))


def _mesh(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(NODES, 64), m.normal(EDGES, 64), m.below(NODES, 2, EDGES)


def _attention(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(NODES, 64), m.below(NODES, EDGES), m.below(NODES, EDGES)


def _words(m: Maker) -> tuple[Tensor, ...]:
    return m.below(5000, 1, 128), m.below(2, 1, 128), torch.arange(128)[None] < 120


def _token(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(1, 1, 512), *(m.normal(1, 4, 256, 64) for _ in range(8))


def _bags(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(256, 13), m.below(2000, 26, 256, 4)


def _tables(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(256, 13), m.below(2000, 256, 26)


def _views(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(1024, 60), m.normal(1024, 24)


def _noisy(m: Maker) -> tuple[Tensor, ...]:
    return m.normal(1, 64, 32, 32), m.normal(1, 256)


def _cases(small: bool, *cases: tuple[str, Callable[[], nn.Module], Draw]) -> list[HostCase]:
    return [HostCase(*case, small) for case in cases]


HOST_CASES = [
    *_cases(
        False,
        ("bert_4x128", lambda: Bert(4, 768, 12, words=5000), _words),
        ("llama_4x128", lambda: LlamaStack(4, 512, 8, 4, 1408), _normal(1, 128, 512)),
        ("llama_4x1", lambda: LlamaStack(4, 512, 8, 4, 1408), _token),
        ("vit_tiny", lambda: ViT(12, 192, 3), _normal(1, 3, 224, 224)),
        ("resnet18", ResNet18, _normal(1, 3, 224, 224)),
        ("mobilenet_v3", MobileNet, _normal(1, 3, 224, 224)),
        ("convnext_96", lambda: nn.Sequential(ConvNeXtBlock(96), ConvNeXtBlock(96)), _normal(1, 96, 56, 56)),
        ("unet_16", lambda: UNet(16), _normal(1, 3, 128, 128)),
        ("diffusion_64", lambda: DiffusionBlock(64, 128, 256), _noisy),
        ("mixer_196", lambda: Mixer(196, 384, 192, 1536, 2), _normal(1, 196, 384)),
        ("dlrm_bags", lambda: BagDLRM(26, 2000, 64), _bags),
        ("mesh_step_64", lambda: MeshSteps(64, 1), _mesh),
        ("mamba_256", lambda: Mamba(256, 512, 16), _normal(1, 128, 256)),
        ("lstm_2x256", lambda: Recurrent("LSTM", 256, 256, num_layers=2), _normal(4, 32, 256)),
    ),
    *_cases(
        True,
        ("mlp_b1", lambda: mlp(64, 128, 128, 10), _normal(1, 64)),
        ("mlp_b64", lambda: mlp(64, 128, 128, 10), _normal(64, 64)),
        ("nerf_128", lambda: NeRF(60, 24, 128), _views),
        ("siren_96", lambda: Siren(3, 96, 5, 3), _normal(1024, 3)),
        ("radial_basis", lambda: RadialBasis(7, 64, 64), _normal(1024, 7)),
        ("hash_grid", lambda: HashGridField(16, 1 << 14, 2, 64), lambda m: (torch.rand(1024, 3),)),
        ("pointnet", PointNet, _normal(1, 256, 3)),
        ("swiglu_rows_129", lambda: SwiGLURows(129, 340, 2), _normal(128, 129)),
        ("mean_step_64", lambda: MeanStep(64), _graph(64)),
        ("scatter_sum_64", lambda: ScatterStep(64, "sum"), _graph(64)),
        ("scatter_mean_63", lambda: ScatterStep(63, "mean"), _graph(63)),
        ("scatter_amax_64", lambda: ScatterStep(64, "amax"), _graph(64)),
        ("edge_conv_64", lambda: EdgeConv(64), _graph(64)),
        ("graph_attention_64", lambda: GraphAttention(64), _attention),
        ("dlrm_tables", lambda: TableDLRM(26, 2000, 16), _tables),
        ("cross_429", lambda: CrossNetwork(429, 3), _normal(64, 429)),
        ("deep_fm", lambda: DeepFM(39, 500, 10), lambda m: (m.below(500, 256, 39),)),
        ("gru_64", lambda: Recurrent("GRU", 64, 64), _normal(8, 16, 64)),
        ("router_128", lambda: Router(128, 8), _normal(256, 128)),
        ("conv1d_32", lambda: Conv1dStack(32, 4), _normal(2, 32, 512)),
        ("decoder_64", lambda: Decoder(64, 32, 16, 3), _normal(1, 64, 8, 8)),
        ("inverted_40", lambda: InvertedBottleneck(40, 4, 5), _normal(1, 40, 28, 28)),
        ("encoder_96", lambda: Encoder(96, 4, 384, 2), _normal(1, 65, 96)),
    ),
]
