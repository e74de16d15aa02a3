"""`make demo-train`: fit a radiance field to an analytic scene, a whole training step being one program.

Run as `python -m bench.demo_train [--out DIR] [--size small|full] [--steps N]`. Writes `train-loss.png`, and
`train-picture.png`: the scene, and what the network makes of it, from a side that it was not trained on. On a GPU the full size
is the default.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

import kitsune_mlir
from bench.radiance import RadianceField, camera, seen

__all__ = ["main"]


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
        width, samples, octaves: of the network.
        rays: of a step.
        views, pixels: pictures that it is trained on, and their height and width.
        steps: that are made.
        rate: Adam's learning rate at first; wide networks stay grey at the rates of narrow ones.
        decibels: signal to noise that the picture should have in the end.
    """

    width: int
    samples: int
    octaves: int
    rays: int
    views: int
    pixels: int
    steps: int
    rate: float
    decibels: float


SIZES = {
    "tiny": Size(16, 6, 2, 37, 2, 12, 30, 5e-3, 0.0),
    "small": Size(48, 24, 4, 192, 16, 64, 500, 5e-3, 25.0),
    "full": Size(256, 64, 6, 4096, 64, 256, 3000, 3e-4, 28.0),
}


class Rays:
    """Rays of all pictures, with the colours that they see.

    Args:
        size: how many there are.
        device: where they are.
    """

    def __init__(self, size: Size, device: torch.device):
        views = [camera(2 * math.pi * n / size.views, size.pixels, device) for n in range(size.views)]
        self.origins, self.directions = (torch.cat(parts) for parts in zip(*views, strict=True))
        chunks = zip(self.origins.split(4096), self.directions.split(4096), strict=True)
        self.colours = torch.cat([seen(*chunk) for chunk in chunks])
        self._size = size

    def drawn(self) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Some of them by chance: inputs of the network, and colours."""
        device = self.colours.device
        chosen = torch.randint(len(self.colours), (self._size.rays,), device=device)
        shifts = torch.rand(self._size.rays, self._size.samples, device=device)
        return (self.origins[chosen], self.directions[chosen], shifts), self.colours[chosen]


def picture(model: RadianceField, size: Size, angle: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The scene and what a model makes of it, [pixels, pixels, 3] each; a program computes as many rays as a step has."""
    origins, directions = camera(angle, size.pixels, device)
    shifts = torch.full((size.rays, size.samples), 0.5, device=device)
    count = len(origins)
    whole = -(-count // size.rays) * size.rays
    padded = [torch.cat([rays, rays[:1].expand(whole - count, 3)]).split(size.rays) for rays in (origins, directions)]
    render = kitsune_mlir.compile(model.eval(), (padded[0][0].contiguous(), padded[1][0].contiguous(), shifts))
    made = torch.cat([render(o.contiguous(), d.contiguous(), shifts).clone() for o, d in zip(*padded, strict=True)])[:count]
    wanted = torch.cat([seen(o, d) for o, d in zip(origins.split(4096), directions.split(4096), strict=True)])
    model.train()
    return wanted.reshape(size.pixels, size.pixels, 3), made.reshape(size.pixels, size.pixels, 3)


def write_pictures(out: Path, losses: Sequence[float], wanted: Tensor, made: Tensor) -> list[Path]:
    """The loss over steps, and the two pictures beside each other, as PNG files."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(losses, linewidth=0.8, color="0.7", label="each step")
    window = max(1, len(losses) // 20)
    smooth = torch.tensor(losses).unfold(0, window, 1).mean(1)
    axes.semilogy(range(window - 1, len(losses)), smooth, label=f"mean of {window}")
    axes.set(xlabel="step", ylabel="mean squared error")
    axes.legend()
    figure.savefig(out / "train-loss.png", dpi=120)
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    for each, image, title in zip(figure.subplots(1, 2), (wanted, made), ("the scene", "the network"), strict=True):
        each.imshow(image.clamp(0, 1).cpu().numpy())
        each.set_title(title)
        each.axis("off")
    figure.savefig(out / "train-picture.png", dpi=120)
    return [out / "train-loss.png", out / "train-picture.png"]


def main(argv: list[str] | None = None) -> int:
    """Run the demo; 0 when the picture is as good as it should be."""
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="out", help="folder for the two PNG files (default: out)")
    parser.add_argument("--size", choices=list(SIZES), default="full" if on_gpu else "small")
    parser.add_argument("--steps", type=int, help="how many there are (default: as the size says)")
    given = parser.parse_args(argv)
    out, size = Path(given.out), SIZES[given.size]
    size = dataclasses.replace(size, steps=given.steps or size.steps)
    out.mkdir(parents=True, exist_ok=True)
    console, device = Console(), torch.device("cuda" if on_gpu else "cpu")
    torch.manual_seed(0)
    start = time.perf_counter()
    rays, model = Rays(size, device), RadianceField(size.width, size.samples, size.octaves).to(device)
    optimizer = torch.optim.Adam(model.parameters(), size.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, size.steps, eta_min=size.rate / 20)
    options = {"matmul_precision": "high"}  # TF32 on a GPU; nothing on the host
    step = kitsune_mlir.train_step(model, F.mse_loss, optimizer, options=options)
    losses = [float(step(*rays.drawn()))]
    schedule.step()
    console.print(f"A training step of {size.rays} rays, {size.samples} samples each:")
    for report in step.reports:
        stages = sum(len(program.summary["stages"]) for program in report.programs)
        console.print(f"  {str(report).splitlines()[0]}; {stages} stages")
    begun = time.perf_counter()
    columns = TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("loss", total=size.steps, completed=1)
        pending = []
        for number in range(1, size.steps):
            pending.append(step(*rays.drawn()))
            schedule.step()
            if len(pending) == 20 or number == size.steps - 1:  # on a GPU, numbers are waited for
                losses += torch.stack(pending).tolist()
                pending.clear()
                bar.update(task, completed=number + 1, description=f"loss {losses[-1]:.4f}")
    seconds = time.perf_counter() - begun
    wanted, made = picture(model, size, math.pi / size.views, device)
    decibels = -10 * math.log10(F.mse_loss(made, wanted).item())
    files = write_pictures(out, losses, wanted, made)
    each, whole = 1e3 * seconds / max(1, size.steps - 1), time.perf_counter() - start
    console.print(f"{size.steps} steps, {each:.2f} ms each; {whole:.0f} s in all; loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    console.print(f"from a side that it was not trained on: {decibels:.1f} dB (at least {size.decibels:g})")
    console.print("written: " + ", ".join(map(str, files)))
    return 0 if decibels >= size.decibels else 1


if __name__ == "__main__":
    sys.exit(main())
