"""Stages of any widths: whoever offers to do one does it, down to assembled code without spills."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.cheaper_plans import SPILLED
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from test.gpu.unassembled import unassembled
from test.rotation import in_turn

ROWS = (1, 7, 16, 33, 64, 100, 129, 512, 1000, 4096)
WIDTHS = (3, 8, 13, 24, 27, 32, 63, 64, 96, 129, 160, 192, 256, 257, 320, 384, 512, 1000)
ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.softplus]


class Layers(nn.Module):
    """Linear layers and what stands between them: activations, normalisations, residuals, joined inputs, softmax."""

    def __init__(self, rng: random.Random):
        super().__init__()
        widths = [rng.choice(WIDTHS) for _ in range(rng.randint(2, 5))]
        if rng.random() < 0.4:
            widths = [widths[0]] * len(widths)
        self.layers, self.norms, self.kinds = nn.ModuleList(), nn.ModuleList(), []
        for depth, cols in zip(widths, widths[1:], strict=False):
            self.layers.append(nn.Linear(depth, cols, bias=rng.random() < 0.8))
            self.norms.append(rng.choice([nn.LayerNorm, nn.RMSNorm])(cols) if rng.random() < 0.3 else nn.Identity())
            kinds = (
                ["plain", "product", "softmax"] + ["residual"] * (3 * (depth == cols)) + ["residual_after"] * (depth == cols)
            )
            self.kinds.append((rng.choice(kinds), rng.choice(ACTIVATIONS)))
        self.first = widths[0]

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm, (kind, activation) in zip(self.layers, self.norms, self.kinds, strict=True):
            y = layer(x)
            if kind == "residual":
                x = norm(x + activation(y))
            elif kind == "residual_after":
                x = activation(norm(y)) + x
            elif kind == "product":
                x = norm(activation(y) * y)
            elif kind == "softmax":
                x = F.softmax(norm(y), -1)
            else:
                x = norm(activation(y))
        return x


class Images(nn.Module):
    """A convolution, with a normalisation, an activation, and a residual or a pool after it."""

    def __init__(self, rng: random.Random):
        super().__init__()
        self.channels, features, kernel = (
            rng.choice((3, 8, 16, 24, 64)),
            rng.choice((8, 16, 48, 64, 129)),
            rng.choice((1, 3, 5)),
        )
        groups = rng.choice((1, 1, 1, self.channels))
        features = self.channels if groups > 1 else features
        stride = rng.choice((1, 1, 2))
        self.conv = nn.Conv2d(self.channels, features, kernel, stride, kernel // 2, groups=groups)
        self.norm = nn.BatchNorm2d(features) if rng.random() < 0.5 else nn.Identity()
        self.activation = rng.choice(ACTIVATIONS)
        self.residual = stride == 1 and features == self.channels and rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm(self.conv(x)))
        return x + y if self.residual else y


def made(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model and its inputs."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
    if rng.random() < 0.25:
        size = rng.choice((7, 14, 33, 56))
        images = Images(rng)
        return images.to(dtype), (torch.randn(rng.choice((1, 2, 8)), images.channels, size, size).to(dtype),)
    layers = Layers(rng)
    return layers.to(dtype), (torch.randn(rng.choice(ROWS), layers.first).to(dtype),)


def complaints(seed: int) -> list[str]:
    """What is wrong with a program: tasks that only the engine that takes anything did, broken offers, and spills."""
    model, args = made(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = kitsune_mlir.compile(model.eval(), args, target="sm_90a")
    offered = {stage["name"]: stage["engine"] for stage in program.summary["stages"]}
    wrong = [
        f"{task['task']}: {offered[task['task']]} offered, {task['engine']} does it: {dict(task['declined'])}"
        for task in program.summary["engines"]
        if ENGINES[task["engine"]].traits.catches_all
    ]
    wrong += [sentence for sentence in program.summary.get("replanned", ()) if "declines" in sentence]
    return wrong + [
        f"{kernel['name']} spills" for kernel in program.summary["kernels"] if kernel["spill_store_bytes"] >= SPILLED
    ]


@pytest.mark.parametrize("seed", in_turn(range(400), 3))
def test_who_offers_does_it_without_spills(seed):
    assert complaints(seed) == []


@pytest.mark.rotated(1)
@pytest.mark.parametrize("width", [96, 129])
def test_a_product_of_what_is_gathered_from_another_stage(width: int) -> None:
    """Who brings a chain its rows does not wait for other tasks: they are made by a map before it."""

    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(width, width), nn.Linear(width, 128), nn.Linear(128, 512)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            return self.third(F.elu(self.second(x[edges[0]] - x[edges[1]])))

    model = Edges().bfloat16().eval().requires_grad_(False)
    x, edges = torch.randn(10_000, width, dtype=torch.bfloat16), torch.randint(0, 10_000, (2, 40_000))
    with unassembled():
        program = kitsune_mlir.compile(model, (x, edges), target="h200")
    products = {task["task"]: task["engine"] for task in program.summary["engines"] if "product" in task["task"]}
    assert len(products) > 1 and set(products.values()) <= {"mma", "chain"}


@pytest.mark.parametrize(("batch", "length", "width"), [(16, 128, 768), (4, 1000, 257), (9, 129, 96)])
def test_sums_over_the_batch_of_what_comes_of_sums_along_rows(batch: int, length: int, width: int) -> None:
    """Layer norm's gradient of its input, and the sum over the batch that is the gradient of embedded positions."""

    def gradients(given: Tensor, scaled: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        along = (given * scaled).mean(-1, keepdim=True)
        found = (given - given.mean(-1, keepdim=True) - scaled * along) * factor
        return found, found.sum(0)

    args = torch.randn(batch, length, width), torch.randn(batch, length, width), torch.rand(batch, length, 1)
    with unassembled():
        program = kitsune_mlir.compile(gradients, args, target="h200")
    assert {task["engine"] for task in program.summary["engines"]} == {"simt"}
    assert not program.summary.get("replanned") and len(program.summary["stages"]) == 2
