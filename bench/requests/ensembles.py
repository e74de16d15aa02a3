"""Four to eight models on one input, beside one of them alone.

    python -m bench.requests.ensembles [alike_8 unlike_4 ...] [--device cpu] [--small] [--seconds 1] [--json FILE]

"unlike": models of different kinds (`KINDS`); "alike": the first kind, each with weights of its own. Their sizes are such that
one fills a small part of a GPU for about 0.1 ms; how long each takes alone is recorded. "one program" is all of them compiled
together, "window" a program each, appended to a window, "programs, streams" a program each, on eight streams, "batch" (alike
ones) `Program.batch`. Peers: "one after the other",
"streams" (eight), "compile" of all, and "vmap" (alike ones) through torch.compile; on a GPU all from graphs, but for "window",
whose host's part is in its time. `times one` is a way's time by that of the longest model alone through torch.compile (on a GPU
in a graph; on the host eager). Results are compared with float64. f32 on the host, bf16 on a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from bench import host
from bench.measure import exact, relative_errors
from bench.records import Record
from bench.requests.coalesced import on_streams
from bench.requests.scenarios import Attending
from bench.requests.systems import stacked
from bench.timing import environment, graphed, sample_calls, summary

CASES = ("alike_4", "alike_8", "unlike_4", "unlike_8")
PLAIN = "one after the other"
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


class Beside(nn.Module):
    """Layers, each added to what it reads; the mean over places at the end."""

    def __init__(self, layers: Sequence[nn.Module], turned: bool = False):
        super().__init__()
        self.layers, self.turned = nn.ModuleList(layers), turned

    def forward(self, x: Tensor) -> Tensor:
        """[1, places, width] to [1, width]; layers of `turned` ones read [1, width, places]."""
        x = x.mT if self.turned else x
        for layer in self.layers:
            x = x + layer(x)
        return x.mean(2 if self.turned else 1)


class Mixing(nn.Module):
    """Two products across places (MLP-Mixer, arXiv 2105.01601)."""

    def __init__(self, places: int):
        super().__init__()
        self.wide, self.narrow = nn.Linear(places, 2 * places), nn.Linear(2 * places, places)

    def forward(self, x: Tensor) -> Tensor:
        """[1, places, width] to the same."""
        return self.narrow(nn.functional.gelu(self.wide(x.mT))).mT


class Gating(nn.Module):
    """A linear layer of which one half gates the other (GLU, arXiv 1612.08083)."""

    def __init__(self, width: int):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """[1, places, width] to the same."""
        return nn.functional.glu(self.both(x))


class Recurrent(nn.Module):
    """A GRU; its last state."""

    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[1, places, width] to [1, width]."""
        return self.layer(x)[0][:, -1]


def _convolution(width: int, size: int, apart: int, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv1d(width, width, size, padding=apart * (size // 2), dilation=apart, groups=groups)
    return nn.Sequential(layer, nn.ReLU(), nn.Conv1d(width, width, 1)) if groups > 1 else nn.Sequential(layer, nn.ReLU())


def _dense(width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


KINDS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "dense": lambda places, width, count: Beside([_dense(width) for _ in range(count)]),
    "attention": lambda places, width, count: Beside([Attending(width, width // 32) for _ in range(max(1, count // 2))]),
    "convolutions": lambda places, width, count: Beside([_convolution(width, 3, 1) for _ in range(count)], True),
    "mixing": lambda places, width, count: Beside([Mixing(places) for _ in range(count)]),
    "gating": lambda places, width, count: Beside([Gating(width) for _ in range(2 * count)]),
    "dilated": lambda places, width, count: Beside([_convolution(width, 3, 1 << n % 4) for n in range(count)], True),
    "separable": lambda places, width, count: Beside([_convolution(width, 5, 1, width) for _ in range(count)], True),
    "recurrent": lambda places, width, count: Recurrent(width),
}
"""Of so many places, of this width, with so many layers."""
SIZES = {True: (8, 32, 1), False: (64, 256, 8)}


class Ensemble(nn.Module):
    """All models on one input."""

    def __init__(self, models: Sequence[nn.Module]):
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """What each gives."""
        return tuple(model(x) for model in self.models)


def models_of(case: str, small: bool) -> tuple[dict[str, nn.Module], Tensor]:
    """The models of a case by name, and an input, [1, places, width]."""
    kind, _, count = case.partition("_")
    places, width, layers = SIZES[small]
    names = ["dense"] * int(count) if kind == "alike" else [*KINDS][: int(count)]
    made = {f"{name} {number}": KINDS[name](places, width, layers).eval() for number, name in enumerate(names)}
    return made, torch.randn(1, places, width)


def ways(
    case: str, models: Sequence[nn.Module], x: Tensor, only: Sequence[str] = ()
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Calls that run all models, each gives their results; and why those that are missing are.

    Args:
        only: names of ways, beside "one after the other"; all there are if empty.
    """
    together, cuda, alike = Ensemble(models), x.is_cuda, case.startswith("alike")
    programs: list[Any] = []

    def appended() -> list[Tensor]:
        window = kitsune_mlir.Window()
        entries = [window.append(program, (x,)) for program in programs]
        window.flush()
        return [entry.output for entry in entries]

    def compiled_each() -> list[Any]:
        if not programs:
            first = kitsune_mlir.compile(models[0], (x,))
            for model in models:
                weights = dict(model.named_parameters())
                programs.append(first.with_weights(weights) if alike else kitsune_mlir.compile(model, (x,)))
        return programs

    def windowed() -> Callable[[], Any]:
        compiled_each()
        return appended

    def beside() -> Callable[[], Any]:
        own = compiled_each()
        return lambda: on_streams([lambda program=program: program(x) for program in own])

    def one_program() -> Callable[[], Any]:
        program = kitsune_mlir.compile(together, (x,))
        return lambda: program(x)

    def batch() -> Callable[[], Any]:
        program = kitsune_mlir.compile(models[0], (x,), options={"requests": len(models)} if cuda else {})
        own = [program.with_weights(dict(model.named_parameters())) for model in models]
        run = program.batch(len(models))
        return lambda: run([(x,)] * len(models), own)

    def vmapped() -> Callable[[], Any]:
        every = stacked(models)
        rows = x.expand(len(models), *x.shape).contiguous()
        return torch.compile(lambda: every(rows), dynamic=False) if cuda else lambda: every(rows)

    def compiled() -> Callable[[], Any]:
        call = torch.compile(together, dynamic=False)
        return lambda: call(x)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "one program": one_program,
        "window": windowed,
        PLAIN: lambda: lambda: together(x),
    }
    if alike:
        makers |= {"batch": batch, "vmap": vmapped}
    if cuda:
        makers["programs, streams"] = beside
        makers["streams"] = lambda: lambda: on_streams([lambda model=model: model(x) for model in models])
        makers["compile"] = compiled
    made: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    for name, maker in makers.items():
        if only and name not in (PLAIN, *only):
            continue
        try:
            call = maker()
            call()
            made[name] = graphed(call) if cuda and name != "window" else call
        except Exception as error:  # a way that fails costs only itself
            missing[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
    return made, missing


def alone(models: dict[str, nn.Module], x: Tensor) -> dict[str, Callable[[], Any]]:
    """Each model by itself: through torch.compile in a graph on a GPU, eager on the host."""
    if not x.is_cuda:
        return {f"alone: {name}": lambda model=model: model(x) for name, model in models.items()}
    made = {}
    for name, model in models.items():
        torch._dynamo.reset()
        compiled = torch.compile(model, dynamic=False)
        made[f"alone: {name}"] = graphed(lambda compiled=compiled: compiled(x))
    return made


def measure(case: str, device: str, small: bool, seconds: float, only: Sequence[str] = ()) -> dict[str, Any]:
    """A case's entry of the record; `only` as of `ways`."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    models, x = models_of(case, small)
    models = {name: model.to(device, dtype).requires_grad_(False) for name, model in models.items()}
    x = x.to(device, dtype)
    with torch.no_grad():
        wanted = [exact(model, (x,)) for model in models.values()]
        calls, missing = ways(case, list(models.values()), x, only)
        errors = {
            name: max(max(relative_errors(got, want)) for got, want in zip(call(), wanted, strict=True))
            for name, call in calls.items()
        }
        calls |= alone(models, x)
        if device == "cuda":
            times = {name: summary(each) for name, each in sample_calls(calls, queued=True).items()}
        else:
            times = host.milliseconds(calls, seconds)
    longest = max((name for name in times if name.startswith("alone")), key=lambda name: times[name]["median"])
    limit = max(2 * errors[PLAIN], NEAR[dtype])
    return {
        "case": case,
        "ok": max(errors.values()) <= limit and not missing,
        "errors": errors,
        "milliseconds": times,
        "longest": longest,
        "times one": {name: round(times[name]["median"] / times[longest]["median"], 3) for name in errors},
        "missing": missing,
    }


def main() -> int:
    """The command; the exit status is how many cases were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--ways", default="", help="names, between semicolons; all there are by default")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each way, on the host")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    record = Record.open(asked.json)
    where = environment() if asked.device == "cuda" else host.environment()
    record.begin({"command": "python -m bench.requests.ensembles" + " --small" * asked.small, "environment": where})
    for name in asked.names or CASES:
        entry = measure(name, asked.device, asked.small, asked.seconds, [one.strip() for one in asked.ways.split(";") if one])
        record.add(entry)
        print(f"{name}: {entry['longest']} {entry['milliseconds'][entry['longest']]['median']:.4f} ms;", entry["times one"])
        print("  errors", entry["errors"], "missing", entry["missing"], flush=True)
    return sum(not entry["ok"] for entry in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
