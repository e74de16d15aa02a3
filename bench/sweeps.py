"""Families of programs: chains of layers, products, maps and row reductions, few rows, attention, convolutions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import DTYPES, BenchCase
from bench.models import Maker, default_dtype, initialise, uninitialised

__all__ = ["Function", "sweeps"]

WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 512, 768, 1024)
DEPTHS = (2, 4, 8)
ROWS = (1_000, 65_536, 1_000_001)
FFN_WIDTHS, FFN_ROWS = (1024, 2048, 4096), (64, 128, 256, 512, 768, 1024, 1536, 2048)
PRODUCTS = (
    (8192, 8192, 8192), (4096, 12288, 6144), (2048, 6144, 12288), (512, 4096, 14336), (1024, 1024, 1024),
    (128, 4096, 4096), (300, 1000, 700),
)  # fmt: skip
LENGTHS = (8, 32, 100, 129, 1000, 1024, 4096, 16384, 100_000)
IMAGES = ((56, 64), (28, 128), (14, 256), (7, 512))

Shape = tuple[int, ...]


class Function(nn.Module):
    """A function of tensors as a module without weights."""

    def __init__(self, run: Callable[..., Any]):
        super().__init__()
        self.run = run

    def forward(self, *args: Tensor) -> Any:
        return self.run(*args)


def _function(run: Callable[..., Any], shapes: tuple[Shape, ...], dtype: str, device: str, values: bool):
    torch.manual_seed(0)
    maker = Maker(DTYPES[dtype], device, values)
    return Function(run), tuple(maker.normal(*shape) for shape in shapes)


def of_function(run: Callable[..., Any], shapes: tuple[Shape, ...], dtype: str):
    """`BenchCase.make` for a function of random tensors."""
    return functools.partial(_function, run, shapes, dtype)


def _module(build: Callable[[], nn.Module], shape: Shape, dtype: str, gain: float, last: bool, device: str, values: bool):
    torch.manual_seed(0)
    with default_dtype(DTYPES[dtype]), torch.device(device), uninitialised():
        model = build()
    model.eval().requires_grad_(False)
    if values:
        with torch.no_grad():
            initialise(model, gain)
    x = Maker(DTYPES[dtype], device, values).normal(*shape)
    if last:
        convert: Any = model.to
        return convert(memory_format=torch.channels_last), (x.contiguous(memory_format=torch.channels_last),)
    return model, (x,)


def of_module(
    build: Callable[[], nn.Module], shape: Shape, dtype: str = "bf16", gain: float = 1.0, last: bool = False
):  # fmt: skip
    """`BenchCase.make` for a module of one random input; `gain` is 2 where ReLU halves the variance.

    `last`: weights and image are in channels-last memory.
    """
    return functools.partial(_module, build, shape, dtype, gain, last)


def relu_mlp(width: int, depth: int) -> nn.Module:
    """`depth` layers of `width` with bias, ReLU after each."""
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))


def mlps() -> list[BenchCase]:
    """Chains of layers, and the chain whose rate stands beside a large product's."""
    found = [
        BenchCase(
            "chain_8x256_262144",
            "roofline",
            of_module(functools.partial(relu_mlp, 256, 8), (262_144, 256), gain=2.0),
            goal=0.9,
            measure="fraction",
        )
    ]
    for width in WIDTHS:
        for depth in DEPTHS:
            build = functools.partial(relu_mlp, width, depth)
            found += [
                BenchCase(f"mlp_{width}x{depth}_{rows}", "mlp", of_module(build, (rows, width), gain=2.0), goal=1.0)
                for rows in ROWS
            ]
    return found


def gelu_mlp(width: int) -> nn.Module:
    """A transformer's two layers: `width` to four times as much, GELU, and back."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))


def feed_forwards() -> list[BenchCase]:
    """cuSync's case (arXiv 2305.13450): pairs of products whose last waves leave multiprocessors idle between kernels."""
    return [
        BenchCase(f"ffn_{width}_{rows}", "ffn", of_module(functools.partial(gelu_mlp, width), (rows, width)), goal=1.0)
        for width in FFN_WIDTHS
        for rows in FFN_ROWS
    ]


def products() -> list[BenchCase]:
    """a @ b with each operand stored as it is read (n) or transposed (t): `nt` is what a linear layer does."""
    forms: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "nn": lambda a, b: a @ b,
        "nt": lambda a, b: a @ b.t(),
        "tn": lambda a, b: a.t() @ b,
        "tt": lambda a, b: a.t() @ b.t(),
    }
    found = []
    for m, n, k in PRODUCTS:
        for form, run in forms.items():
            shapes = ((m, k) if form[0] == "n" else (k, m), (k, n) if form[1] == "n" else (n, k))
            found.append(BenchCase(f"product_{m}x{n}x{k}_{form}", "product", of_function(run, shapes, "bf16"), goal=0.9))
    return found


def memory_bound() -> list[BenchCase]:
    """Maps and row reductions that read one gigabyte."""
    maps: dict[str, tuple[Callable[..., Tensor], int]] = {
        "add": (lambda x, y: x + y, 2),
        "gelu": (lambda x: F.gelu(x), 1),
        "chain": (lambda x, y: torch.tanh(x * 0.5 + y) * torch.sigmoid(y), 2),
    }
    rows: dict[str, Callable[[Tensor], Tensor]] = {
        "scale": lambda x: torch.relu(x * 0.5 + 1.0),
        "sum": lambda x: x.sum(-1),
        "softmax": lambda x: torch.softmax(x, -1),
        "layernorm": lambda x: F.layer_norm(x, x.shape[-1:]),
    }
    found = []
    for dtype in ("f32", "bf16"):
        count = (1 << 30) // (4 if dtype == "f32" else 2)
        for name, (run, inputs) in maps.items():
            shape = (count // inputs // 4096, 4096)
            made = of_function(run, (shape,) * inputs, dtype)
            found.append(BenchCase(f"map_{name}_{dtype}", "map", made, dtype, goal=0.9, measure="fraction"))
        for name, run in rows.items():
            for length in LENGTHS:
                made = of_function(run, ((count // length, length),), dtype)
                goal = 0.8 if length < 32 else 0.9
                found.append(BenchCase(f"rows_{name}_{length}_{dtype}", "rows", made, dtype, goal=goal, measure="fraction"))
    return found


def few_rows() -> list[BenchCase]:
    """Linear layers on one to sixteen rows: the weights' bytes are all there is."""
    goals = {1: 0.9, 4: 0.9, 16: 0.85}
    found = []
    for k, n in ((4096, 14336), (14336, 4096)):
        build = functools.partial(nn.Linear, k, n, bias=False)
        for m, goal in goals.items():
            found.append(BenchCase(f"gemv_{k}_{n}_m{m}", "gemv", of_module(build, (m, k)), goal=goal, measure="fraction"))
    return found


def attention() -> list[BenchCase]:
    """Causal prefill, and decoding against a cache with grouped heads."""
    heads, tokens, width = 32, 4096, 128
    shape = (1, heads, tokens, width)
    prefill = of_function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (shape,) * 3, "bf16")
    cache = (16, 8, 8192, 128)
    decode = of_function(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), ((16, 32, 1, 128), cache, cache), "bf16"
    )
    # Two products, half of their elements.
    operations = 2 * 2 * heads * tokens * tokens * width // 2
    return [
        BenchCase("attention_prefill_4096", "attention", prefill, goal=0.9, operations=operations),
        BenchCase("attention_decode_b16_8192", "attention", decode, goal=0.85, measure="fraction"),
    ]


def convolutions() -> list[BenchCase]:
    """ResNet's 3×3 convolutions, with images in the usual order, and all in channels-last memory, program and peers alike."""
    found = []
    for (size, channels), last in itertools.product(IMAGES, (False, True)):
        build = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        group = "conv_last" if last else "conv"
        for batch in (1, 8, 16, 32, 64) if last else (1, 8, 32):
            made = of_module(build, (batch, channels, size, size), last=last)
            found.append(BenchCase(f"{group}_{size}_{channels}_b{batch}", group, made, goal=1.0))
    return found


def conv_pair(channels: int) -> nn.Module:
    """Two 3×3 convolutions with ReLU between: cuSync's evaluation takes such pairs from ResNet-38 and VGG-19."""
    first, second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
    return nn.Sequential(first, nn.ReLU(), second)


def conv_pairs() -> list[BenchCase]:
    """Pairs of 3×3 convolutions at small batches: one launch, the second waits for its halo rows."""
    found = []
    for (size, channels), last in itertools.product(IMAGES, (False, True)):
        build = functools.partial(conv_pair, channels)
        group = "conv_pair_last" if last else "conv_pair"
        for batch in (1, 4, 8, 16):
            made = of_module(build, (batch, channels, size, size), last=last)
            found.append(BenchCase(f"{group}_{size}_{channels}_b{batch}", group, made, goal=None if last else 1.2))
    return found


def depthwise() -> list[BenchCase]:
    """MobileNet's depthwise convolutions, 3×3, in channels-last memory."""
    found = []
    for (size, channels), stride, batch in itertools.product(((112, 32), (56, 128), (14, 512)), (1, 2), (1, 32)):
        build = functools.partial(nn.Conv2d, channels, channels, 3, stride, padding=1, bias=False, groups=channels)
        made = of_module(build, (batch, channels, size, size), last=True)
        found.append(BenchCase(f"depthwise_{size}_{channels}_s{stride}_b{batch}", "depthwise", made, goal=1.0))
    return found


def sweeps() -> list[BenchCase]:
    """All families."""
    return [
        *mlps(),
        *feed_forwards(),
        *products(),
        *memory_bound(),
        *few_rows(),
        *attention(),
        *convolutions(),
        *conv_pairs(),
        *depthwise(),
    ]
