"""Dynamic Routing (arXiv 2003.10401): cells at several scales, each left out, or handing on up, down or both, by gates that
look at what comes in. Made anew after the paper; weights are random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.requests.cells import convolution

__all__ = ["DynamicRouting"]

PATHS = ("up", "same", "down")


class Cell(nn.Module):
    """One cell: its gate, what it does to the image, and the ways on."""

    def __init__(self, channels: int):
        super().__init__()
        ways = nn.Linear(channels, len(PATHS))
        self.gate = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, channels), nn.Tanh(), ways)
        nn.init.normal_(ways.weight, std=1.0)
        nn.init.constant_(ways.bias[1:2].detach(), 0.5)
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.Conv2d(channels, channels, 1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
        self.up, self.same, self.down = convolution(channels, channels), nn.Identity(), convolution(channels, channels)

    def gates(self, x: Tensor) -> Tensor:
        """[3]: how much goes each way; zero is nothing."""
        return torch.tanh(self.gate(x.mean((2, 3)))).clamp_min(0).flatten()

    def way(self, name: str, x: Tensor, size: tuple[int, int]) -> Tensor:
        """The image at another scale."""
        if name == "up":
            return nn.functional.interpolate(self.up(x), size=size, mode="bilinear", align_corners=False)
        return nn.functional.avg_pool2d(self.down(x), 2) if name == "down" else self.same(x)


class DynamicRouting(nn.Module):
    """Layers of cells at `scales` scales, each half the one before; the image ends at each scale, as a mean."""

    def __init__(self, channels: int, layers: int, scales: int):
        super().__init__()
        self.scales = scales
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.ModuleList(Cell(channels) for _ in range(scales)) for _ in range(layers))

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """One image [1, 3, height, width], both divisible by 2 ** (scales - 1); the path: which ways are on, cell by cell."""
        return self._run(image, dense=False)

    def dense(self, image: Tensor) -> Tensor:
        """The same with all cells and ways, those that are off times zero: no value decides what is run."""
        return self._run(image, dense=True)[0]

    def _run(self, image: Tensor, dense: bool) -> tuple[Tensor, tuple[Any, ...]]:
        sizes: list[tuple[int, int]] = [(image.shape[2] >> n, image.shape[3] >> n) for n in range(self.scales)]
        given: list[Tensor | None] = [torch.relu(self.stem(image)), *[None] * (self.scales - 1)]
        came: list[Tensor] = [image.new_ones(())] * self.scales  # above zero where something came in, if all is run
        path: list[Any] = []
        for layer in self.layers:
            made: list[list[Tensor]] = [[] for _ in range(self.scales)]
            sums: list[list[Tensor]] = [[] for _ in range(self.scales)]
            for scale, (cell, x) in enumerate(zip(layer, given, strict=True)):  # type: ignore[arg-type]
                if x is not None:
                    assert isinstance(cell, Cell)
                    gates = cell.gates(x)
                    if dense:
                        gates = gates * (came[scale] > 0)
                    on = (True,) * len(PATHS) if dense else tuple((gates > 0).tolist())
                    path.append(on)
                    self._cell(cell, x, gates, on, scale, sizes, made, sums)
            given = [torch.stack(own).sum(0) if own else None for own in made]
            came = [torch.stack(own).sum() if own else came[0] for own in sums] if dense else came
        means = [image.new_zeros(1, self.stem.out_channels) if x is None else x.mean((2, 3)) for x in given]
        return torch.cat(means, 1), tuple(path)

    def _cell(
        self,
        cell: Cell,
        x: Tensor,
        gates: Tensor,
        on: Sequence[bool],
        scale: int,
        sizes: Sequence[tuple[int, int]],
        made: Sequence[list[Tensor]],
        sums: Sequence[list[Tensor]],
    ) -> None:
        """Run one cell, if one of its ways is on, and hand on what it gives, and its gates."""
        ways = [(n, scale + n - 1, name) for n, name in enumerate(PATHS) if on[n] and 0 <= scale + n - 1 < self.scales]
        if ways:
            y = x + cell.body(x)
            for number, target, name in ways:
                made[target].append(gates[number] * cell.way(name, y, sizes[target]))
                sums[target].append(gates[number])
