"""Loss curves of whole training steps beside eager PyTorch's, and memory over many steps.

    python -m bench.curves [NAME...] [--device cpu] [--dtype f32] [--steps 200] [--json FILE] [--resume] [--chart FILE]
    python -m bench.curves --flat 10000 [--device cpu]

Models are those of `bench/training_cases.py` at their small size, trained with AdamW on four batches in turn, from one seed.
f32: a curve is right if it is from eager's at most three times as far (or 1e-4) as the farthest of eight eager runs is whose
products are added up in other orders, and if a step from eager's own weights, along its curve, is at most twice as far from
float64's as eager's is (medians). Curves part for good where the input of one ReLU rounds to the other side of zero.
bf16: it is right if its mean distance to eager's f32 curve is at most 1.1 times eager bf16's.
`--flat` trains a small model for so many steps, and fails where memory grows after the first tenth of them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import importlib.util
import resource
import statistics
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
from bench.training import SECONDS, Case, adamw, parameters_of, widened
from bench.training_cases import CASES

EIGHT = ("mgn", "nerf", "gcast", "llama", "bert_base", "gpt2", "vit_s", "resnet50")
BATCHES = 4
LEAST, FACTOR, NARROW_FACTOR = 1e-4, 3.0, 1.1
ORDERS = 8
"""Eager runs beside eager's. Some of gcast's part and others do not: one run says nothing."""
UPDATE_FACTOR, APART = 2.0, 5
"""How much farther from float64 an update may be than eager's, and after how many steps one is looked at."""
GROWTH = 4 << 20
"""Bytes that a process may grow by without a leak: its allocator's and Python's own."""


class Reordered(TorchFunctionMode):
    """While it is entered, linear layers and convolutions add up what they read in another order, drawn from a seed."""

    def __init__(self, seed: int):
        super().__init__()
        self._seed = seed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`func` of columns that are permuted in both factors."""
        kwargs = kwargs or {}
        if func in _SUMMED and len(args) > 1 and args[1].dim() > 1 and args[0].shape[_SUMMED[func]] == args[1].shape[1]:
            x, weight, *rest = args
            drawn = torch.Generator().manual_seed(self._seed)
            order = torch.randperm(weight.shape[1], generator=drawn).to(weight.device)
            return func(x.index_select(_SUMMED[func], order), weight.index_select(1, order), *rest, **kwargs)
        return func(*args, **kwargs)


_SUMMED: dict[Any, int] = {F.linear: -1, F.conv2d: 1, torch.conv2d: 1}


def batches_of(case: Case) -> list[tuple[Tensor, ...]]:
    """What a case is trained on, in turn."""
    drawn = torch.Generator().manual_seed(7)
    return [
        tuple(a + 0.3 * torch.randn(a.shape, generator=drawn).to(a) if a.is_floating_point() else a for a in case.args)
        for _ in range(BATCHES)
    ]


class Trained:
    """A copy of a case's model with its optimizer, which a call moves by one step.

    Args:
        kind: "kitsune" or "eager".
        dtype: of all numbers, instead of the case's.
        mode: what an eager step runs in.
    """

    def __init__(self, case: Case, kind: str, dtype: torch.dtype | None = None, mode: TorchFunctionMode | None = None):
        import kitsune_mlir

        self._case, self._dtype, self._mode = case, dtype, mode or contextlib.nullcontext()
        self.objective = case.objective(dtype)
        self.optimizer = adamw(self.objective, case.device, fused=False)
        whole = self.objective.model, self.objective.loss, self.optimizer
        self._step = kitsune_mlir.train_step(*whole) if kind == "kitsune" else None

    def __call__(self, args: tuple[Tensor, ...]) -> Tensor:
        """The loss before a step."""
        args, targets = (widened(some, self._dtype) for some in (args, self._case.targets))
        with self._case.context(self._dtype), self._mode:
            if self._step is not None:
                return self._step(args, *targets)
            loss = self.objective(args, targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()

    def start_from(self, other: Trained) -> None:
        """Take another's weights and state."""
        self.objective.load_state_dict(other.objective.state_dict())
        self.optimizer.load_state_dict(copy.deepcopy(other.optimizer.state_dict()))

    def weights(self) -> Tensor:
        """All that is trained, in float64."""
        return torch.cat([p.detach().double().flatten() for p in parameters_of(self.objective)])


def curve(case: Case, count: int, trained: Trained) -> list[float]:
    """Losses of so many steps."""
    batches = batches_of(case)
    return [float(loss) for loss in [trained(batches[n % BATCHES]) for n in range(count)]]


def update_errors(case: Case, count: int, ours: Trained) -> dict[str, float]:
    """How far one step from eager's weights is from float64's: ‖update - exact‖ / ‖exact‖, the median along eager's curve.

    `ours` has made steps before; its weights and state are replaced.
    """
    eager, exact = Trained(case, "eager"), Trained(case, "eager", torch.float64)
    batches = batches_of(case)
    errors: dict[str, list[float]] = {"kitsune": [], "eager": []}
    for n in range(count):
        args = batches[n % BATCHES]
        if n % APART != 1:
            eager(args)
            continue
        before = eager.weights()
        for other in (ours, exact):
            other.start_from(eager)
        for one in (ours, eager, exact):
            one(args)
        update = exact.weights() - before
        for kind, one in (("kitsune", ours), ("eager", eager)):
            errors[kind].append(float((one.weights() - exact.weights()).norm() / update.norm()))
    return {kind: statistics.median(some) for kind, some in errors.items()}


def distance(one: Sequence[float], other: Sequence[float], mean: bool = False) -> float:
    """The largest difference of two curves, or the mean one."""
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return statistics.fmean(apart) if mean else max(apart)


def measure(name: str, device: str, dtype: str, count: int) -> dict[str, Any]:
    """A case's curves, and how far they are from each other."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._dynamo.reset()
    case = Case(CASES[name], "small", dtype, device)
    trained = Trained(case, "kitsune")
    ours, eager = curve(case, count, trained), curve(case, count, Trained(case, "eager"))
    more: dict[str, Any] = {}
    if dtype == "f32":
        orders = [Trained(case, "eager", mode=Reordered(seed)) for seed in range(ORDERS)]
        others = [distance(curve(case, count, other), eager) for other in orders]
        errors = update_errors(case, count, trained)
        more = {"eager_distances": others, "update_error": errors["kitsune"], "eager_update_error": errors["eager"]}
        apart, allowed = distance(ours, eager), max(LEAST, FACTOR * max(others))
    else:
        other = Case(CASES[name], "small", "f32", device)
        wide = curve(other, count, Trained(other, "eager"))
        apart, allowed = distance(ours, wide, mean=True), NARROW_FACTOR * distance(eager, wide, mean=True)
    every = max(1, count // 50)
    exact = dtype != "f32" or more["update_error"] <= UPDATE_FACTOR * more["eager_update_error"]
    found = {
        **more,
        "distance": apart,
        "allowed": allowed,
        "right": apart <= allowed and exact,
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
