"""Rows added at indices in a fixed order, on a GPU: the same bits on every run, and those of a loop over the rows.

    python -m test.gpu.scatter_programs build DIR               # needs the compiler, no GPU
    python -m test.gpu.scatter_programs run DIR [--time]        # needs a Hopper GPU; no compiler

f32 and integers must be what PyTorch gives on the processor, bit by bit; bf16 is compared with float64. Every case runs
twenty times, from a captured graph and on two streams. `--time` prints microseconds beside the form with atomics, and eager's.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.models import make
from bench.timing import graphed, time_calls
from test.gpu.driver import program_main, run_of, spilled_bytes
from test.programs.scatters import forms

RUNS = 20
FORMS = {"ordered": True, "atomic": False}
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-5}
ROWS: dict[str, tuple[int, int, int, torch.dtype, str]] = {
    "mesh": (120_000, 128, 20_000, torch.bfloat16, "any"),
    "mesh_f32": (120_000, 128, 20_000, torch.float32, "any"),
    "one_row": (10_000, 64, 1, torch.float32, "any"),
    "skewed": (50_000, 32, 1000, torch.float32, "skewed"),
    "odd": (1000, 7, 129, torch.float32, "any"),
    "column": (129, 1, 7, torch.float32, "any"),
    "wide": (1000, 1000, 129, torch.bfloat16, "any"),
    "integers": (12_345, 3, 1000, torch.int64, "any"),
    "sorted": (200_000, 16, 100_000, torch.float32, "sorted"),
}
"""By name: rows that are added, columns, rows of the result, and how indices are spread."""
PUTS: dict[str, tuple[str, int, int, int, torch.dtype]] = {
    "largest_rows": ("amax with self of rows", 20_000, 120_000, 64, torch.float32),
    "largest_rows_bf16": ("amax with self of rows", 20_000, 120_000, 64, torch.bfloat16),
    "largest_alone": ("amax alone of rows", 20_000, 120_000, 64, torch.float32),
    "largest_elements": ("amax with self", 20_000, 120_000, 64, torch.float32),
    "largest_column": ("amax with self of rows", 100_000, 1_000_000, 1, torch.float32),
    "largest_odd_bf16": ("amax with self of rows", 1000, 12_345, 7, torch.bfloat16),
    "smallest_i64": ("amin with self of rows", 20_000, 120_000, 64, torch.int64),
    "product_rows": ("prod with self of rows", 20_000, 120_000, 64, torch.float32),
    "mean_rows": ("mean alone of rows", 20_000, 120_000, 64, torch.float32),
    "odd_bf16": ("expanded", 20_000, 120_000, 7, torch.bfloat16),
    "elements": ("accumulate elements", 20_000, 1_000_000, 64, torch.float32),
    "columns": ("index_add of columns", 20_000, 50_000, 64, torch.float32),
    "assigned_rows": ("index_put", 200_000, 1, 64, torch.float32),
    "assigned_rows_bf16": ("index_copy", 200_000, 1, 129, torch.bfloat16),
    "assigned_columns": ("index_copy of columns", 100_000, 1, 64, torch.bfloat16),
    "assigned_last": ("index_copy of the last", 100_000, 1, 64, torch.float32),
    "assigned_column": ("scatter rows", 1_000_000, 1, 1, torch.float32),
    "assigned_flags": ("scatter", 100_000, 1, 8, torch.bool),
    "number": ("index_put of a number", 200_000, 100_000, 64, torch.float32),
    "slice": ("slice_scatter", 200_000, 1, 64, torch.float32),
    "slice_with_steps": ("slice_scatter with steps", 200_000, 1, 64, torch.float32),
    "one_hot": ("one hot", 100_000, 1, 64, torch.float32),
}
"""Other kinds and spellings, by name: the form of `test.programs.scatters` and its sizes."""
MODELS = ("mgn.small", "gcast.small", "mgn.full")
CASES = (*ROWS, *PUTS, *MODELS)


class Put(nn.Module):
    """A function of tensors."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


class Sum(nn.Module):
    """Rows added at indices to what is given."""

    def forward(self, start: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        return start.index_add(0, indices, updates)


def made(name: str, device: str = "cpu") -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Model and inputs of a case."""
    if name in MODELS:
        model, size = name.split(".")
        module, args = make(model, size=size, dtype=torch.bfloat16, device=device)
        return module, args
    if name in PUTS:
        form, rows, updates, columns, dtype = PUTS[name]
        torch.manual_seed(0)
        function, values = forms(rows, updates, columns, dtype)[form]
        return Put(function), tuple(x.to(device) for x in values)
    updates, columns, rows, dtype, spread = ROWS[name]
    if dtype.is_floating_point:
        values = [(torch.randn(n, columns) * 10.0 ** torch.randint(-2, 3, (n, 1))).to(dtype) for n in (rows, updates)]
    else:
        values = [torch.randint(-1000, 1000, (n, columns)) for n in (rows, updates)]
    indices = torch.randint(0, rows, (updates,))
    if spread == "skewed":
        indices[: updates // 2] = 3
    if spread == "sorted":
        indices = indices.sort().values
    return Sum(), tuple(x.to(device) for x in (values[0], indices, values[1]))


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile every case in both forms; how many spill."""
    import kitsune_mlir

    bad = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        for form, deterministic in FORMS.items():
            program = kitsune_mlir.compile(*made(name), target="sm_90a", options={"deterministic": deterministic})
            program.save(folder / f"{name}.{form}.kit", weights=False, ir=False)
            engines = ", ".join(sorted({e["engine"] for e in program.summary["engines"]}))
            spilled = spilled_bytes(program)
            bad += spilled > 0
            print(f"{'BAD  ' if spilled else ''}{name}.{form}: {engines}; {spilled} bytes spilled", flush=True)
    return bad


def tensors(found: object) -> list[Tensor]:
    """All tensors of a result."""
    return [found] if isinstance(found, Tensor) else [t for t in found if isinstance(t, Tensor)]  # type: ignore[union-attr]


def error(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest relative error by the norm."""
    return max(float((g.double() - w.double()).norm() / w.double().norm()) for g, w in zip(got, want, strict=True))


def check(name: str, folder: Path, timed: bool) -> bool:
    """Run a case; whether all is right."""
    import kitsune_mlir

    model, args = made(name, "cuda")
    programs = {form: kitsune_mlir.load(folder / f"{name}.{form}.kit", dict(model.state_dict())) for form in FORMS}
    program = programs["ordered"]
    first = [t.clone() for t in tensors(program(*args))]
    replay = graphed(lambda: program(*args))
    streams = [torch.cuda.Stream() for _ in range(2)]
    different = 0
    for number in range(RUNS):
        again = tensors(replay() if number % 4 == 0 else program(*args))
        different += any(not torch.equal(a, b) for a, b in zip(again, first, strict=True))
    torch.cuda.synchronize()
    side_by_side = []
    for number in range(RUNS):
        with torch.cuda.stream(streams[number % 2]):
            side_by_side.append(tensors(program(*args)))
    torch.cuda.synchronize()
    different += sum(any(not torch.equal(a, b) for a, b in zip(got, first, strict=True)) for got in side_by_side)
    if name in MODELS:
        exact = copy.deepcopy(model).double()
        want = tensors(exact(*(a.double() if a.is_floating_point() else a for a in args)))
        worst, limit = error(first, want), TOLERANCE[torch.bfloat16]
    elif name in PUTS:
        want = [model(*(a.double() if a.is_floating_point() else a for a in args))]
        worst, limit = error(first, want), 10 * TOLERANCE.get(args[0].dtype, 0.0)
    elif args[0].dtype == torch.bfloat16:
        want = [model(args[0].double(), args[1], args[2].double())]
        worst, limit = error(first, want), TOLERANCE[torch.bfloat16]
    else:
        want = [model(*(a.cpu() for a in args)).cuda()]  # a loop over the rows
        worst, limit = error(first, want), 0.0
    ok = worst <= limit and not different
    words = f"error {worst:.1e} (limit {limit:.0e}), {different} of {2 * RUNS} runs differ"
    if timed:
        calls = {form: graphed(lambda p=p: p(*args)) for form, p in programs.items()}
        calls["eager"] = graphed(lambda: model(*args))
        torch.use_deterministic_algorithms(True)
        calls["eager, deterministic"] = lambda: model(*args)
        times = time_calls(calls)
        torch.use_deterministic_algorithms(False)
        words += "; " + ", ".join(f"{form} {1e3 * time:.1f} us" for form, time in times.items())
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {words}", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run_of(check, CASES), switches={"time": "microseconds, too"}))
