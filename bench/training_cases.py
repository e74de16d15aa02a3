"""What is trained by `bench.training`: models of the zoo and of libraries, with a loss, at full size and at one for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.graphs import MeshGraphNet
from bench.breadth.library.graphs import graphs
from bench.breadth.library.images import diffusion
from bench.breadth.library.language import configured
from bench.breadth.library.made import Build, Draw, case, imported
from bench.case import BenchCase
from bench.models import Maker
from bench.models import make as of_zoo

__all__ = ["CASES", "Objective", "TrainingCase"]


@dataclass(frozen=True)
class TrainingCase:
    """A model that is trained.

    Attributes:
        make: (size, device) gives the model and its arguments; sizes are "full" and "small".
        words: whether the loss is the cross-entropy of numbers drawn for the last dimension; else the mean squared distance
            from numbers drawn for each result.
        results: how many of the model's are trained; 0: all.
        autocast: weights are f32, and the forward pass is under autocast to the dtype.
        library: what makes the model, where that is not PyTorch alone.
    """

    make: Callable[[str, str], tuple[nn.Module, tuple[Tensor, ...]]]
    words: bool = False
    results: int = 0
    autocast: bool = False
    library: str = ""


class Objective(nn.Module):
    """A model's loss: of its arguments and the targets, a number in f32."""

    def __init__(self, model: nn.Module, words: bool, results: int):
        super().__init__()
        self.model, self.words, self.results = model, words, results

    def trained(self, found: Any) -> list[Tensor]:
        """The results that the loss is of."""
        every = [found] if isinstance(found, Tensor) else [one for one in found if one.is_floating_point()]
        return every[: self.results or None]

    def loss(self, found: Any, *targets: Tensor) -> Tensor:
        """The loss of what the model gave."""
        if self.words:
            (scores,) = self.trained(found)
            return F.cross_entropy(scores.flatten(0, -2).float(), targets[0].flatten())
        pairs = zip(self.trained(found), targets, strict=True)
        return sum((F.mse_loss(one.float(), target.float()) for one, target in pairs), start=targets[0].new_zeros(()).float())

    def forward(self, args: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        return self.loss(self.model(*args), *targets)


def _zoo(name: str, results: int = 0, **full: Any) -> TrainingCase:
    def make(size: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        return of_zoo(name, size, torch.float32, device=device, **(full if size == "full" else {}))

    return TrainingCase(make, results=results)


def _of(library: str, full: tuple[Build, Draw], small: tuple[Build, Draw] | None = None, **about: Any) -> TrainingCase:
    """A library's model; `small` is `full` where it is not given."""

    def make(size: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        build, draw = full if size == "full" or small is None else small
        return case("trained", library, build, draw, "f32").make(device, True)

    return TrainingCase(make, library=library, **about)


def _listed(cases: list[BenchCase], name: str, **about: Any) -> TrainingCase:
    """One of the benchmark's cases of libraries, as it is."""
    found = next(one for one in cases if one.name == f"lib_{name}")
    return TrainingCase(lambda size, device: found.make(device, True), library=found.library or "", **about)


def _mesh(size: str, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Flow around a cylinder, as MeshGraphNets was published with and PhysicsNeMo trains it: eight meshes beside each other."""
    nodes, edges, width, steps = (15_000, 90_000, 128, 15) if size == "full" else (65, 391, 32, 2)
    maker = Maker(torch.float32, device)
    with torch.device(device):
        model = MeshGraphNet(6, 3, width, steps, 3)
    return model, (maker.normal(nodes, 6), maker.normal(edges, 3), maker.below(nodes, 2, edges))


def _words(batch: int, length: int, count: int) -> Draw:
    return lambda m: {"input_ids": m.below(count, batch, length)}


def _picture(batch: int, size: int) -> Draw:
    return lambda m: {"0": m.normal(batch, 3, size, size)}


def _vision(name: str, **settings: Any) -> Build:
    return lambda: imported("timm").create_model(name, pretrained=False, **settings)


def _bert(**settings: Any) -> Build:
    return configured("BertForMaskedLM", "Bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **settings)


def _gpt2(**settings: Any) -> Build:
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return configured("GPT2LMHeadModel", "GPT2", use_cache=False, **drop, **settings)


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}

CASES: dict[str, TrainingCase] = {
    "dlrm": _zoo("dlrm"),
    "mgn": _zoo("mgn"),
    "nerf": _zoo("nerf"),
    "gcast": _zoo("gcast"),
    "llama": _zoo("llama_prefill", 1, tokens=2048),
    "bert_base": _of(
        "transformers",
        (_bert(), _words(16, 128, 30_000)),
        (_bert(**_SMALL), _words(2, 9, 99)),
        words=True,
    ),
    "gpt2": _of(
        "transformers",
        (_gpt2(), _words(4, 1024, 50_000)),
        (_gpt2(n_embd=32, n_layer=2, n_head=4, vocab_size=99), _words(2, 9, 99)),
        words=True,
    ),
    "vit_s": _of(
        "timm",
        (_vision("vit_small_patch16_224"), _picture(64, 224)),
        (_vision("test_vit", num_classes=10), _picture(2, 160)),
        words=True,
    ),
    "resnet50": _of(
        "timm",
        (_vision("resnet50"), lambda m: {"0": _picture(64, 224)(m)["0"].contiguous(memory_format=torch.channels_last)}),
        (_vision("test_resnet", num_classes=10), _picture(2, 64)),
        words=True,
        autocast=True,
    ),
    "meshgraphnet": TrainingCase(_mesh),
    "gcn": _listed(graphs(), "pyg_gcn"),
    "gat": _listed(graphs(), "pyg_gat"),
    "unet": _listed(diffusion(), "unet_condition_b2"),
}
"""By name, the most important first. Nothing is dropped out: gradients are compared with float64's."""
