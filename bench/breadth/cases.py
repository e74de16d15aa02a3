"""The models of the breadth benchmark, each with its inputs. The list stands before anything is tuned for it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.fields import HashGridField, PointNet, RadialBasis, Siren, SwiGLURows
from bench.breadth.graphs import EdgeConv, GraphAttention, MeanStep, MeshSteps, ScatterStep
from bench.breadth.recommenders import DIEN, BagDLRM, CrossNetwork, DeepFM, TableDLRM
from bench.breadth.sequence import CachedAttention, Encoder, LSTMCells, Mamba, Recurrent, RoutedExperts, Router
from bench.breadth.vision import (
    Conv1dStack,
    ConvNeXtBlock,
    Decoder,
    DiffusionBlock,
    InvertedBottleneck,
    Mixer,
    PatchEncoder,
    UNet,
)
from bench.case import DTYPES, BenchCase, Inputs
from bench.models import Maker, default_dtype
from bench.modules import NeRF, mlp
from bench.sweeps import Function

__all__ = ["breadth"]

NODES, EDGES = 20_000, 120_000
Draw = Callable[[Maker], tuple[Tensor, ...]]


def _made(build: Callable[[], nn.Module], draw: Draw, dtype: str, device: str, values: bool) -> Inputs:
    """PyTorch's own initialisation, from a seed."""
    torch.manual_seed(0)
    with default_dtype(DTYPES[dtype]), torch.device(device):
        model = build()
    return model.eval().requires_grad_(False), draw(Maker(DTYPES[dtype], device, values))


def _case(name: str, build: Callable[[], nn.Module], draw: Draw | tuple[int, ...], dtype: str = "bf16") -> BenchCase:
    """A case; `draw` may be the shape of one input."""
    given: Draw = draw if callable(draw) else lambda m: (m.normal(*draw),)
    make = functools.partial(_made, build, given, dtype)
    return BenchCase(f"breadth_{name}", "breadth", make, dtype, goal=1.0, by_eager=True)


def _fields(suffix: str = "", dtype: str = "bf16") -> list[BenchCase]:
    rows = 262_144 if dtype == "bf16" else 65_536
    return [
        _case(f"nerf_63{suffix}", lambda: NeRF(63, 27, 256), lambda m: (m.normal(rows, 63), m.normal(rows, 27)), dtype),
        _case(f"siren_96{suffix}", lambda: Siren(3, 96, 5, 3), (65_536, 3), dtype),
        _case(f"radial_basis{suffix}", lambda: RadialBasis(7, 64, 64), (65_536, 7), dtype),
    ]


def _hash_grid(m: Maker) -> tuple[Tensor, ...]:
    return (torch.rand(65_536, 3, device=m.device),)


def _points() -> list[BenchCase]:
    return [
        _case("hash_grid", lambda: HashGridField(16, 1 << 16, 2, 64), _hash_grid),
        _case("pointnet", PointNet, (16, 1024, 3)),
        _case("swiglu_rows_129", lambda: SwiGLURows(129, 340, 3), (8192, 129)),
        _case("nerf_128", lambda: NeRF(60, 24, 128), lambda m: (m.normal(65_536, 60), m.normal(65_536, 24))),
    ]


def _edges(m: Maker) -> Tensor:
    return m.below(NODES, 2, EDGES)


def _graphs() -> list[BenchCase]:
    def rows(width: int) -> Draw:
        return lambda m: (m.normal(NODES, width), _edges(m))

    def attention(m: Maker) -> tuple[Tensor, ...]:
        return m.normal(NODES, 64), m.below(NODES, EDGES), m.below(NODES, EDGES)

    def mesh(m: Maker) -> tuple[Tensor, ...]:
        return m.normal(NODES, 128), m.normal(EDGES, 128), _edges(m)

    return [
        _case("mean_step_64", lambda: MeanStep(64), rows(64)),
        _case("mean_step_64_f32", lambda: MeanStep(64), rows(64), "f32"),
        _case("scatter_sum_64", lambda: ScatterStep(64, "sum"), rows(64)),
        _case("scatter_mean_63", lambda: ScatterStep(63, "mean"), rows(63)),
        _case("scatter_amax_64", lambda: ScatterStep(64, "amax"), rows(64)),
        _case("edge_conv_64", lambda: EdgeConv(64), rows(64)),
        _case("graph_attention_64", lambda: GraphAttention(64), attention),
        _case("mesh_steps_3", lambda: MeshSteps(128, 3), mesh),
        _case("mesh_step_f32", lambda: MeshSteps(128, 1), mesh, "f32"),
    ]


def _recommenders() -> list[BenchCase]:
    return [
        _case("dlrm_bags", lambda: BagDLRM(26, 10_000, 64), lambda m: (m.normal(2048, 13), m.below(10_000, 26, 2048, 4))),
        _case("dlrm_tables", lambda: TableDLRM(26, 10_000, 64), lambda m: (m.normal(2048, 13), m.below(10_000, 2048, 26))),
        _case("cross_1677", lambda: CrossNetwork(1677, 3), (2048, 1677)),
        _case("cross_429_f32", lambda: CrossNetwork(429, 3), (2048, 429), "f32"),
        _case("deep_fm", lambda: DeepFM(39, 5000, 10), lambda m: (m.below(5000, 4096, 39),)),
        _case("dien", lambda: DIEN(10_000, 36, 72), lambda m: (m.below(10_000, 128, 20), m.below(10_000, 128))),
    ]


def _decoding(m: Maker) -> tuple[Tensor, ...]:
    position = torch.full((1,), 700, device=m.device, dtype=torch.int64)
    return m.normal(1, 1, 1024), m.normal(1, 4, 1024, 64), m.normal(1, 4, 1024, 64), position


def _sequences() -> list[BenchCase]:
    return [
        _case("lstm_512", lambda: Recurrent("LSTM", 512, 512), (16, 64, 512)),
        _case("lstm_2x256", lambda: Recurrent("LSTM", 256, 256, num_layers=2), (4, 32, 256)),
        _case("gru_bi_256", lambda: Recurrent("GRU", 256, 256, bidirectional=True), (8, 32, 256)),
        _case("rnn_256", lambda: Recurrent("RNN", 256, 256), (8, 32, 256)),
        _case("lstm_cells_256", lambda: LSTMCells(256, 256), (32, 16, 256)),
        _case("router", lambda: Router(256, 8), (2048, 256)),
        _case("routed_experts", lambda: RoutedExperts(512, 1024, 8, 640), (4096, 512)),
        _case("mamba", lambda: Mamba(256, 512, 16), (2, 512, 256)),
        _case("index_copy_decode", lambda: CachedAttention(1024, 16, 4), _decoding),
        _case("bert_base_b1", lambda: Encoder(768, 12, 3072, 12, first=False), (1, 128, 768)),
        _case("bert_base_b8", lambda: Encoder(768, 12, 3072, 4, first=False), (8, 128, 768)),
        _case("gpt2_b4", lambda: Encoder(768, 12, 3072, 4, causal=True), (4, 256, 768)),
        _case("encoder_96", lambda: Encoder(96, 4, 384, 2), (64, 65, 96)),
        _case("encoder_384_f32", lambda: Encoder(384, 6, 1536, 2), (8, 197, 384), "f32"),
    ]


def _images() -> list[BenchCase]:
    def layers(width: int, depth: int) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))

    return [
        _case("vit_s16_b16", lambda: PatchEncoder(16, 384, 6, 4, 196), (16, 3, 224, 224)),
        _case("mixer_b8", lambda: Mixer(196, 768, 384, 3072, 3), (8, 196, 768)),
        _case("mixer_129", lambda: Mixer(129, 96, 63, 200, 2), (16, 129, 96)),
        _case("convnext_96_b8", layers(96, 2), (8, 96, 56, 56)),
        _case("convnext_384_b8", layers(384, 2), (8, 384, 14, 14)),
        _case("inverted_40_b8", lambda: InvertedBottleneck(40, 4, 5), (8, 40, 28, 28)),
        _case("conv1d_64", lambda: Conv1dStack(64, 6), (16, 64, 4096)),
        _case("decoder_256", lambda: Decoder(256, 128, 64, 3), (16, 256, 8, 8)),
        _case(
            "diffusion_b4",
            lambda: DiffusionBlock(128, 256, 512),
            lambda m: (m.normal(4, 128, 32, 32), m.normal(4, 512)),
        ),
        _case("unet_32", lambda: UNet(32), (4, 3, 128, 128)),
        _case("conv3d", lambda: nn.Sequential(nn.Conv3d(16, 32, 3, padding=1), nn.ReLU()), (2, 16, 16, 32, 32)),
        _case("grouped_conv", lambda: nn.Conv2d(128, 128, 3, padding=1, groups=4), (16, 128, 28, 28)),
    ]


def _many_products(*factors: Tensor) -> tuple[Tensor, ...]:
    half = len(factors) // 2
    return tuple(torch.mm(a, b) for a, b in zip(factors[:half], factors[half:], strict=True))


def _twenty(m: Maker) -> tuple[Tensor, ...]:
    return tuple([m.normal(256, 128) for _ in range(20)] + [m.normal(128, 1152) for _ in range(20)])


def _step(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Forward, backward and update of two layers, by hand."""
    h = F.relu(x @ a)
    error = (h @ b - y) * (2.0 / y.numel())
    below = (error @ b.T) * (h > 0)
    return a - 0.01 * (x.T @ below), b - 0.01 * (h.T @ error)


def _others() -> list[BenchCase]:
    def training(m: Maker) -> tuple[Tensor, ...]:
        return m.normal(4096, 256), m.normal(4096, 64), m.normal(256, 512), m.normal(512, 64)

    return [
        _case("twenty_products", lambda: Function(_many_products), _twenty),
        _case("twenty_products_f32", lambda: Function(_many_products), _twenty, "f32"),
        _case("training_step", lambda: Function(_step), training),
        _case("mlp_residual_256x3", lambda: mlp(63, 256, 256, 256, 27), (10_000, 63)),
    ]


def breadth() -> list[BenchCase]:
    """All of them."""
    named = [*_fields(), *_fields("_f32", "f32"), *_points(), *_graphs(), *_recommenders(), *_sequences()]
    return [*named, *_images(), *_others()]
