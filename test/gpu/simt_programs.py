"""Programs for the simt engine on a device, in two halves that may run on different machines.

    python test/gpu/simt_programs.py build FOLDER     compiles every case (needs the compiler and torch, no GPU)
    python test/gpu/simt_programs.py run FOLDER       runs and checks them (needs a GPU, torch, cuda-bindings; no compiler)

`--only REGEX` selects cases by name. Results are compared with torch in float64. Cases named `big_*` are also timed: their rate
(bytes of arguments and results a second) stands beside that of a device copy of as many bytes in the same process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS = 90  # for one case, the start of its process included

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "bool": torch.bool, "i1": torch.bool,
}  # fmt: skip
FLOATS = ("f32", "bf16")
LENGTHS = (8, 32, 100, 129, 1000, 1024, 4096, 16384, 100000)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of tensors and what to call it with.

    Attributes:
        run: the function.
        inputs: (dtype, shape) or (dtype, shape, bound): integers below the bound.
    """

    run: Callable[..., Any]
    inputs: tuple[tuple, ...]

    def make(self, device: str, empty: bool = False) -> list[torch.Tensor]:
        """Random inputs, the same each time; with `empty`, only their shapes count."""
        generator = torch.Generator(device).manual_seed(0)
        made = []
        for name, shape, *bound in self.inputs:
            dtype = DTYPES[name]
            if empty:
                made.append(torch.empty(shape, dtype=dtype, device=device))
            elif dtype == torch.bool:
                made.append(torch.rand(shape, generator=generator, device=device) < 0.5)
            elif not dtype.is_floating_point:
                high = bound[0] if bound else 100
                made.append(torch.randint(0, high, shape, generator=generator, device=device, dtype=dtype))
            elif dtype == torch.float64:
                made.append(torch.randn(shape, generator=generator, device=device, dtype=dtype))
            else:
                made.append(torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype))
        return made


class Model(torch.nn.Module):
    """A function as a module."""

    def __init__(self, run: Callable[..., Any]):
        super().__init__()
        self.run = run

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.run(*inputs)


def stitch(x, y, weight, bias, b):
    """LayerNorm, sigmoid gate, GELU, softmax, a weighted sum and tanh: one row, one pass."""
    h = F.layer_norm(x + y, x.shape[-1:], weight, bias) * torch.sigmoid(b)
    g = F.gelu(h)
    p = torch.softmax(g, -1)
    return (p * h).sum(-1, keepdim=True) + torch.tanh(g)


def special_functions(x):
    positive = x.abs() + 0.1
    return torch.erf(x) + torch.tanh(x) + torch.log1p(positive) + torch.pow(positive, 1.7) + torch.floor(x) + torch.atan(x)


def rms_norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def group_norm(x):
    return F.group_norm(x, 8)


def batch_statistics(x):
    return x.mean((0, 2)), x.var((0, 2), correction=0)


def rows(dtype: str, count: int, length: int) -> tuple:
    return (dtype, (count, length))


def softmax(x):
    return torch.softmax(x, -1)


def norm_case(run, dtype: str, count: int, length: int, weights: int) -> Case:
    return Case(run, (rows(dtype, count, length), *[(dtype, (length,))] * weights))


def stitch_case(dtype: str, count: int, length: int) -> Case:
    return Case(stitch, (rows(dtype, count, length), rows(dtype, count, length), *[(dtype, (length,))] * 3))


CASES: dict[str, Case] = {
    "add_f32": Case(lambda x, y: torch.relu(x + y), (rows("f32", 1000, 128), rows("f32", 1000, 128))),
    "add_broadcast_odd": Case(lambda x, y: torch.relu(x + y), (rows("f32", 1000, 129), ("f32", (129,)))),
    "add_bf16_odd": Case(lambda x, y: x * y - x, (rows("bf16", 77, 129), rows("bf16", 77, 129))),
    "one_element": Case(lambda x: torch.exp(x), (("f32", (1,)),)),
    "seven": Case(lambda x: x * 3 + 1, (("f32", (7,)),)),
    "outer_broadcast": Case(lambda x, y: x[:, None] * y[None, :] + 1, (("f32", (130,)), ("f32", (250,)))),
    "mixed_types": Case(
        lambda x, m, i: torch.where(m, x, 0.5) + i, (rows("bf16", 60, 64), rows("bool", 60, 64), rows("i32", 60, 64))
    ),
    "bool_out": Case(lambda x, y: (x > y, x.long() + 2), (rows("f32", 60, 65), rows("f32", 60, 65))),
    "i64_math": Case(lambda i, j: (i * j + 3, i // 7, i % 5), (("i64", (300, 12)), ("i64", (300, 12)))),
    "f64_math": Case(lambda x: torch.exp(x) + torch.sin(x), (rows("f64", 30, 100),)),
    "f16_gelu": Case(lambda x: F.gelu(x), (rows("f16", 300, 100),)),
    "special_functions": Case(special_functions, (rows("f32", 128, 100),)),
    "arange": Case(lambda x: x * torch.arange(64, device=x.device), (rows("f32", 512, 64),)),
    "cat": Case(lambda x, y: torch.cat([x, y], -1).relu(), (rows("f32", 512, 100), rows("f32", 512, 60))),
    "cat_odd": Case(
        lambda x, y, z: torch.cat([x, y, z], -1) * 2, (rows("bf16", 70, 13), rows("bf16", 70, 7), rows("bf16", 70, 64))
    ),
    "pad": Case(lambda x: F.pad(x, (1, 2)) + 1, (rows("f32", 70, 13),)),
    "slice": Case(lambda x: x[:, 3:60] * 2 + x[:, 4:61], (rows("f32", 70, 64),)),
    "flip_stride": Case(lambda x: x[:, ::2] + 1, (rows("f32", 70, 64),)),
    "permute": Case(lambda x: x.permute(2, 0, 1) + 1, (("bf16", (12, 33, 40)),)),
    "transpose": Case(lambda x: x.t() + 1, (rows("f32", 300, 500),)),
    "embedding": Case(lambda t, i: t[i] * 2, (rows("f32", 512, 100), ("i64", (70,), 512))),
    "embedding_bf16": Case(lambda t, i: F.embedding(i, t), (rows("bf16", 512, 128), ("i64", (9, 17), 512))),
    "gather": Case(lambda x, i: torch.gather(x, 1, i), (rows("f32", 64, 50), ("i64", (64, 20), 50))),
    "gather_rows_sum": Case(
        lambda t, i, j: (t[i] + t[j]).sum(-1), (rows("f32", 512, 64), ("i64", (300,), 512), ("i64", (300,), 512))
    ),
    "pool_max": Case(lambda x: F.max_pool2d(x, 2), (("f32", (2, 16, 32, 32)),)),
    "pool_average_odd": Case(lambda x: F.avg_pool2d(x, 3, 2, 1), (("f32", (2, 5, 31, 31)),)),
    "row_sum": Case(lambda x: x.sum(-1), (rows("f32", 300, 1000),)),
    "row_sum_bf16": Case(lambda x: x.sum(-1), (rows("bf16", 300, 1024),)),
    "row_max_short": Case(lambda x: x.amax(-1), (rows("f32", 3000, 5),)),
    "row_mean_odd": Case(lambda x: x.mean(-1), (rows("f32", 301, 129),)),
    "row_long": Case(lambda x: x.sum(-1), (rows("f32", 3, 100000),)),
    "row_any": Case(lambda x: ((x > 2).any(-1), (x > -2).all(-1)), (rows("f32", 300, 100),)),
    "row_int": Case(lambda i: (i.sum(-1), i.amax(-1), i.amin(-1)), (("i64", (300, 100)),)),
    "row_prod": Case(lambda x: x.prod(-1), (rows("f64", 300, 40),)),
    "column_sum": Case(lambda x: x.sum(0), (rows("f32", 512, 1000),)),
    "column_sum_odd": Case(lambda x: x.sum(0), (rows("bf16", 515, 77),)),
    "column_softmax": Case(lambda x: torch.softmax(x, 0), (rows("f32", 100, 300),)),
    "middle_softmax": Case(lambda x: torch.softmax(x, 1), (("f32", (6, 50, 64)),)),
    "middle_mean": Case(lambda x: x.mean(1), (("f32", (40, 33, 24)),)),
    "total_sum": Case(lambda x: x.sum(), (rows("f32", 200, 300),)),
    "argmax": Case(lambda x: torch.argmax(x, -1), (rows("f32", 512, 1000),)),
    "argmin_short": Case(lambda x: torch.argmin(x, -1), (rows("f32", 512, 33),)),
    "argmax_ties": Case(lambda i: torch.max(i, -1), (("i64", (128, 300), 7),)),
    "column_argmax": Case(lambda x: torch.max(x, 0), (rows("f32", 200, 100),)),
    "batch_statistics": Case(batch_statistics, (("f32", (20, 12, 49)),)),
    "group_norm": Case(group_norm, (("f32", (4, 32, 7, 7)),)),
    "log_softmax": Case(lambda x: torch.log_softmax(x, -1), (rows("f32", 100, 700),)),
    "cosine": Case(lambda x, y: F.cosine_similarity(x, y, -1), (rows("f32", 100, 200), rows("f32", 100, 200))),
    **{f"softmax_{d}_{n}": Case(softmax, (rows(d, 300, n),)) for d in FLOATS for n in (2, 8, 31, 100, 129, 1000, 1024)},
    **{f"softmax_{d}_{n}": Case(softmax, (rows(d, 5, n),)) for d in FLOATS for n in (4096, 5000, 30000)},
    **{f"layer_norm_{d}_{n}": norm_case(layer_norm, d, 100, n, 2) for d in FLOATS for n in (16, 129, 768, 4096)},
    "layer_norm_long": norm_case(layer_norm, "f32", 5, 20000, 2),
    **{f"rms_norm_{d}_{n}": norm_case(rms_norm, d, 100, n, 1) for d in FLOATS for n in (64, 1000, 4096)},
    "stitch_small": stitch_case("bf16", 64, 1024),
    "stitch_f32": stitch_case("f32", 64, 300),
    "big_stitch": stitch_case("bf16", 4096, 1024),
    "big_map_f32": Case(lambda x: x * 2 + 1, (("f32", (1 << 27,)),)),
    "big_map_bf16": Case(lambda x: x * 2 + 1, (("bf16", (1 << 28,)),)),
    "big_add_f32": Case(lambda x, y: torch.relu(x + y), (rows("f32", 1 << 15, 2048), rows("f32", 1 << 15, 2048))),
    "big_bias_gelu_bf16": Case(lambda x, y: F.gelu(x + y), (rows("bf16", 1 << 16, 4096), ("bf16", (4096,)))),
    "big_odd_f32": Case(lambda x, y: x + y, (rows("f32", 1 << 20, 129), ("f32", (129,)))),
    "big_transpose_f32": Case(lambda x: x.t() * 2, (rows("f32", 8192, 8192),)),
    "big_gather_bf16": Case(lambda t, i: t[i], (rows("bf16", 1 << 19, 256), ("i64", (1 << 19,), 1 << 19))),
    "big_column_sum_f32": Case(lambda x: x.sum(0), (rows("f32", 1 << 14, 1 << 13),)),
    "big_argmax_f32": Case(lambda x: torch.argmax(x, -1), (rows("f32", 1 << 16, 2048),)),
    **{f"big_sum_{d}_{n}": Case(lambda x: x.sum(-1), (rows(d, (1 << 28) // n, n),)) for d in FLOATS for n in LENGTHS},
    **{f"big_softmax_{d}_{n}": Case(softmax, (rows(d, (1 << 27) // n, n),)) for d in FLOATS for n in LENGTHS},
    "big_layer_norm_bf16": norm_case(layer_norm, "bf16", 1 << 17, 1024, 2),
    "big_layer_norm_f32": norm_case(layer_norm, "f32", 1 << 15, 4096, 2),
    "big_rms_norm_bf16": norm_case(rms_norm, "bf16", 1 << 15, 4096, 1),
}


# --- building


def compile_case(case: Case, generic: bool = False) -> list[tuple[Any, ...]]:
    """Import and plan a case, and emit its tile programs: (imported model, executor) of each.

    Args:
        generic: let the generic engine take what simt declines.
    """
    from kitsune_mlir.codegen.gpu import executor
    from kitsune_mlir.codegen.gpu.engines import ENGINES
    from kitsune_mlir.codegen.gpu.simt import SimtEngine
    from kitsune_mlir.codegen.gpu.tasks import ProgramView
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.frontend import import_model
    from kitsune_mlir.passes.form_stages import FormStages
    from kitsune_mlir.passes.materialize import Materialize
    from kitsune_mlir.passes.normalize import Normalize
    from kitsune_mlir.passes.partition_streams import PartitionStreams
    from kitsune_mlir.passes.place_buffers import PlaceBuffers
    from kitsune_mlir.passes.synchronize import Synchronize

    model = import_model(Model(case.run), tuple(case.make("cpu", empty=True)), context=new_context())
    target = "h200"
    planning = (Normalize(), FormStages(target=target), PartitionStreams(target=target), PlaceBuffers(), Synchronize())
    for step in (*planning, Materialize()):
        step.run(model.module.operation)
    engines = {**(ENGINES if generic else {}), "simt": SimtEngine()}
    found = []
    for op in model.module.body.operations:
        if "kitsune.program" in op.operation.attributes:
            program = ProgramView(op.operation)
            found.append((model, executor.build(program, program.name, engines=engines)))
    return found


def build_case(folder: Path, name: str) -> str:
    """Compile a case into files of the folder; a line about it."""
    import numpy as np

    from kitsune_mlir.codegen.gpu.cubin import assemble
    from kitsune_mlir.codegen.gpu.ptx import to_llvm_ir, to_ptx

    start = time.perf_counter()
    ((model, emitted),) = compile_case(CASES[name])
    ptx = to_ptx(to_llvm_ir(emitted.module))
    cubin = assemble(ptx)
    (folder / f"{name}.ptx").write_text(ptx)
    (folder / f"{name}.cubin").write_bytes(cubin.data)
    (folder / f"{name}.manifest").write_text(emitted.manifest.to_json())
    arguments = []
    for number, argument in enumerate(model.arguments):
        if argument.value is not None:
            np.save(folder / f"{name}.{number}.npy", argument.value.numpy())
            arguments.append({"file": f"{name}.{number}.npy"})
        else:
            arguments.append({"input": argument.position})
    results = [{"shape": list(r.shape), "dtype": r.dtype, "index": r.index} for r in model.results if r.kind == "tensor"]
    (folder / f"{name}.json").write_text(json.dumps({"arguments": arguments, "results": results}))
    resources = next(iter(cubin.kernels.values()))
    plans = "; ".join(f"{d.plan.engine} {dict(d.plan.parameters)}" for d in emitted.decisions)
    spills = f" SPILLS {resources.spill_store_bytes}" if resources.spills else ""
    return f"{resources.registers} registers{spills}, {time.perf_counter() - start:.1f} s, {plans}"


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases into a folder; the number that failed."""
    sys.path.insert(0, str(REPOSITORY))
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        try:
            print(f"built {name}: {build_case(folder, name)}", flush=True)
        except Exception as error:  # every other case is still worth building
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"built {len(names) - failed} of {len(names)} cases into {folder}")
    return failed


# --- running


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference relative to the largest value; infinite where NaN or infinity do not agree."""
    a, b = found.double(), wanted.double()
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return float("inf")
    a, b = torch.nan_to_num(a, 0, 0, 0), torch.nan_to_num(b, 0, 0, 0)
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median time of a call on the device."""
    for _ in range(3):
        run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in events)[repeats // 2]


def run_case(folder: Path, name: str) -> int:
    """Run and check one case; 0 if it is right."""
    sys.path.insert(0, str(REPOSITORY))
    import numpy as np

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest import Manifest

    case, notes = CASES[name], json.loads((folder / f"{name}.json").read_text())
    manifest = Manifest.from_json((folder / f"{name}.manifest").read_text())
    torch.zeros(1, device="cuda")
    program = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    inputs = case.make("cuda")
    arguments = [
        torch.from_numpy(np.load(folder / item["file"])).cuda() if "file" in item else inputs[item["input"]].contiguous()
        for item in notes["arguments"]
    ]
    order = sorted({item["index"]: item for item in notes["results"]}.items())
    results = {i: torch.zeros(item["shape"], dtype=DTYPES[item["dtype"]], device="cuda") for i, item in order}
    pointers = [t.data_ptr() for t in (*arguments, *results.values())]
    stream = torch.cuda.current_stream().cuda_stream

    def launch() -> None:
        program.run(pointers, stream)

    launch()
    torch.cuda.synchronize()
    big = name.startswith("big_")
    # Large cases are compared in float32: float64 copies of them take too long.
    wide = [t.to(torch.float32 if big else torch.float64) if t.is_floating_point() else t for t in inputs]
    wanted = case.run(*wide)
    wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    worst, bad = 0.0, 0
    for item, reference in zip(notes["results"], wanted, strict=True):
        found = results[item["index"]]
        error = error_of(found, reference)
        worst = max(worst, error)
        bad += not error <= TOLERANCE.get(found.dtype, 0.0)
    line = f"{'WRONG' if bad else 'ok   '} {name:24} error {worst:.1e} blocks {program.blocks}"
    if big:
        del wide, wanted
        moved = sum(t.numel() * t.element_size() for t in (*arguments, *results.values()))
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copy = milliseconds(lambda: target.copy_(source))
        ours = milliseconds(launch)
        line += f" {ours:.4f} ms {moved / ours / 1e6:.0f} GB/s, copy {copy:.4f} ms, fraction {copy / ours:.2f}"
    print(line, flush=True)
    return bad


def run(folder: Path, names: Sequence[str]) -> int:
    """Run cases in a process that is replaced whenever a case crashes or hangs; the number that failed."""
    failed, left = 0, [name for name in names if (folder / f"{name}.json").exists()]
    while left:
        command = [sys.executable, __file__, "batch", str(folder), "--names", *left]
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            reader = threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True)
            reader.start()
            while left:
                try:
                    line = lines.get(timeout=SECONDS)
                except queue.Empty:
                    child.kill()
                    print(f"HANG {left.pop(0)}: no result in {SECONDS} s", flush=True)
                    failed += 1
                    break
                if not line:  # the process ended early
                    child.wait()
                    errors.seek(0)
                    print(f"FAIL {left.pop(0)}: {errors.read().strip().splitlines()[-1:]}", flush=True)
                    failed += 1
                    break
                print(line, end="", flush=True)
                failed += line.startswith("WRONG")
                left.pop(0)
            child.kill()
            child.wait()
    print(f"{failed} failed")
    return failed


def _pump(stream, lines: queue.SimpleQueue) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("build", "run", "batch"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode == "batch":
        for name in options.names:
            run_case(options.folder, name)
            torch.cuda.empty_cache()
        return 0
    names = [name for name in CASES if re.search(options.only, name)]
    return min(1, (build if options.mode == "build" else run)(options.folder, names))


if __name__ == "__main__":
    sys.exit(main())
