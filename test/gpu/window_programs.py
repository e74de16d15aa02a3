"""Windows on a GPU: streams and events, the paper's form, and one kernel an epoch, beside running one after the other.

    python -m test.gpu.window_programs build DIR               # needs the compiler, no GPU
    python -m test.gpu.window_programs run DIR [BACK_END|NET...] [--time]    # needs a Hopper GPU; no compiler

Random streams of programs, some of which change arguments or weights in place; values that are read between, work of the
caller's own stream before and after, memory that is freed while it is in use: all must be equal to the bit to running one after
the other. `--time` prints what an append costs the host, and microseconds a program for chains and fans of programs of few
tiles: one stream, window, paper's form.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from bench.requests.window_nets import NETS, Net
from test.gpu.driver import program_main

STREAMS, STEPS, ROWS, WIDTH = 60, 200, 16, 256
BACK_ENDS = (
    "device",
    "device, debug",
    "device, loops",
    "device, loops, debug",
    "device, in order",
    "device, loops, in order",
    "streams",
    "synchronized",
)
WHOLE = ("device", "device, loops", "streams")
"""Back ends that do all random streams, others a sixth of them."""
KERNEL = "window.epoch"
STREAM = ("layer", "product", "scaled", "total")
"""Programs of random streams."""


class Total(nn.Module):
    """Adds to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        total = self.total
        assert isinstance(total, Tensor)
        total.mul_(0.5).add_(x)
        return torch.tanh(total)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Mixes rows and columns."""
    return torch.tanh(x @ (y.T @ x) * 0.01 + y)


def scaled_(x: Tensor, y: Tensor) -> None:
    """Changes its first argument."""
    x.mul_(0.5).add_(y)


def grow_(x: Tensor) -> None:
    """One step of a loop."""
    x.mul_(1.5).add_(0.25)


def turn_(x: Tensor, left: Tensor) -> None:
    """One step of a loop, which counts itself."""
    x.mul_(1.5).add_(0.25)
    left.sub_(1)


def below(x: Tensor) -> Tensor:
    """Whether the loop goes on."""
    return x.sum() < 1e5


def modules() -> dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]]:
    """What is compiled, by name, with example arguments."""
    x, y = torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    return {"product": (product, (x, y)), "scaled": (scaled_, (x, y)), "total": (Total(), (x,)), "layer": (layer, (x,))} | {
        "grow": (grow_, (x,)),
        "below": (below, (x,)),
        "turn": (turn_, (x, torch.ones(1, dtype=torch.int64))),
    }


def build(folder: Path, names: Sequence[str]) -> None:
    """Compile the programs."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    programs = [kitsune_mlir.compile(model, args, target="sm_90a") for model, args in modules().values()]
    for name, program in zip(modules(), programs, strict=True):
        program.save(folder / f"{name}.kit", ir=False)
    for loops, debug in itertools.product((False, True), repeat=2):
        kernel = kitsune_mlir.epoch_kernel(programs, {"debug": debug}, loops=loops)
        kernel.save(folder / f"{KERNEL}{'.loops' * loops}{'.debug' * debug}")
        print(f"epoch kernel{', loops' * loops}{', debug' * debug}: {kernel.resources}", flush=True)


def opened(folder: Path, back_end: str, size: int = 128) -> Any:
    """A window with a back end."""
    import kitsune_mlir

    kind, *words = back_end.split(", ")
    if kind != "device":
        return kitsune_mlir.Window(size=size, back_end=kind)
    path = folder / f"{KERNEL}{'.loops' * ('loops' in words)}{'.debug' * ('debug' in words)}"
    return kitsune_mlir.Window(size=size, back_end=kind, kernel=_kernel(path), in_order="in order" in words)


@functools.cache
def _kernel(path: Path) -> Any:
    from kitsune_mlir.runtime.epoch_kernel import EpochKernel

    return EpochKernel.load(path)


def random_stream(draw: random.Random, programs: dict, again: dict, make: Callable[[int], Any], steps: int = STEPS) -> str:
    """Run one stream; what is wrong, in words."""
    window = make(draw.choice((2, 8, 64)))
    first = [torch.randn(ROWS, WIDTH, device="cuda") for _ in range(6)]
    values, same = [v.clone() for v in first], [v.clone() for v in first]
    flags = [torch.tensor([n % 2], device="cuda", dtype=torch.int32 if n < 2 else torch.bool) for n in range(4)]
    for step in range(steps):
        name, a, b = draw.choice(STREAM), draw.randrange(6), draw.randrange(5)
        b = (a + 1 + b) % 6
        mine, other = programs[name], again[name]
        if name == "scaled" and draw.random() < 0.5:  # only where a flag, perhaps one that the stream finds, is not zero
            number = draw.randrange(6)
            flag, yes = (flags[number], number % 2) if number < 4 else (window.append(programs["below"], (values[b],)), None)
            window.append(mine, (values[a], values[b]), when=flag)
            if bool(again["below"](same[b])) if yes is None else yes:
                other(same[a], same[b])
        elif name == "scaled":
            window.append(mine, (values[a], values[b]))
            other(same[a], same[b])
        else:  # the tensor that was there is freed while it may be in use
            args, twins = ((values[a], values[b]), (same[a], same[b])) if name == "product" else ((values[a],), (same[a],))
            values[b], same[b] = window.append(mine, args).output, other(*twins)
        if draw.random() < 0.1:  # the caller's stream reads, and changes, what the window has
            task = window.append(programs["layer"], (values[a],))
            twin = again["layer"](same[a])
            if not task.result().equal(twin):
                return f"step {step}: a result differs"
            values[a], same[a] = task.result() * 0.5, twin * 0.5
    window.flush()
    torch.cuda.synchronize()
    wrong = [n for n, (value, twin) in enumerate(zip(values, same, strict=True)) if not value.equal(twin)]
    return f"tensors {wrong} differ at the end" if wrong else ""


def loop(programs: dict, make: Callable[[int], Any], least: int = 40, starts: Sequence[float] = (0, 1, 100, 1e6)) -> str:
    """Loops whose number of steps the device finds out: conditional entries; what is wrong, in words."""
    window, bad = make(64), []
    for start in starts:
        x, y = (torch.full((ROWS, WIDTH), float(start), device="cuda") for _ in range(2))
        steps = 0
        while bool(programs["below"](y)):
            programs["grow"](y)
            steps += 1
        assert steps < least
        flag = window.append(programs["below"], (x,))
        for _ in range(least):
            window.append(programs["grow"], (x,), when=flag)
            flag = window.append(programs["below"], (x,))
        window.flush()
        torch.cuda.synchronize()
        if not x.equal(y) or bool(flag.output):
            bad.append(f"from {start}: {float(x[0, 0])} after {steps} steps, wanted {float(y[0, 0])}")
    for steps in (0, 1, 7, least):  # each step says itself whether there is a next one
        x, y = (torch.ones(ROWS, WIDTH, device="cuda") for _ in range(2))
        left = torch.tensor([steps], device="cuda")
        for _ in range(steps):
            programs["grow"](y)
        window = make(64)
        for _ in range(least):
            window.append(programs["turn"], (x, left), when=left)
        window.flush()
        torch.cuda.synchronize()
        if int(left) or not x.equal(y):
            bad.append(f"{steps} steps that count themselves: {int(left)} left, {float(x[0, 0])}, wanted {float(y[0, 0])}")
    return "; ".join(bad)


def small(folder: Path) -> str:
    """Short streams through both kernels of epochs, and a loop, for slow tools; what is wrong, in words."""
    import kitsune_mlir

    loaded = [{p.stem: kitsune_mlir.load(p) for p in sorted(folder.glob("*.kit"))} for _ in range(2)]
    for back_end in ("device", "device, loops, in order"):
        for each in loaded:
            each["total"].weights["total"].zero_()
        make = functools.partial(opened, folder, back_end)
        bad = random_stream(random.Random(0), loaded[0], loaded[1], make, 24) or loop(loaded[0], make, 9, (20.0, 1e6))
        if bad:
            return f"{back_end}: {bad}"
    return ""


def captured_net(net: Net, calls: int) -> str:
    """Capture an eager program whose segments PyTorch runs, on the window's streams; what is wrong, in words."""
    import kitsune_mlir

    torch.manual_seed(0)
    draw = random.Random(0)
    model, make = net.make(True)
    model.eval().cuda()
    inputs = [tree_map(lambda x: x.cuda() if isinstance(x, Tensor) else x, make(draw)) for _ in range(calls)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
        with kitsune_mlir.window(after=1 << 30) as captured:
            found = [model(x) for x in inputs]
    for number, ((value, path), (other, same)) in enumerate(zip(found, wanted, strict=True)):
        if path != same or not torch.allclose(value, other, rtol=1e-4, atol=1e-5):
            return f"call {number} differs"
    return "" if captured.taken else "nothing was captured"


def run(folder: Path, names: Sequence[str], given: argparse.Namespace) -> int:
    """Check, and with `--time` measure."""
    import kitsune_mlir

    failed = 0
    for back_end in [name for name in names if name not in NETS] if names else BACK_ENDS:
        bad = ""
        loaded = [{p.stem: kitsune_mlir.load(p) for p in sorted(folder.glob("*.kit"))} for _ in range(2)]
        for seed in range(STREAMS if back_end in WHOLE else STREAMS // 6):
            for each in loaded:
                each["total"].weights["total"].zero_()
            make = functools.partial(opened, folder, back_end)
            bad = bad or random_stream(random.Random(seed), loaded[0], loaded[1], make)
        failed += bool(bad)
        print(f"{'FAIL' if bad else 'ok  '} {back_end}: random streams {bad}", flush=True)
        bad = loop(loaded[0], functools.partial(opened, folder, back_end))
        failed += bool(bad)
        print(f"{'FAIL' if bad else 'ok  '} {back_end}: loops {bad}", flush=True)
    for name in [name for name in names if name in NETS] if names else NETS:
        try:
            bad = captured_net(NETS[name], 40)
        except (IndexError, RuntimeError, ValueError) as error:  # a wrong value was read
            bad = f"{type(error).__name__}: {error}"
        failed += bool(bad)
        print(f"{'FAIL' if bad else 'ok  '} captured calls of {name} {bad}", flush=True)
    if given.time:
        for line in times(folder):
            print(line, flush=True)
    return failed


def times(folder: Path) -> list[str]:
    """Host microseconds of an append, and microseconds a program of chains and fans."""
    import kitsune_mlir

    program = kitsune_mlir.load(folder / "layer.kit")
    inputs = [torch.randn(ROWS, WIDTH, device="cuda") for _ in range(16)]
    lines = []
    for shape in ("chain", "fan"):
        for back_end in ("one stream", *BACK_ENDS):
            host, total = [], []
            for _ in range(7):
                torch.cuda.synchronize()
                window = opened(folder, back_end, 4096) if back_end in BACK_ENDS else None
                start = time.perf_counter()
                last = inputs[0]
                for n in range(200):
                    argument = last if shape == "chain" else inputs[n % 16]
                    last = program(argument) if window is None else window.append(program, (argument,)).output
                host.append(time.perf_counter() - start)
                if window is not None:
                    window.flush()
                torch.cuda.synchronize()
                total.append(time.perf_counter() - start)
            each = [1e6 * statistics.median(found) / 200 for found in (host, total)]
            lines.append(f"{shape:6s} {back_end:13s} host {each[0]:6.2f} us, with the device {each[1]:6.2f} us a program")
    return lines


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run, switches={"time": "also measure"}))
