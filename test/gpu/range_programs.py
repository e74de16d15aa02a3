"""Products of concatenated and gathered rows on a device: programs built on one machine, run and checked on another.

    python -m test.gpu.range_programs build DIR [NAME ...]          # needs the compiler, no GPU
    python -m test.gpu.range_programs run DIR [NAME ...] [--time]   # needs a Hopper GPU, torch; no compiler

`--time` also times each program beside one that joins the rows in memory first, and beside torch, in CUDA graphs. Each case
runs twice, and from a graph, against float64. One that hangs or crashes costs only itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from test.gpu.driver import answers, check_each, program_main, report, spilled_bytes

LIMIT_SECONDS = 20
ENTRIES = 321
DTYPES = {"bf16": (torch.bfloat16, 2e-2), "f16": (torch.float16, 5e-3), "f32": (torch.float32, 1e-5)}


@dataclasses.dataclass(frozen=True)
class Case:
    """relu(linear(cat([...], -1))).

    Attributes:
        rows, cols: of the result.
        parts: of the sum: a width, and "x" for an input, "g" for rows of a table, "r" for an input's rows after a ReLU (another
            stage), "s" for columns 8 and up of a wider input, "z" for zeros.
        forced: read in place whatever the planner thinks of it, by the mma engine.
        swiglu: times another product of the same rows.
    """

    rows: int
    cols: int
    parts: tuple[str, ...]
    dtype: str = "bf16"
    forced: bool = False
    swiglu: bool = False


CASES = {
    "two": Case(1000, 512, ("64x", "128x")),
    "odd_widths": Case(1000, 520, ("72x", "200x", "8x")),
    "odd_rows": Case(129, 700, ("128x", "40x", "256x")),
    "gathered": Case(1000, 1024, ("128g",)),
    "mixed": Case(1000, 1024, ("128x", "72g", "64x", "200g")),
    "computed": Case(1000, 1024, ("128x", "96r")),
    "computed_gathered": Case(1000, 1024, ("96g", "128r")),
    "sliced": Case(1000, 512, ("64s", "128x")),
    "zeros": Case(1000, 512, ("128x", "64z", "64x")),
    "long": Case(129, 512, ("1024x", "1000x", "2048g")),
    "shared_tiles": Case(128, 384, ("1024x", "512g", "1000x"), forced=True),
    "half": Case(777, 512, ("128x", "64g"), dtype="f16"),
    "f32": Case(300, 520, ("64x", "36x"), dtype="f32"),
    "f32_gathered": Case(300, 520, ("64x", "36g"), dtype="f32", forced=True),
    "ragged": Case(1000, 704, ("13x", "128x")),
    "ragged_forced": Case(1000, 704, ("13x", "128x"), forced=True),
    "ragged_mixed_forced": Case(1000, 704, ("13x", "128g", "3x"), forced=True),
    "ragged_even_forced": Case(129, 300, ("14x", "40g", "10x"), forced=True),
    "rows_1": Case(1, 512, ("64x", "128x")),
    "rows_7_forced": Case(7, 512, ("64x", "72g", "128x"), forced=True),
    "narrow": Case(300, 27, ("64x", "72g")),
    "narrow_forced": Case(300, 27, ("64x", "72g"), forced=True),
    "swiglu": Case(300, 704, ("128x", "72g", "256x"), swiglu=True),
    "big": Case(4096, 1024, ("512x", "256x", "256x")),
    "big_gathered": Case(8192, 1024, ("512x", "256g", "256g")),
    "tall": Case(65536, 512, ("128x", "128g", "64x")),
}
TIMED = ("big", "big_gathered", "tall", "gathered", "long")


class Model(nn.Module):
    """See `Case`."""

    def __init__(self, case: Case):
        super().__init__()
        self.case, dtype = case, DTYPES[case.dtype][0]
        widths = [int(part[:-1]) for part in case.parts]
        self.layer = nn.Linear(sum(widths), case.cols).to(dtype)
        self.gate = nn.Linear(sum(widths), case.cols, bias=False).to(dtype) if case.swiglu else None

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        left, parts = list(inputs), []
        for part in self.case.parts:
            width, kind = int(part[:-1]), part[-1]
            if kind == "z":
                parts.append(self.layer.weight.new_zeros(self.case.rows, width))
                continue
            value = left.pop(0)
            if kind == "g":
                value = value[left.pop(0)]
            parts.append(torch.relu(value) if kind == "r" else value[:, 8:] if kind == "s" else value)
        joined = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        made = torch.relu(self.layer(joined))
        return made * torch.nn.functional.silu(self.gate(joined)) if self.gate is not None else made


def inputs_of(case: Case, device: str) -> tuple[torch.Tensor, ...]:
    """Random inputs."""
    dtype, made = DTYPES[case.dtype][0], []
    for part in case.parts:
        width, kind = int(part[:-1]), part[-1]
        if kind == "z":
            continue
        shape = (ENTRIES if kind == "g" else case.rows, width + (8 if kind == "s" else 0))
        made.append(torch.randn(*shape, device=device).to(dtype))
        if kind == "g":
            made.append(torch.randint(0, ENTRIES, (case.rows,), device=device))
    return tuple(made)


def model_of(case: Case) -> Model:
    """The model, its weights from a fixed seed."""
    torch.manual_seed(0)
    return Model(case).eval().requires_grad_(False)


def compiled(case: Case, joined: bool = False):
    """The program; `joined`: rows are joined in memory first."""
    import kitsune_mlir
    from kitsune_mlir.passes import form_stages
    from kitsune_mlir.passes.stages import sum_ranges

    passes = {"kitsune-form-stages": "chains=false", "kitsune-partition-streams": "without=gemv"} if case.forced else {}
    patches = []
    if case.forced:
        patches += [mock.patch.object(sum_ranges, "ROW_BYTES", 1), mock.patch.object(sum_ranges, "GATHERED_BYTES", (2, 4))]
        patches += [mock.patch.object(sum_ranges, "few_rows", lambda op: None)]
    if joined:
        patches += [mock.patch.object(form_stages, "mark_ranges", lambda grouping: False)]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        return kitsune_mlir.compile(model_of(case), inputs_of(case, "cpu"), target="sm_90a", options={"passes": passes})


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases; the number of those that spill, or that are not done as the case wants."""
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        program = compiled(CASES[name])
        engines = program.summary["engines"]
        ranged = any("ranges" in engine["parameters"] for engine in engines)
        spills = spilled_bytes(program)
        wrong = bool(spills) or (CASES[name].forced and not ranged)
        bad += wrong
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        told = ", ".join(f"{e['engine']} {e['parameters'].get('ranges', '')}" for e in engines)
        reasons = [reason for engine in engines for reason in engine["declined"]]
        print(f"{'BAD  ' if wrong else ''}{name:20s} {told}; {spills} spilled {reasons or ''}", flush=True)
        if name in TIMED:
            compiled(CASES[name], joined=True).save(folder / f"{name}.joined.kit", weights=False, ir=False)
    return bad


def check(folder: Path, name: str, timing: bool) -> tuple[bool, dict]:
    """Run a case and compare; whether it is right, and what was found."""
    import kitsune_mlir

    case = CASES[name]
    model = model_of(case).cuda()
    state = dict(model.named_parameters())
    inputs = inputs_of(case, "cuda")
    program = kitsune_mlir.load(folder / f"{name}.kit", weights=state)
    with torch.no_grad():
        exact = Model(dataclasses.replace(case, dtype="f32")).cuda().double()
        exact.load_state_dict({key: value.double() for key, value in state.items()})
        wanted = exact(*(x.double() if x.is_floating_point() else x for x in inputs))
        results = [program(*inputs) for _ in range(2)]
        replay, kept = graphed(lambda: program(*inputs))
        replay()
        torch.cuda.synchronize()
    errors = [((got.double() - wanted).norm() / wanted.norm()).item() for got in (*results, kept)]
    found: dict = {"error": max(errors), "bits": torch.equal(results[0], results[1])}
    right = all(error <= DTYPES[case.dtype][1] for error in errors)
    if timing and right and name in TIMED:
        joined = kitsune_mlir.load(folder / f"{name}.joined.kit", weights=state)
        calls = {"ours": lambda: program(*inputs), "joined": lambda: joined(*inputs), "torch": lambda: model(*inputs)}
        found |= timed({key: graphed(call)[0] for key, call in calls.items()})
    return right, found


def graphed(call) -> tuple:
    """The call in a graph, and what it returns."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = call()
    return graph.replay, kept


def timed(calls: dict) -> dict[str, float]:
    """Median microseconds of 30 calls of each, ten back to back, interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(33):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(10):
                call()
            end.record()
            end.synchronize()
            samples[name].append(start.elapsed_time(end) * 100)
    return {name: round(statistics.median(found[3:]), 2) for name, found in samples.items()}


def part(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases one after the other and report each; ends when one has lost the context."""
    return check_each(names, lambda name: check(folder, name, given.time))


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases; the number of those that failed."""
    wanted = names or [name for name in CASES if (folder / f"{name}.kit").exists()]
    return report(answers("test.gpu.range_programs", folder, wanted, LIMIT_SECONDS, ["--time"] * given.time))


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part, {"time": "also time some cases"}))
