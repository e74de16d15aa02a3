"""Programs of one engine against float64, and beside PyTorch: what `test.gpu.attention_programs` and its like share.

Each is built to `NAME.cubin` and `NAME.manifest.json` on one machine, and run on another. An error is counted in units of 2^-8
(2^-11 for f16) of the element plus as much of its row's size, as what is summed was rounded, too. Every case runs twice on the
same inputs and must give the same bits, and once on others.
"""

from __future__ import annotations

import dataclasses
import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from test.gpu.driver import answers, program_main

__all__ = ["Programs", "medians"]

STEPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SHOWN = 4
"""Wrong results of a case that are told of."""


def medians(calls: Mapping[str, Callable[[], Any]], rounds: int = 10, each: int = 2, batch: int = 3) -> dict[str, float]:
    """Median microseconds of calls, each under a CUDA graph of its own, interleaved."""
    import statistics

    from bench.timing import graphed, sample_calls

    samples = sample_calls({name: graphed(call) for name, call in calls.items()}, rounds, each, batch)
    return {name: statistics.median(values) * 1e3 for name, values in samples.items()}


@dataclasses.dataclass(frozen=True)
class Programs:
    """The programs of a module of this folder.

    Attributes:
        module: its name.
        cases, timed: all cases by name, and those that `--time` measures.
        model, inputs: of a case (and a device), the latter by name, in order.
        exact: of a case and its inputs, the results in float64.
        sizes: of a case and these, what errors of each row of the results are measured by, beside the elements.
        engine, tasks: the engine, and how many tasks of a case it must do.
        peers: of a case and its inputs, PyTorch's ways to do the same.
        told: of a case and its microseconds, more figures.
        allowed: units of an error.
        results: their names.
        seconds: without a line from the child before its case counts as hung.
    """

    module: str
    cases: Mapping[str, Any]
    timed: Mapping[str, Any]
    model: Callable[[Any], Any]
    inputs: Callable[[Any, str], dict[str, Any]]
    exact: Callable[[Any, dict[str, Any]], list[Any]]
    sizes: Callable[[Any, list[Any]], list[Any]]
    engine: str
    tasks: Callable[[Any], int]
    peers: Callable[[Any, dict[str, Any]], dict[str, Callable[[], Any]]]
    told: Callable[[Any, dict[str, float]], dict[str, float]]
    allowed: float
    results: tuple[str, ...]
    seconds: float = 60

    def main(self, description: str | None) -> int:
        """The command line."""
        help = {"time": "the large cases, beside backends of torch"}
        return program_main(description, self.build, self.run, self.part, help)

    def build(self, folder: Path, names: Sequence[str]) -> int:
        """Compile the programs; the number of those that spill registers or are not done by the engine."""
        from torch_mlir import ir

        from kitsune_mlir.codegen.gpu.compile import compile_gpu
        from kitsune_mlir.dialects import new_context
        from kitsune_mlir.frontend import import_model
        from kitsune_mlir.passes.registry import PIPELINE
        from kitsune_mlir.passmanager.manager import run_pipeline

        folder.mkdir(parents=True, exist_ok=True)
        bad = 0
        for name in names or self.cases:
            case, start = self.cases[name], time.perf_counter()
            imported = import_model(self.model(case), tuple(self.inputs(case, "cpu").values()), {}, context=new_context())
            run_pipeline(imported.module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
            with imported.module.context, ir.Location.unknown():
                code = compile_gpu(imported.module, "main_p0")
            used, engines = code.resources, [choice.engine for choice in code.engines]
            chosen = [choice.parameters for choice in code.engines if choice.engine == self.engine]
            wrong = bool(used.spills or engines.count(self.engine) != self.tasks(case) or code.warnings)
            bad += wrong
            print(
                f"{'BAD ' if wrong else ''}{name:20s} {','.join(engines)} {chosen} {used.registers} registers, "
                f"{used.spill_store_bytes} spilled, {code.manifest.shared_bytes} shared, {len(code.cubin)} bytes, "
                f"{time.perf_counter() - start:.1f} s {code.warnings or ''}",
                flush=True,
            )
            (folder / f"{name}.cubin").write_bytes(code.cubin)
            (folder / f"{name}.manifest.json").write_text(code.manifest.to_json())
        return bad

    def prepare(self, folder: Path, name: str) -> tuple[dict[str, Any], list[Any], Callable[[], None]]:
        """Random inputs, outputs full of NaN, and an action that runs the program on the current stream."""
        import torch

        from kitsune_mlir.runtime.cuda_executor import CudaExecutor
        from kitsune_mlir.runtime.manifest_check import read_manifest

        torch.manual_seed(0)
        given = self.inputs(self.cases[name], "cuda")
        dtype = next(iter(given.values())).dtype
        shapes = [out.shape for out in self.exact(self.cases[name], given)]
        outs = [torch.full(shape, float("nan"), device="cuda", dtype=dtype) for shape in shapes]
        manifest = read_manifest((folder / f"{name}.manifest.json").read_text())
        executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
        pointers = [tensor.data_ptr() for tensor in (*given.values(), *outs)]
        return given, outs, lambda: executor.run(pointers, torch.cuda.current_stream().cuda_stream)

    def check(self, folder: Path, name: str) -> dict[str, Any]:
        """Run one program twice on some inputs and once on others, and check."""
        import torch

        case = self.cases[name]
        given, outs, run_once = self.prepare(folder, name)
        worst, wrong, before = [0.0] * len(outs), [], None
        for attempt in range(3):
            if attempt == 2:
                for tensor in given.values():
                    if tensor.is_floating_point():
                        tensor.normal_()
                    elif not tensor.shape:  # a number, such as how many keys there are
                        tensor.copy_(2 * tensor + 1)
            for out in outs:
                out.fill_(float("nan"))
            torch.cuda.synchronize()
            run_once()
            torch.cuda.synchronize()
            if attempt == 1 and before is not None and not all(map(torch.equal, before, outs)):
                wrong.append("other bits the second time")
            before = [out.clone() for out in outs]
            exact = self.exact(case, given)
            for number, (out, want, size) in enumerate(zip(outs, exact, self.sizes(case, exact), strict=True)):
                step = STEPS[str(out.dtype).removeprefix("torch.")]
                excess = ((out.double() - want).abs() / (step * (want.abs() + size) + 1e-6)).nan_to_num(1e9)
                worst[number] = max(worst[number], excess.max().item())
                if excess.max() > self.allowed:
                    wrong.append(f"{self.results[number]}: {_told(excess > self.allowed, out, want)}")
        text = "; ".join([f"errors {', '.join(f'{error:.3f}' for error in worst)}", *wrong[:SHOWN]])
        right = max(worst) <= self.allowed and not wrong
        return {"case": name, "ok": right, "text" if right else "error": text}

    def part(self, folder: Path, names: Sequence[str], given: Namespace) -> None:
        """Check cases in this process, and print a line of JSON for each."""
        for name in names:
            print(json.dumps(self.check(folder, name)), flush=True)

    def time(self, folder: Path, name: str) -> dict[str, Any]:
        """A case beside its peers."""
        case = self.timed[name]
        given, _, run_once = self.prepare(folder, name)
        found = medians({"ours": run_once, **self.peers(case, given)})
        ratio = min(value for key, value in found.items() if key not in ("ours", "copy")) / found["ours"]
        more = self.told(case, found)
        shown = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
        figures = ", ".join(f"{key} {value:.3f}" for key, value in more.items())
        print(f"{name:20s} {ratio:.3f} times the best peer, {figures}, us: {shown}", flush=True)
        return {"case": name, "microseconds": found, "ratio": ratio, **more}

    def run(self, folder: Path, names: Sequence[str], given: Namespace) -> int:
        """Run the programs; the number of those that failed."""
        wanted = [name for name in (names or self.cases) if (folder / f"{name}.cubin").exists()]
        failed = 0
        for result in answers(self.module, folder, wanted, self.seconds):
            failed += not result["ok"]
            print(f"{result['case']:20s} {result.get('text') or 'FAILED ' + result['error']}", flush=True)
        if given.time:
            timings = [self.time(folder, name) for name in wanted if name in self.timed]
            if given.json:
                given.json.write_text(json.dumps(timings, indent=1))
        print(f"{len(wanted) - failed} of {len(wanted)} right")
        return failed


def _told(bad: Any, got: Any, want: Any) -> str:
    places = bad.nonzero().tolist()
    pairs = [f"{got[tuple(place)].item():.4g} for {want[tuple(place)].item():.4g}" for place in places[:2]]
    return f"{len(places)} of {bad.numel()} wrong, first {places[:2]}, last {places[-1:]}, {', '.join(pairs)}"
