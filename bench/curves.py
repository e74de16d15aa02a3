"""Loss curves of whole training steps beside eager PyTorch's, and memory over many steps.

    python -m bench.curves [NAME...] [--device cpu] [--dtype f32] [--steps 200] [--json FILE] [--resume] [--chart FILE]
    python -m bench.curves --flat 10000 [--device cpu]

Models are those of `bench/training_cases.py` at their small size, trained with AdamW on four batches in turn, from one seed.
f32: a curve is right if it is from eager's at most three times as far (or 1e-4) as a second eager run is, whose products are
added up in two halves. bf16: it is right if its mean distance to eager's f32 curve is at most 1.1 times eager bf16's.
`--flat` trains a small model for so many steps, and fails where memory grows after the first tenth of them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bench.case import DTYPES
from bench.forked import answer_of, answers_of
from bench.library import device_here, environment_of
from bench.records import Record
from bench.training import SECONDS, Case, adamw
from bench.training_cases import CASES

EIGHT = ("mgn", "nerf", "gcast", "llama", "bert_base", "gpt2", "vit_s", "resnet50")
BATCHES = 4
LEAST, FACTOR, NARROW_FACTOR = 1e-4, 3.0, 1.1
GROWTH = 4 << 20
"""Bytes that a process may grow by without a leak: its allocator's and Python's own."""


class Halves(TorchFunctionMode):
    """While it is entered, linear layers and convolutions add up two halves of what they read: sums in another order."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`func`, or two of it."""
        kwargs = kwargs or {}
        if func in _SPLIT and len(args) > 1 and args[1].dim() > 1 and args[0].shape[_SPLIT[func]] == args[1].shape[1] > 1:
            x, weight, *rest = args
            half, dim = weight.shape[1] // 2, _SPLIT[func]
            bias = rest[0] if rest else kwargs.pop("bias", None)
            first = func(x.narrow(dim, half, weight.shape[1] - half), weight[:, half:], bias, *rest[1:], **kwargs)
            return first + func(x.narrow(dim, 0, half), weight[:, :half], None, *rest[1:], **kwargs)
        return func(*args, **kwargs)


_SPLIT: dict[Any, int] = {F.linear: -1, F.conv2d: 1, torch.conv2d: 1}


def curve(case: Case, count: int, kind: str) -> list[float]:
    """Losses of so many steps: of "kitsune", "eager", or "halves" (eager in another order)."""
    import kitsune_mlir

    objective = case.objective()
    best = adamw(objective, case.device, fused=False)
    drawn = torch.Generator().manual_seed(7)
    batches = [
        tuple(a + 0.3 * torch.randn(a.shape, generator=drawn).to(a) if a.is_floating_point() else a for a in case.args)
        for _ in range(BATCHES)
    ]
    step = kitsune_mlir.train_step(objective.model, objective.loss, best) if kind == "kitsune" else None
    mode = Halves() if kind == "halves" else contextlib.nullcontext()
    losses = []
    for n in range(count):
        args = batches[n % BATCHES]
        with case.context(), mode:
            if step is not None:
                losses.append(step(args, *case.targets))
            else:
                loss = objective(args, case.targets)
                loss.backward()
                best.step()
                best.zero_grad()
                losses.append(loss.detach())
    return [float(loss) for loss in losses]


def distance(one: Sequence[float], other: Sequence[float], mean: bool = False) -> float:
    """The largest difference of two curves, or the mean one."""
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return sum(apart) / len(apart) if mean else max(apart)


def measure(name: str, device: str, dtype: str, count: int) -> dict[str, Any]:
    """A case's curves, and how far they are from each other."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._dynamo.reset()
    case = Case(CASES[name], "small", dtype, device)
    ours, eager = curve(case, count, "kitsune"), curve(case, count, "eager")
    if dtype == "f32":
        apart, allowed = distance(ours, eager), max(LEAST, FACTOR * distance(curve(case, count, "halves"), eager))
    else:
        wide = curve(Case(CASES[name], "small", "f32", device), count, "eager")
        apart, allowed = distance(ours, wide, mean=True), NARROW_FACTOR * distance(eager, wide, mean=True)
    every = max(1, count // 50)
    found = {
        "distance": apart,
        "allowed": allowed,
        "right": apart <= allowed,
        "learned": eager[-1] < eager[0],
        "kitsune": [round(loss, 6) for loss in ours[::every]],
        "eager": [round(loss, 6) for loss in eager[::every]],
    }
    return {"case": f"{name}_{dtype}", "steps": count, "every": every, **found}


def _taken(device: str) -> int:
    """Bytes that are in use now: of the GPU as its driver counts them, else of the process at most."""
    if device == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def flat(device: str, count: int) -> dict[str, Any]:
    """Trains a small model for so many steps, with a rate and betas that change in each."""
    import kitsune_mlir

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).to(device)
    best = torch.optim.AdamW(model.parameters(), 1e-3, capturable=device == "cuda")
    plan = torch.optim.lr_scheduler.OneCycleLR(best, 1e-2, total_steps=count + 1)
    step = kitsune_mlir.train_step(model, F.mse_loss, best)
    target: Tensor | None = None
    before, loss = 0, torch.zeros(())
    for n in range(count):
        x = torch.randn(32, 16, device=device)
        target = x[:, :4].sin()
        loss = step(x, target)
        plan.step()
        if n == count // 10:
            before = _taken(device)
    grown = _taken(device) - before
    learned = float(loss) < 0.1
    right = grown <= GROWTH and learned and len(step.reports) == 1
    return {"case": f"flat_{count}", "grown_bytes": grown, "programs": len(step.reports), "loss": float(loss), "right": right}


def draw(cases: dict[str, dict[str, Any]], path: Path) -> None:
    """All curves as one picture."""
    from bench.charts import draw_curves

    draw_curves({name: one for name, one in cases.items() if "kitsune" in one}, path)


def main() -> int:
    """Command line; the exit status is the number of cases that are not right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(EIGHT)}")
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--dtype", default="f32", choices=list(DTYPES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--flat", type=int, default=0, help="train a small model for so many steps, instead")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out cases that the file has")
    parser.add_argument("--chart", type=Path, help="draw what the record has, as SVG")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in CASES]:
        parser.error(f"there is no {unknown[0]}")
    given.device = given.device or answer_of(device_here, "device", SECONDS)["device"]
    record = Record.open(given.json, given.resume)
    works: dict[str, Callable[[], dict[str, Any]]] = {}
    if given.flat:
        works[f"flat_{given.flat}"] = functools.partial(flat, given.device, given.flat)
    for name in () if given.flat else given.names or EIGHT:
        library, case = CASES[name].library, f"{name}_{given.dtype}"
        if library and importlib.util.find_spec(library) is None:
            print(f"{name}: missing: {library} is not installed (extra `breadth`)")
        elif case not in record.cases:
            works[case] = functools.partial(measure, name, given.device, given.dtype, given.steps)

    def tell(case: str, answer: dict[str, Any]) -> None:
        record.add({"case": case, **answer})
        print(case, {key: value for key, value in answer.items() if key not in ("kitsune", "eager")}, flush=True)

    if works:
        about = answer_of(functools.partial(environment_of, given.device, given.json), "environment", SECONDS)
        record.begin({"environment": about, "command": "python -m bench.curves"})
        answers_of(works, given.seconds, given.jobs, tell)
    if given.chart:
        draw(record.cases, given.chart)
    bad = [case for case, one in record.cases.items() if not one.get("right")]
    print(f"{len(record.cases) - len(bad)} of {len(record.cases)} right", *bad, sep="\n  ")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
