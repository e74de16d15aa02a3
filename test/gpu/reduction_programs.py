"""Reductions in parts, in one launch and in separate ones, on a GPU.

    python -m test.gpu.reduction_programs build DIR [names...]               # needs the compiler, no GPU
    python -m test.gpu.reduction_programs run DIR [names...] [--time]        # needs a Hopper GPU; no compiler

Each case is compiled whole (`kitsune-split-reductions{parts=1}`), by the planner's choice, and by that in separate launches.
`run` compares all with float64 on fresh inputs, launches them repeatedly, on two streams and from a captured graph, where the
results must be the same bit by bit, and with `--time` prints microseconds of ten calls in a graph beside eager PyTorch.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.sweeps import Function
from test.gpu.driver import program_main, spilled_bytes

PASS = "kitsune-split-reductions"
FORMS = {"whole": (1, "temporal"), "temporal": (0, "temporal"), "separate": (0, "separate")}
"""By name of a form: the pass's option `parts`, and the mode."""
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12, torch.int64: 0.0}


def normalised(x: Tensor) -> Tensor:
    """A batch, normalised by its own statistics."""
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


def gradient(x: Tensor, y: Tensor) -> Tensor:
    """A sum over the batch of outer products."""
    return x.T @ y


def softmax(x: Tensor) -> Tensor:
    """Over the batch."""
    return torch.softmax(x, 0)


def both(x: Tensor, y: Tensor) -> Tensor:
    """A long sum for each element of a small product."""
    return x @ y


BF16, F32, F64, I64 = torch.bfloat16, torch.float32, torch.float64, torch.int64
CASES: dict[str, tuple[Callable[..., Tensor], torch.dtype, tuple[tuple[int, ...], ...]]] = {
    "gradient_64": (gradient, BF16, ((65536, 64), (65536, 64))),
    "gradient_256": (gradient, BF16, ((65536, 256), (65536, 256))),
    "gradient_1000": (gradient, BF16, ((65536, 1000), (65536, 264))),  # two blocks load common columns once
    "gradient_264": (gradient, BF16, ((65536, 264), (65536, 1000))),  # and common rows
    "gradient_odd": (gradient, F32, ((50001, 13), (50001, 7))),
    "gradient_129": (gradient, BF16, ((8256, 129), (8256, 40))),
    "long_rows_1": (both, BF16, ((1, 65536), (65536, 16))),
    "long_rows_7": (both, BF16, ((7, 32000), (32000, 33))),
    "long_rows_128": (both, BF16, ((128, 32768), (32768, 128))),
    "double": (both, F64, ((64, 16384), (16384, 64))),
    "integers": (both, I64, ((16, 10000), (10000, 24))),
    "batch_norm": (normalised, F32, ((65536, 64),)),
    "batch_norm_odd": (normalised, F32, ((10001, 129),)),
    "batch_norm_7": (normalised, F32, ((7, 33),)),
    "batch_norm_1000": (normalised, F32, ((1000, 1000),)),
    "batch_softmax": (softmax, F32, ((65536, 64),)),
    "batch_softmax_1": (softmax, F32, ((1, 129),)),
    "long_softmax": (lambda x: torch.softmax(x, -1), F32, ((4, 1000000),)),
    "dot": (lambda x, y: (x * y).sum(), F32, ((4000000,), (4000000,))),
}


def inputs(name: str, device: str, seed: int) -> tuple[Tensor, ...]:
    """A case's arguments."""
    _, dtype, shapes = CASES[name]
    maker = torch.Generator(device).manual_seed(seed)
    if dtype == I64:
        return tuple(torch.randint(-9, 10, shape, generator=maker, device=device) for shape in shapes)
    return tuple(torch.randn(shape, generator=maker, device=device, dtype=F32).to(dtype) for shape in shapes)


def build(folder: Path, names: Sequence[str]) -> int:
    """Write NAME.FORM.kit of each case; returns how many have spills."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        for form, (parts, mode) in FORMS.items():
            options = {"schedule": mode, "passes": {PASS: f"parts={parts}"} if parts else {}}
            program = kitsune_mlir.compile(Function(CASES[name][0]), inputs(name, "cpu", 0), target="sm_90a", options=options)
            program.save(folder / f"{name}.{form}.kit", ir=False)
            bad += spilled_bytes(program) > 0
            engines = ", ".join(f"{e['task']} {e['engine']} {e['tiles']}" for e in program.summary["engines"])
            print(f"{name} {form}: {engines}", flush=True)
    return bad


def problems(name: str, form: str, program: Callable[..., Tensor]) -> list[str]:
    """What is wrong with a form of a case; nothing if it is right."""
    from bench.timing import graphed

    function, dtype, _ = CASES[name]
    args = inputs(name, "cuda", 1)
    # On the processor: cuBLAS has no products of integers.
    wanted = function(*(a.double() for a in args)) if dtype != I64 else function(*(a.cpu() for a in args)).cuda()
    got = program(*args)
    error = ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(1e-30)).item()
    found = [] if error <= TOLERANCE[dtype] else [f"error {error:.1e}"]
    again = [program(*args) for _ in range(20)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                again.append(program(*args))
    torch.cuda.synchronize()
    again.append(graphed(lambda: program(*args))())
    torch.cuda.synchronize()
    differ = sum(not torch.equal(got, one) for one in again)
    found += [f"{differ} of {len(again)} runs differ"] if differ else []
    print(f"{'FAIL' if found else 'ok  '} {name} {form}: error {error:.1e} {' '.join(found)}", flush=True)
    return found


def times(name: str, programs: dict[str, Callable[..., Tensor]]) -> None:
    """Print microseconds of each form beside eager PyTorch, ten calls in a graph."""
    from bench.timing import graphed, sample_calls

    args = inputs(name, "cuda", 1)
    eager = {} if CASES[name][1] == I64 else {"eager": CASES[name][0]}

    def ten(call: Callable[..., Tensor]) -> Callable[[], Tensor]:
        return graphed(lambda: [call(*args) for _ in range(10)][-1])

    samples = sample_calls({form: ten(call) for form, call in {**eager, **programs}.items()}, rounds=4, each=8)
    print(f"     {name}", {form: round(statistics.median(found) * 100, 2) for form, found in samples.items()}, flush=True)


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Check the packages of a folder; returns how many are wrong."""
    import kitsune_mlir

    bad = 0
    with torch.no_grad():
        for name in names or CASES:
            programs = {form: kitsune_mlir.load(folder / f"{name}.{form}.kit") for form in FORMS}
            bad += sum(bool(problems(name, form, program)) for form, program in programs.items())
            if given.time:
                times(name, programs)
    return bad


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, switches={"time": "each form, in turns"}))
