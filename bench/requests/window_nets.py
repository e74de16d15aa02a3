"""Networks whose calls depend on values, for windows: each gives its result and the path that it took.

Structures of the papers and projects that are named, made anew and small; weights are random, and biases of gates are such that
about half of what is optional is on. `NETS` has them by name; of each, `small=True` is what tests run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.requests.cells import NASNET, PNASNET, CellNet, Fire, Inception, Stacked
from bench.requests.routing import DynamicRouting

__all__ = ["NETS", "STATIC", "Net"]

Path = tuple[Any, ...]


class EarlyExit(nn.Module):
    """Layers with a classifier after each, left at the first that is sure (BranchyNet, arXiv 1709.01686)."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.LayerNorm(width))
            for _ in range(layers)
        )
        self.heads = nn.ModuleList(nn.Linear(width, 10) for _ in range(layers))

    def forward(self, x: Tensor) -> tuple[Tensor, Path]:
        """Rows leave one by one; the path is where each one did."""
        exits: list[int] = [-1] * len(x)
        answers: dict[int, Tensor] = {}
        rows = list(range(len(x)))
        for number, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = x + layer(x)
            p = torch.softmax(2 * head(x), -1)
            sure = (p.max(-1).values > 0.55).tolist()
            last = number + 1 == len(self.layers)
            for place, row in enumerate(rows):
                if sure[place] or last:
                    answers[row], exits[row] = p[place], number
            stay = [place for place in range(len(rows)) if not sure[place]]
            if last or not stay:
                break
            if len(stay) < len(rows):
                x = torch.stack([x[place] for place in stay])
                rows = [rows[place] for place in stay]
        return torch.stack([answers[row] for row in sorted(answers)]), tuple(exits)

    def dense(self, x: Tensor) -> Tensor:
        """The same with all layers for all rows, of which the first sure answer counts."""
        waiting, found = x.new_ones(len(x), 1, dtype=torch.bool), x.new_zeros(len(x), 10)
        for number, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = x + layer(x)
            p = torch.softmax(2 * head(x), -1)
            sure = p.max(-1, keepdim=True).values > 0.55
            leaves = waiting if number + 1 == len(self.layers) else waiting & sure
            found, waiting = torch.where(leaves, p, found), waiting & ~sure
        return found


class MixtureOfExperts(nn.Module):
    """A token goes to the two experts that a router chooses, in every layer (Switch Transformer's loop, arXiv 2101.03961)."""

    def __init__(self, width: int, layers: int, experts: int):
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Path]:
        """One token, [1, width]; the path is the experts of each layer."""
        path = []
        for router, experts in zip(self.routers, self.experts, strict=True):
            weight, chosen = torch.softmax(router(x), -1).topk(2)
            first, second = chosen[0].tolist()
            path.append((first, second))
            x = x + weight[:, :1] * experts[first](x) + weight[:, 1:] * experts[second](x)  # type: ignore[index]
        return x, tuple(path)

    def dense(self, x: Tensor) -> Tensor:
        """The same with all experts, those that were not chosen times zero."""
        for router, experts in zip(self.routers, self.experts, strict=True):
            p = torch.softmax(router(x), -1)
            weight, chosen = p.topk(2)
            weights = torch.zeros_like(p).scatter(1, chosen, weight)
            x = x + sum(weights[:, n : n + 1] * expert(x) for n, expert in enumerate(experts))  # type: ignore[arg-type]
        return x


class TreeLSTM(nn.Module):
    """Child-sum Tree-LSTM (arXiv 1503.00075) over nested tuples of row numbers."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.gates, self.sums = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width, bias=False)
        self.forget, self.forget_child = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def node(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """A node's state; x [1, width], its children's [children, width]."""
        i, o, u = (self.gates(x) + self.sums(h.sum(0, keepdim=True))).chunk(3, -1)
        f = torch.sigmoid(self.forget(x) + self.forget_child(h))
        c = torch.sigmoid(i) * torch.tanh(u) + (f * c).sum(0, keepdim=True)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, given: tuple[Tensor, Any]) -> tuple[Tensor, Path]:
        """Rows and a tree of them; the path is the tree."""
        rows, tree = given

        def walk(part: Any) -> tuple[Tensor, Tensor]:
            word, children = part
            states = [walk(child) for child in children]
            if states:
                h, c = (torch.cat([state[n] for state in states]) for n in range(2))
            else:
                h = c = rows.new_zeros(1, self.width)
            return self.node(rows[word : word + 1], h, c)

        return walk(tree)[0], tree


class Gated(nn.Module):
    """Blocks of which a controller switches paths on, by image (InstaNAS, arXiv 1811.10201)."""

    def __init__(self, channels: int, blocks: int):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.policy = nn.Linear(4 * channels, 3 * blocks)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    nn.Conv2d(channels, channels, size, padding=size // 2, groups=groups), nn.BatchNorm2d(channels), nn.ReLU()
                )
                for size, groups in ((3, 1), (3, channels), (1, 1))
            )
            for _ in range(blocks)
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Path]:
        """One image, [1, 3, height, width]; the path is which convolutions were on."""
        x = torch.relu(self.stem(image))
        on = self._on(x).tolist()
        for number, paths in enumerate(self.blocks):
            taken = [path(x) for path, yes in zip(paths, on[3 * number : 3 * number + 3], strict=True) if yes]  # type: ignore[arg-type]
            for one in taken:
                x = x + 0.3 * one
        return x.mean((2, 3)), tuple(on)

    def dense(self, image: Tensor) -> Tensor:
        """The same with all convolutions, those that are off times zero."""
        x = torch.relu(self.stem(image))
        on = self._on(x).to(x.dtype)
        for number, paths in enumerate(self.blocks):
            taken = [on[3 * number + n] * path(x) for n, path in enumerate(paths)]  # type: ignore[arg-type]
            for one in taken:
                x = x + 0.3 * one
        return x.mean((2, 3))

    def _on(self, x: Tensor) -> Tensor:
        return self.policy(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))[0] > 0


class Wired(nn.Module):
    """A cell of randomly wired convolutions (RandWire, arXiv 1904.01569): a graph that is always the same."""

    def __init__(self, channels: int, nodes: int):
        super().__init__()
        draw = random.Random(0)
        self.before = [sorted(draw.sample(range(n), min(n, 2))) for n in range(nodes)]
        self.nodes = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
                nn.Conv2d(channels, channels, 1),
                nn.BatchNorm2d(channels),
            )
            for _ in range(nodes)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Path]:
        """[1, channels, height, width] to the same."""
        made: list[Tensor] = []
        for node, before in zip(self.nodes, self.before, strict=True):
            made.append(node(torch.stack([made[n] for n in before]).mean(0) if before else x))
        return torch.stack(made[-4:]).mean(0), ()


def random_tree(draw: random.Random, leaves: int) -> Any:
    """A tree with one to three children a node, as (number of a row, children)."""
    if leaves == 1:
        return draw.randrange(16), ()
    count = min(leaves, draw.choice((2, 2, 3)))
    cuts = sorted(draw.sample(range(1, leaves), count - 1))
    parts = [b - a for a, b in zip([0, *cuts], [*cuts, leaves], strict=True)]
    return draw.randrange(16), tuple(random_tree(draw, part) for part in parts)


class Net:
    """A network: `make(small)` gives it and a function that draws an input."""

    def __init__(self, make: Callable[[bool], tuple[nn.Module, Callable[[random.Random], Any]]]):
        self.make = make


def _early_exit(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    width, rows = (32, 4) if small else (1024, 4)
    return EarlyExit(width, 8 if small else 12), lambda draw: torch.randn(rows, width)


def _experts(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    width = 32 if small else 1024
    return MixtureOfExperts(width, 4, 8), lambda draw: torch.randn(1, width)


def _tree(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    width, leaves = (16, 5) if small else (256, 64)
    return TreeLSTM(width), lambda draw: (torch.randn(16, width), random_tree(draw, leaves))


def _colours(size: int) -> Tensor:
    """A colour for each quarter of an image."""
    return nn.functional.interpolate(4 * torch.randn(1, 3, 2, 2), size=(size, size))


def _gated(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    channels, size = (8, 8) if small else (64, 32)
    return Gated(channels, 4 if small else 17), lambda draw: torch.randn(1, 3, size, size) + _colours(size)


def _wired(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    channels, size = (8, 8) if small else (78, 28)
    return Wired(channels, 6 if small else 32), lambda draw: torch.randn(1, channels, size, size)


def _routing(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
    channels, layers, scales, size = (8, 5, 3, 8) if small else (64, 16, 4, 64)
    return DynamicRouting(channels, layers, scales), lambda draw: torch.randn(1, 3, size, size) + _colours(size)


def _cells(kind: Callable[[int, int], nn.Module]) -> Net:
    """A network of cells of so many channels and cells."""

    def make(small: bool) -> tuple[nn.Module, Callable[[random.Random], Any]]:
        channels, cells, size = (8, 2, 8) if small else (128, 6, 28)
        return kind(channels, cells), lambda draw: torch.randn(1, 3, size, size)

    return Net(make)


NETS = {
    "early-exit": Net(_early_exit),
    "experts": Net(_experts),
    "tree-lstm": Net(_tree),
    "gated": Net(_gated),
    "routing": Net(_routing),
}
STATIC = {
    "wired": Net(_wired),
    "nasnet": _cells(lambda channels, cells: CellNet(channels, cells, NASNET)),
    "pnasnet": _cells(lambda channels, cells: CellNet(channels, cells, PNASNET)),
    "googlenet": _cells(lambda channels, cells: Stacked(Inception, channels, cells)),
    "squeezenet": _cells(lambda channels, cells: Stacked(Fire, channels, cells)),
}
