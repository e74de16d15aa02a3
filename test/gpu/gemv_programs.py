"""Products with few rows on a GPU: correctness on odd sizes, and the bandwidth with which weights are read.

    python -m test.gpu.gemv_programs build DIR [names...]                    compile to packages (needs no GPU)
    python -m test.gpu.gemv_programs run DIR [--time] [--json FILE]          check, and time the big ones (needs a Hopper GPU)

`run` uses the runtime only. Cases run one after the other in a child process; one that hangs is given up with its process, and
the next process goes on behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from test.gpu.driver import answers, program_main, spilled_bytes

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LIMITS = {"bf16": 2e-2, "f16": 5e-3, "f32": 1e-5}
"""Of the error's norm relative to the result's."""
SECONDS = 40
"""Without a line from the child before its case counts as hung."""
COPIES = 3
"""Sets of weights that timed calls take turns with: none is in L2 when it is needed again."""
TURNS = 8
"""Of all sets in one graph, so that the graph's own launch is a small part of what is measured."""


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda y: y,
    "gelu": F.gelu,
    "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
}


class Plain(nn.Module):
    """x W^T, with a bias and an activation if asked for."""

    def __init__(self, depth: int, cols: int, bias: bool = False, activation: str = ""):
        super().__init__()
        self.linear, self.activation = nn.Linear(depth, cols, bias=bias), activation

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return ACTIVATIONS[self.activation](y)


class SwiGLU(nn.Module):
    """Llama's feed-forward block: two products of one input, joined, and one of their result; residual."""

    def __init__(self, depth: int, cols: int):
        super().__init__()
        self.gate, self.up = nn.Linear(depth, cols, bias=False), nn.Linear(depth, cols, bias=False)
        self.down = nn.Linear(cols, depth, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Projections(nn.Module):
    """Three products of one input, of different widths."""

    def __init__(self, depth: int, cols: int):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(depth, cols), nn.Linear(depth, cols // 4), nn.Linear(depth, cols // 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), self.k(x), self.v(x)


MODULES: dict[str, Callable[[int, int], nn.Module]] = {
    "plain": Plain,
    "bias": lambda depth, cols: Plain(depth, cols, bias=True),
    "gelu": lambda depth, cols: Plain(depth, cols, bias=True, activation="gelu"),
    "gelu_tanh": lambda depth, cols: Plain(depth, cols, bias=True, activation="gelu_tanh"),
    "swiglu": SwiGLU,
    "qkv": Projections,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A module on `rows` inputs of `depth` features.

    Attributes:
        engines: what must have done the tasks that multiply.
        timed: measured too, as the planner wants it.
    """

    kind: str
    rows: int
    depth: int
    cols: int
    dtype: str = "bf16"
    engines: str = "gemv"
    timed: bool = False

    def module(self) -> nn.Module:
        """The module, with weights that keep results of order one."""
        module = MODULES[self.kind](self.depth, self.cols).to(DTYPES[self.dtype]).requires_grad_(False)
        return module.eval()


def _cases() -> dict[str, Case]:
    cases = {
        "row": Case("plain", 1, 4096, 1024),
        "row_bias": Case("bias", 1, 512, 1000),
        "row_long": Case("plain", 1, 14336, 264),
        "rows_7": Case("gelu", 7, 512, 129),
        "rows_8": Case("bias", 8, 1024, 520),
        "rows_16": Case("bias", 16, 2048, 1000),
        "rows_33": Case("bias", 33, 1024, 300),
        "rows_64": Case("gelu", 64, 1536, 384),
        "rows_64_passes_of_48": Case("bias", 64, 512, 12288),
        "rows_40_gelu_tanh": Case("gelu_tanh", 40, 1032, 6144),
        "cols_1": Case("bias", 7, 640, 1),
        "cols_3": Case("bias", 5, 640, 3),
        "one_column": Case("bias", 1, 640, 1, engines="simt"),
        "depth_8": Case("bias", 4, 8, 129),
        "depth_104": Case("bias", 3, 104, 129),
        "depth_1000": Case("bias", 9, 1000, 1000),
        "depth_13": Case("bias", 3, 13, 129, engines="mma"),
        "rows_16_long": Case("plain", 16, 14336, 264),
        "rows_64_long": Case("plain", 64, 12288, 136, engines="mma"),  # the sum is split: more rows
        "f16": Case("gelu", 5, 1024, 520, "f16"),
        "f16_ragged": Case("bias", 17, 1016, 77, "f16"),
        "f32_row": Case("bias", 1, 1024, 1000, "f32"),
        "f32_rows_7": Case("gelu", 7, 516, 129, "f32"),
        "f32_rows_16": Case("bias", 16, 4096, 264, "f32"),
        "f32_rows_64": Case("bias", 64, 1000, 136, "f32"),
        "swiglu_1": Case("swiglu", 1, 512, 1424),
        "swiglu_7": Case("swiglu", 7, 512, 1424),
        "swiglu_64": Case("swiglu", 64, 256, 712),
        "swiglu_f32": Case("swiglu", 3, 256, 712, "f32"),
        "qkv_1": Case("qkv", 1, 1024, 1024),
        "qkv_16": Case("qkv", 16, 1024, 1024),
    }
    for rows in (1, 4, 7, 16, 32, 64):
        cases[f"wide_{rows}"] = Case("plain", rows, 4096, 14336, timed=True)
        cases[f"deep_{rows}"] = Case("plain", rows, 14336, 4096, timed=True)
    cases["wide_1_f32"] = Case("plain", 1, 4096, 14336, "f32", timed=True)
    for rows in (1, 16):
        cases[f"square_{rows}"] = Case("plain", rows, 4096, 4096, timed=True)
        cases[f"feed_forward_{rows}"] = Case("swiglu", rows, 4096, 14336, timed=True)
        cases[f"projections_{rows}"] = Case("qkv", rows, 4096, 4096, timed=True)
    return cases


CASES = _cases()


def _never(space: object) -> bool:
    return False


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile the cases; the number of those that spill registers or are not done by the engine that should.

    What is not timed is `gemv`'s where it can do it, also where the planner finds tiles of tensor cores faster.
    """
    import kitsune_mlir
    from bench.timing import note_commit
    from kitsune_mlir.codegen.gpu.engines.gemv import tiles

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    bad = 0
    for name in names or list(CASES):
        case, start = CASES[name], time.perf_counter()
        with torch.device("meta" if case.timed else "cpu"):
            module = case.module()
            inputs = (torch.empty(case.rows, case.depth, dtype=DTYPES[case.dtype]),)
        chosen = contextlib.nullcontext() if case.timed else mock.patch.object(tiles, "_on_tensor_cores", _never)
        with chosen:
            program = kitsune_mlir.compile(module, inputs, target="sm_90a")
        program.save(folder / f"{name}.kit", weights=False)
        kernel, engines = program.summary["kernels"][0], program.summary["engines"]
        by = {task["engine"] for task in engines if "product" in task["task"]}
        spilled = spilled_bytes(program)
        wrong = (by != {case.engines} and not case.timed) or spilled > 0
        bad += wrong
        print(
            f"{'BAD ' if wrong else ''}{name:18s} {','.join(sorted(by)):6s} {kernel['registers']:3d} registers, "
            f"{spilled} spilled, {time.perf_counter() - start:.1f} s",
            *(f"\n    {task['task']} {task['tiles']} tiles {task['parameters']}" for task in engines),
            *(f"\n    declined: {task['declined']}" for task in engines if wrong and task["declined"]),
            flush=True,
        )
    return bad


def check(path: Path, timed: bool) -> dict[str, Any]:
    """Run one package on fresh random inputs against float64, twice; time it if asked. Leaves no tensors behind."""
    import kitsune_mlir

    name = path.stem
    case = CASES[name]
    with torch.device("cuda"):
        module = case.module()
        x = torch.randn(case.rows, case.depth).to(DTYPES[case.dtype])
    program = kitsune_mlir.load(path, weights=dict(module.named_parameters()))
    first, again = _flat(program(x)), _flat(program(x))
    worst = 0.0
    state = {key: value.double() for key, value in module.named_parameters()}
    wanted = _flat(torch.func.functional_call(module, state, (x.double(),)))
    for got, same, want in zip(first, again, wanted, strict=True):
        error = ((got.double() - want).norm() / want.norm()).item() if torch.equal(got, same) else float("nan")
        worst = max(worst, error) if error == error else float("nan")
    del state, wanted
    result: dict[str, Any] = {"case": name, "error": worst, "limit": LIMITS[case.dtype], "ok": worst <= LIMITS[case.dtype]}
    if timed and case.timed:
        result |= measure(path, case, module, x)
    return result


def _flat(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, tuple | list) else [value]


def measure(path: Path, case: Case, module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Microseconds of a call of ours and of torch's, both under CUDA graphs, beside a device copy; interleaved medians."""
    import kitsune_mlir
    from bench.timing import graphed, sample_calls

    modules = [module]
    for _ in range(COPIES - 1):
        with torch.device("cuda"):
            modules.append(case.module())
    programs = [kitsune_mlir.load(path, weights=dict(one.named_parameters())) for one in modules]
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    in_turns = {"ours": programs * TURNS, "torch": modules * TURNS}
    calls = {key: graphed(lambda calls=calls: [call(x) for call in calls]) for key, calls in in_turns.items()}
    samples = sample_calls({**calls, "copy": lambda: target.copy_(source)}, rounds=10, each=3)
    samples = {key: [time * 1e3 / len(in_turns.get(key, [0])) for time in values] for key, values in samples.items()}
    times = {key: statistics.median(values) for key, values in samples.items()}
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    bandwidth = 2 * source.numel() / times["copy"]
    return {
        "us": times["ours"],
        "torch_us": times["torch"],
        "spread": [min(samples["ours"]), max(samples["ours"])],
        "tb_s": size / times["ours"] * 1e-6,
        "copy_tb_s": bandwidth * 1e-6,
        "of_copy": size / times["ours"] / bandwidth,
        "torch_of_copy": size / times["torch"] / bandwidth,
    }


def part(folder: Path, names: Sequence[str], given: Namespace) -> None:
    """Run cases in this process; one JSON line each."""
    for name in names:
        try:
            result = check(folder / f"{name}.kit", given.time)
        except Exception as error:
            result = {"case": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(result), flush=True)
        torch.cuda.empty_cache()


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run the packages of a folder; the number of those that failed."""
    wanted = [name for name in CASES if (folder / f"{name}.kit").exists() and (not names or name in names)]
    results: list[dict[str, Any]] = []
    for result in answers("test.gpu.gemv_programs", folder, wanted, SECONDS, ["--time"] * given.time):
        results.append(result)
        print(_line(result), flush=True)
    failed = [result["case"] for result in results if not result["ok"]]
    print(f"{len(failed)} of {len(results)} failed {' '.join(failed)}")
    if given.json is not None:
        from bench.timing import environment

        given.json.write_text(json.dumps({"environment": environment(folder), "results": results}, indent=1))
    return len(failed)


def _line(result: dict[str, Any]) -> str:
    text = f"{'ok   ' if result['ok'] else 'WRONG'} {result['case']:18s} "
    text += result["error"] if isinstance(result["error"], str) else f"error {result['error']:.1e}"
    if "us" in result:
        text += (
            f" {result['us']:8.1f} us {result['tb_s']:.2f} TB/s = {result['of_copy']:.3f} of a copy's"
            f" {result['copy_tb_s']:.2f}; torch {result['torch_us']:8.1f} us = {result['torch_of_copy']:.3f}"
        )
    return text


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part, {"time": "beside torch, and a copy of as many bytes"}))
