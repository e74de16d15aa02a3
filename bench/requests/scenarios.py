"""Loads of many small models: who is asked, and what a request is.

S1: 64 encoders as MiniLM-L6 (384 wide, 6 layers, 12 heads, 32 tokens) · S2: 64 towers 512-1024-512-256-1 · S3: 32 image
networks as ResNet-18, 224 x 224 · S4: ensembles: a request is a row for eight towers · S5: S1, S2 and S3 at once · S6: one base
and 64 adapters of rank 16 (arXiv 2106.09685) in each of its layers · S7: S2, and beside every 50th request one to a model that
takes far longer; figures are of the others, to be compared with those of S2 at the same rates.

Weights are random; every model has its own, but for S6's base. One row, sequence or image a request; bf16 on a GPU, f32 on the
host. `small` models are what tests run.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bench.requests.coalesced import tower

__all__ = ["ARRIVALS", "BESIDE", "SCENARIOS", "Family", "Request", "Scenario", "requests"]


class Attending(nn.Module):
    """Attention over a sequence and two linear layers, each normalised after it is added (BERT's order)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.given, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.given(x).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.first(x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Encoder(nn.Module):
    """Token numbers to one vector: embeddings, layers of attention, the mean."""

    def __init__(self, width: int, layers: int, heads: int, words: int, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Attending(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """[1, length] to [1, width]."""
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Residual(nn.Module):
    """Two convolutions beside what they read, as in ResNet-18 (arXiv 1512.03385); the first has the stride."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.beside = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, inputs, height, width] to [batch, outputs, height / stride, width / stride]."""
        return torch.relu(self.second(self.first(x)) + self.beside(x))


def images(channels: int, stages: int) -> nn.Sequential:
    """An image network: a stem that halves twice, stages of two residual blocks, the mean, 1000 classes."""
    parts: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage in range(stages):
        now, before = channels << stage, channels << max(0, stage - 1)
        parts += [Residual(before, now, 2 if stage else 1), Residual(now, now, 1)]
    last = channels << (stages - 1)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000))


class Adapted(nn.Module):
    """Linear layers with ReLU between, each with an adapter of low rank beside it."""

    def __init__(self, width: int, layers: int, rank: int):
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.down = nn.ParameterList(torch.randn(rank, width) / width**0.5 for _ in range(layers))
        self.up = nn.ParameterList(torch.randn(width, rank) / width for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """[1, width] to the same."""
        for layer, down, up in zip(self.base, self.down, self.up, strict=True):
            x = torch.relu(layer(x) + (x @ down.T) @ up.T)
        return x


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one architecture.

    Attributes:
        make: a model; `small` as of `Scenario.families`.
        draw: an input of one request.
        count: how many models.
        shared: names of parameters that all have in common begin so; none if empty.
    """

    name: str
    make: Callable[[bool], nn.Module]
    draw: Callable[[bool], Tensor]
    count: int
    shared: str = ""

    def models(self, small: bool, device: str, dtype: torch.dtype) -> list[nn.Module]:
        """All of them, in inference mode; those that `shared` names are the first one's own tensors."""
        count = min(self.count, 4) if small else self.count
        with torch.device(device):  # random numbers of 64 encoders take a processor long
            made = [self.make(small).eval().to(dtype).requires_grad_(False) for _ in range(count)]
        first = dict(made[0].named_parameters())
        for model in made[1:] if self.shared else ():
            for name in [name for name, _ in model.named_parameters() if name.startswith(self.shared)]:
                path, _, last = name.rpartition(".")
                setattr(model.get_submodule(path), last, first[name])
        return made

    def inputs(self, small: bool, device: str, dtype: torch.dtype, count: int) -> list[Tensor]:
        """Inputs that requests are drawn from."""
        drawn = [self.draw(small).to(device) for _ in range(count)]
        return [x.to(dtype) if x.is_floating_point() else x for x in drawn]


SENTENCES = Family(
    "sentences",
    lambda small: Encoder(32, 1, 4, 50, 8) if small else Encoder(384, 6, 12, 30522, 32),
    lambda small: torch.randint(0, 50, (1, 8)) if small else torch.randint(0, 30522, (1, 32)),
    64,
)
TOWERS = Family(
    "towers",
    lambda small: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)) if small else tower(),
    lambda small: torch.randn(1, 16 if small else 512),
    64,
)
IMAGES = Family(
    "images",
    lambda small: images(4, 2) if small else images(64, 4),
    lambda small: torch.randn(1, 3, 16, 16) if small else torch.randn(1, 3, 224, 224),
    32,
)
ADAPTERS = Family(
    "adapters",
    lambda small: Adapted(16, 2, 2) if small else Adapted(1024, 8, 16),
    lambda small: torch.randn(1, 16 if small else 1024),
    64,
    "base",
)


STRAGGLER = Family(
    "straggler",
    lambda small: nn.Sequential(*(part for _ in range(16 if small else 96) for part in (nn.Linear(256, 256), nn.ReLU()))),
    lambda small: torch.randn(1, 256),
    1,
)
BESIDE = 50
"""Requests for each one to a straggler."""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Attributes: the `families` that are asked alike, how many models of a family answer one request (`each`), and a family of
    one model that is asked beside every 50th request (`straggler`)."""

    families: Sequence[Family]
    each: int = 1
    straggler: Family | None = None

    @property
    def all(self) -> Sequence[Family]:
        """All families, the straggler's last."""
        return (*self.families, *(() if self.straggler is None else (self.straggler,)))


SCENARIOS = {
    "S1": Scenario((SENTENCES,)),
    "S2": Scenario((TOWERS,)),
    "S3": Scenario((IMAGES,)),
    "S4": Scenario((TOWERS,), 8),
    "S5": Scenario((SENTENCES, TOWERS, IMAGES)),
    "S6": Scenario((ADAPTERS,)),
    "S7": Scenario((TOWERS,), straggler=STRAGGLER),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """Attributes: seconds after the start when it comes (`due`), the numbers of the models that answer it, and of its input."""

    due: float
    family: int
    models: Sequence[int]
    row: int


def _gamma(draw: random.Random, rate: float) -> float:
    shape = 1 / 4**2
    return draw.gammavariate(shape, 1 / (rate * shape))


ARRIVALS: dict[str, Callable[[random.Random, float], float]] = {
    "poisson": lambda draw, rate: draw.expovariate(rate),
    "gamma": _gamma,
}
"""Seconds to the next request at a rate a second; gamma's are four times as uneven (coefficient of variation 4)."""


def requests(
    counts: Sequence[int], each: int, rate: float, count: int, arrivals: str, seed: int, rows: int = 64
) -> list[Request]:
    """Draw a load: families alike, models of a family by Zipf's law with exponent 1.

    Args:
        counts: models of each family.
        each: models that answer one request, neighbours in the family.
        rows: inputs that are drawn from.
    """
    draw, due, made = random.Random(seed), 0.0, []
    orders = [draw.sample(range(n), n) for n in counts]
    weights = [[1 / (1 + place) for place in range(n)] for n in counts]
    for _ in range(count):
        due += ARRIVALS[arrivals](draw, rate)
        family = draw.randrange(len(counts))
        first = draw.choices(orders[family], weights[family])[0]
        models = tuple(dict.fromkeys((first + n) % counts[family] for n in range(each)))
        made.append(Request(due, family, models, draw.randrange(rows)))
    return made
