"""Products through the `mma` engine on a device: programs built on one machine, run and checked against torch on another.

    python -m test.gpu.mma_programs build DIR [NAME ...]    # needs the compiler, no GPU
    python -m test.gpu.mma_programs run DIR [NAME ...]      # needs a Hopper GPU, torch, cuda-bindings; no compiler
    python -m test.gpu.mma_programs run DIR --time --json   # also times the large ones beside torch; one JSON line each

The programs run one after the other in a process of their own; when one hangs or crashes, a fresh process goes on with the
next. Tolerances are against float64: 2^-8 of an element (bf16's
rounding; 2^-11 for f16) plus a part of the results' size, as intermediate layers round too.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from test.gpu.mma_text import Layer, program
from test.gpu.primitives_check import MARK, _attempt

LIMIT_SECONDS = 15

PRODUCTS = (
    *((8192, 8192, 8192), (4096, 12288, 6144), (2048, 6144, 12288), (512, 4096, 14336)),
    *((1024, 1024, 1024), (128, 4096, 4096), (300, 1000, 704), (300, 1000, 700)),
)
FORMS = {"": ("mk", "nk"), "_kn": ("mk", "kn"), "_km": ("km", "nk"), "_km_kn": ("km", "kn")}

BIG: dict[str, list[Layer]] = {
    **{f"{m}x{n}x{k}{suffix}": [Layer(m, n, k, tile=(), a=a, b=b)] for m, n, k in PRODUCTS for suffix, (a, b) in FORMS.items()},
    "8192x8192x8192_gelu": [Layer(8192, 8192, 8192, tile=(), epilogue=("bias", "gelu"))],
    "65536x256x256_relu": [Layer(65536, 256, 256, tile=(), epilogue=("bias", "relu"))],
    "65536x256x256_gelu": [Layer(65536, 256, 256, tile=(), epilogue=("bias", "gelu"))],
    "65536x128x64_relu": [Layer(65536, 128, 64, tile=(), epilogue=("bias", "relu"))],
    "16384x1024x256_gelu": [Layer(16384, 1024, 256, tile=(), epilogue=("bias", "gelu"))],
    "2048x1024x1024_relu": [Layer(2048, 1024, 1024, tile=(), epilogue=("bias", "relu"))],
    **{
        f"f32_{m}x{n}x{k}{suffix}": [Layer(m, n, k, tile=(), a=a, b=b, dtype="f32", out="f32")]
        for m, n, k in ((4096, 4096, 4096), (1024, 1024, 1024), (2048, 512, 1024))
        for suffix, (a, b) in FORMS.items()
    },
    "768x6144x12288": [Layer(768, 6144, 12288, tile=())],
    "1536x6144x12288": [Layer(1536, 6144, 12288, tile=())],
    "65537x128x130_residual": [Layer(65537, 128, 130, tile=(), epilogue=("bias", "residual"))],
    "tf32_4096x4096x4096": [Layer(4096, 4096, 4096, tile=(), dtype="f32", out="f32", precision="high")],
    "batch_64x512x512x64": [Layer(512, 512, 64, tile=(), batch=64)],
    "batch_2048x27x27x128": [Layer(27, 27, 128, tile=(), batch=2048)],
}
"""Timed beside torch; without a tile: the planner's."""

SMALL: dict[str, list[Layer]] = {
    "square": [Layer(1024, 1024, 1024)],
    "one_chunk": [Layer(256, 512, 64)],
    "a_km": [Layer(512, 768, 320, a="km")],
    "b_kn": [Layer(512, 768, 320, b="kn")],
    "km_kn_f16": [Layer(512, 512, 320, a="km", b="kn", dtype="f16", out="f16")],
    "columns_64": [Layer(64, 1024, 256)],
    "columns_kn": [Layer(48, 1024, 256, b="kn")],
    "columns_kn_narrow": [Layer(48, 40, 256, b="kn")],
    "rows_1": [Layer(1, 1024, 512, epilogue=("bias",))],
    "rows_7": [Layer(7, 96, 192, epilogue=("bias", "relu"))],
    "rows_129_ragged": [Layer(129, 520, 192)],
    "cols_1": [Layer(300, 1, 256, epilogue=("bias",))],
    "cols_3_k13": [Layer(129, 3, 13, epilogue=("bias",))],
    "cols_27_f32": [Layer(100, 27, 64, epilogue=("bias", "gelu"), out="f32")],
    "k13": [Layer(300, 256, 13, epilogue=("bias", "relu"))],
    "k100": [Layer(300, 256, 100)],
    "k100_kn": [Layer(300, 250, 100, b="kn")],
    "k700_copied": [Layer(300, 1000, 700, epilogue=("init", "relu"))],
    "k712_tail": [Layer(300, 1000, 712, epilogue=("init", "relu"))],
    "k12288": [Layer(128, 128, 12288, tile=(128, 128))],
    "shared_tiles": [Layer(128, 512, 4096, epilogue=("bias", "gelu"))],
    "shared_tiles_uneven": [Layer(129, 200, 1000, tile=(64, 104), b="kn", out="f32")],
    "shared_tiles_copied": [Layer(129, 200, 1026, tile=(128, 200))],
    "shared_tiles_narrow": [Layer(30, 8, 3000)],
    "five_layers_shared": [Layer(128, 4096, 4096, (128, 128), epilogue=("bias", "relu"))] * 5,
    "f32": [Layer(300, 520, 256, tile=(128, 128), dtype="f32", out="f32", epilogue=("bias", "relu"))],
    "f32_wide": [Layer(64, 512, 1000, tile=(64, 256), dtype="f32", out="f32")],
    "f32_as_tf32": [Layer(300, 520, 256, tile=(128, 256), dtype="f32", out="f32", precision="high")],
    "f32_as_tf32_kn": [Layer(129, 200, 132, tile=(128, 200), dtype="f32", out="f32", b="kn", precision="medium")],
    "f32_kn": [Layer(129, 200, 132, tile=(128, 128), dtype="f32", out="f32", b="kn")],
    "f32_km": [Layer(300, 96, 129, tile=(128, 96), dtype="f32", out="f32", a="km", epilogue=("bias", "relu"))],
    "f32_km_kn": [Layer(260, 516, 257, tile=(128, 128), dtype="f32", out="f32", a="km", b="kn")],
    "f32_kn_columns": [Layer(40, 1000, 300, tile=(40, 96), dtype="f32", out="f32", b="kn")],
    "f32_kn_shared_tiles": [Layer(128, 256, 4096, tile=(128, 128), dtype="f32", out="f32", b="kn")],
    "f32_kn_batch": [Layer(100, 96, 68, batch=6, dtype="f32", out="f32", b="kn")],
    "f32_km_k13": [Layer(100, 27, 13, tile=(128, 128), dtype="f32", out="f32", a="km")],
    "f32_shared_tiles": [Layer(128, 256, 4096, tile=(128, 128), dtype="f32", out="f32")],
    "last_wave_shared": [Layer(128 * 36, 512, 2048, tile=(128, 128), epilogue=("bias",))],
    "many_rows": [Layer(40000, 128, 200, tile=(128, 128), epilogue=("bias", "gelu"))],
    "many_rows_kn": [Layer(20000, 256, 64, tile=(128, 128), b="kn")],
    "many_rows_layers": [
        Layer(40000, 128, 192, (128, 128), epilogue=("bias", "relu")),
        Layer(40000, 128, 128, (128, 128), epilogue=("bias", "residual")),
        Layer(40000, 256, 128, (128, 128), a="mk"),
    ],
    "batch": [Layer(100, 96, 64, batch=6)],
    "batch_shared_kn": [Layer(100, 96, 64, batch=6, b="kn", shared_b=True)],
    "heads": [Layer(128, 128, 64, batch=4, heads=4)],
    "swapped": [Layer(300, 1000, 704, swap=True)],
    "tanh_residual": [Layer(300, 520, 256, epilogue=("bias", "tanh", "residual"))],
    "silu_two_results": [Layer(300, 520, 256, epilogue=("silu", "both"))],
    "relu_in_bf16": [Layer(300, 520, 256, epilogue=("bias", "relu16"))],
    "many_tiles_ragged": [Layer(4000, 3000, 256, tile=(128, 64), epilogue=("bias",))],
    "gated": [Layer(300, 1000, 704, tile=(128, 112), epilogue=("silu", "gated"))],
    "gated_rows_129": [Layer(129, 520, 192, tile=(128, 104), epilogue=("bias", "silu", "gated", "residual"))],
    "gated_shared_tiles": [Layer(128, 256, 4096, tile=(128, 64), epilogue=("silu", "gated"), out="f32")],
    "gated_f32": [Layer(200, 96, 256, tile=(128, 48), epilogue=("silu", "gated"), dtype="f32", out="f32")],
    "gated_f32_kn": [Layer(200, 96, 256, tile=(128, 32), epilogue=("silu", "gated"), dtype="f32", out="f32", b="kn")],
    "gated_layers": [
        Layer(1000, 512, 480, (128, 128), epilogue=("bias", "relu")),
        Layer(1000, 704, 512, (128, 88), epilogue=("silu", "gated")),
        Layer(1000, 256, 704, (128, 64), epilogue=("residual",)),
    ],
    "two_layers": [
        Layer(2048, 1024, 480, (128, 128), epilogue=("bias", "relu")),
        Layer(2048, 512, 1024, (128, 64), epilogue=("bias",)),
    ],
    "four_layers_ragged": [
        Layer(2000, 1024, 480, (128, 128), epilogue=("bias", "relu")),
        Layer(2000, 1024, 1024, (128, 256), epilogue=("bias", "relu")),
        Layer(2000, 512, 1024, (64, 128), b="kn", epilogue=("bias", "relu")),
        Layer(2000, 256, 512, (128, 64), epilogue=("bias", "residual")),
    ],
}

CASES = {**SMALL, **BIG}


def build(folder: Path, names: list[str]) -> int:
    """Compile the programs; the number of those that spill registers or are not done by the engine."""
    from torch_mlir import ir

    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
    from kitsune_mlir.dialects import new_context

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        layers = [planned(layer) for layer in CASES[name]]
        text, inputs, results = program(layers)
        start = time.perf_counter()
        with new_context(), ir.Location.unknown():
            code = compile_gpu(ir.Module.parse(text), "main_p0", KernelOptions(matmul_precision=layers[0].precision))
        used, engines = code.resources, {choice.engine for choice in code.engines}
        bad += used.spills or engines != {"mma"} or bool(code.warnings)
        print(
            f"{name:24s} {','.join(engines):8s} {used.registers:3d} registers, {used.spill_store_bytes} spilled, "
            f"{code.manifest.shared_bytes} shared, {len(code.cubin)} bytes, "
            f"{time.perf_counter() - start:.1f} s {code.warnings or ''}"
        )
        (folder / f"{name}.cubin").write_bytes(code.cubin)
        (folder / f"{name}.manifest.json").write_text(code.manifest.to_json())
        description = {"layers": [dataclasses.asdict(layer) for layer in layers], "inputs": inputs, "results": results}
        (folder / f"{name}.json").write_text(json.dumps(description))
    return bad


def planned(layer: Layer) -> Layer:
    """The layer with the planner's tile, if it has none."""
    from kitsune_mlir.codegen.gpu.engines.mma.tiles import mma_tile
    from kitsune_mlir.machine.target import find_target

    if layer.tile:
        return layer
    sizes, bytes = (layer.batch, layer.m, layer.n), 4 if layer.dtype == "f32" else 2
    _, rows, cols = mma_tile(sizes, ("batch", "m", "n"), layer.k, find_target("sm_90a"), bytes)
    return dataclasses.replace(layer, tile=(rows, cols))


def reference(layers: list[Layer], tensors: dict[str, Any]) -> dict[str, Any]:
    """The results in float64; intermediate layers are rounded as the program does."""
    import torch

    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    found: dict[str, Any] = {}
    x = tensors["a0"]
    for number, layer in enumerate(layers):
        a, b = (x if number == 0 or layer.a == "mk" else x).double(), tensors[f"b{number}"].double()
        if number == 0:
            a = a.transpose(0, 1) if layer.heads else a
            a = a.transpose(-1, -2) if layer.a == "km" else a
        y = a @ (b.transpose(-1, -2) if layer.b == "nk" else b)
        for step in layer.epilogue:
            if step in ("bias", "init"):
                y = y + tensors[f"bias{number}"].double()
            elif step == "residual":
                y = y + tensors[f"residual{number}"].double()
            elif step == "gated":
                y = y * (a @ tensors[f"by{number}"].double().transpose(-1, -2))
            elif step == "both":
                found[f"second{number}"] = y
            elif step in ("relu", "relu16"):
                y = torch.relu(y)
            elif step in ("tanh", "exp"):
                y = getattr(torch, step)(y)
            else:
                y = getattr(torch.nn.functional, step)(y)
        x = y if number == len(layers) - 1 else y.to(dtypes[layer.out])
    found[f"out{len(layers) - 1}"] = x
    return found


def check(folder: Path, name: str, timing: bool) -> tuple[bool, dict[str, Any]]:
    """Run one program twice and check both runs; whether it is right, and what was found (`timed`'s fields if `timing`)."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    case = json.loads((folder / f"{name}.json").read_text())
    layers = [
        Layer(**{**layer, "tile": tuple(layer["tile"]), "epilogue": tuple(layer["epilogue"])}) for layer in case["layers"]
    ]
    torch.set_float32_matmul_precision(layers[0].precision)
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    tensors = {}
    for item in case["inputs"]:
        scale = layers[int(item["name"][-1])].k ** -0.5 if item["name"].startswith("b") and "bias" not in item["name"] else 1.0
        tensors[item["name"]] = (torch.randn(item["shape"], device="cuda") * scale).to(dtypes[item["dtype"]])
    outputs = {
        r["name"]: torch.full(r["shape"], float("nan"), device="cuda", dtype=dtypes[r["dtype"]]) for r in case["results"]
    }
    manifest = read_manifest((folder / f"{name}.manifest.json").read_text())
    executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    pointers = [t.data_ptr() for t in (*tensors.values(), *outputs.values())]
    wanted = reference(layers, tensors)
    found: dict[str, Any] = {"error": 0.0, "blocks": executor.blocks}
    first: dict[str, Any] = {}
    for _ in range(2):
        for output in outputs.values():
            output.fill_(float("nan"))
        torch.cuda.synchronize()
        executor.run(pointers, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        for key, output in outputs.items():
            excess = _excess(output, wanted[key], deep=len(layers) > 1, rounded=layers[0].precision != "highest")
            found["error"] = max(found["error"], excess) if excess == excess else float("nan")
            if not torch.equal(output, first.setdefault(key, output.clone())):
                found["wrong"] = f"two runs differ in {key}"
    if not found["error"] <= 1.05:
        found["wrong"] = _places(outputs, wanted)
    if timing and "wrong" not in found:
        found.update(timed(layers[0], tensors, outputs, executor, pointers))
    return "wrong" not in found, found


def _excess(got: Any, want: Any, deep: bool, rounded: bool) -> float:
    """The largest error as a part of what is tolerated; `rounded`: operands are TF32.

    TMA rounds to TF32; where `cp.async` copies, tensor cores cut off what TF32 lacks: each factor is up to 2^-10 smaller.
    """
    import torch

    step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-18}[got.dtype]
    step = max(step, 2.0**-9) if rounded else step
    size = want.pow(2).mean().sqrt()
    floor = (8.0 if deep else 1.0) * (2.0**-9 if rounded else 2.0**-10 if step > 2.0**-17 else 2.0**-16)
    return ((got.double() - want).abs() / (step * want.abs() + floor * size)).max().item()


def _places(outputs: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Where the first result is wrong."""
    key = next(iter(outputs))
    bad = ~((outputs[key].double() - wanted[key]).abs() <= 2.0**-7 * wanted[key].abs() + 0.02)
    places = bad.nonzero()
    text = f"{len(places)} of {bad.numel()} wrong in {key}, first {places[:3].tolist()}, last {places[-1:].tolist()}"
    for place in places[:3].tolist():
        text += f"; {outputs[key][tuple(place)].item():.4g} for {wanted[key][tuple(place)].item():.4g}"
    return text


def peer(layer: Layer, tensors: dict[str, Any], out: Any) -> Any:
    """What torch does for the layer, as a function: the library's product, with its fused epilogue where it has one."""
    import torch

    a, b = tensors["a0"], tensors["b0"]
    a = a.transpose(-1, -2) if layer.a == "km" else a
    b = b if layer.b == "kn" else b.transpose(-1, -2)
    if layer.batch > 1:
        return lambda: torch.matmul(a, b, out=out)
    if "bias" not in layer.epilogue:
        return lambda: torch.mm(a, b, out=out)
    bias = tensors["bias0"]
    if layer.epilogue == ("bias",):
        return lambda: torch.addmm(bias, a, b, out=out)
    gelu = "gelu" in layer.epilogue
    return lambda: torch.ops.aten._addmm_activation.out(bias, a, b, use_gelu=gelu, out=out)


def timed(layer: Layer, tensors: dict, outputs: dict, executor: Any, pointers: list[int]) -> dict[str, float]:
    """Microseconds of the program and of torch: both as graphs of several launches, interleaved; medians of 30 rounds."""
    import torch

    work = 2 * layer.batch * layer.m * layer.n * layer.k
    launches = max(1, min(20, int(1.5e11 / work)))
    theirs = peer(layer, tensors, torch.empty_like(outputs["out0"]))
    stream = torch.cuda.Stream()
    graphs = []
    for action in (lambda: executor.run(pointers, stream.cuda_stream), theirs):
        with torch.cuda.stream(stream):
            for _ in range(3):
                action()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(launches):
                    action()
        graphs.append(graph)
    torch.cuda.synchronize()
    times: list[list[float]] = [[], []]
    for _ in range(33):
        for graph, found in zip(graphs, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / launches * 1e3)
    ours, other = (statistics.median(found[3:]) for found in times)
    return {
        "us": round(ours, 2),
        "torch_us": round(other, 2),
        "ratio": round(other / ours, 3),
        "tflops": round(work / ours * 1e-6, 1),
    }


def run(folder: Path, names: list[str], timing: bool, as_json: bool) -> int:
    """Run the programs; the number of those that failed."""
    left = names or [name for name in (BIG if timing else CASES) if (folder / f"{name}.json").exists()]
    failed, ratios = [], []
    while left:
        command = [sys.executable, "-m", "test.gpu.mma_programs", "cases", str(folder), *(["--time"] if timing else []), *left]
        for name, right, remark in _attempt(command, tuple(left), LIMIT_SECONDS):
            found = json.loads(remark) if remark.startswith("{") else {"wrong": remark}
            if as_json:
                print(json.dumps({"name": name, "ok": right, **found}), flush=True)
            else:
                print(f"{'ok  ' if right else 'FAIL'} {name:28s} {found}", flush=True)
            failed += [] if right else [name]
            ratios += [found["ratio"]] if "ratio" in found else []
            left.remove(name)
    summary = f"{len(failed)} failed{': ' + ', '.join(failed) if failed else ''}"
    if ratios:
        summary += f"; torch's time / ours: geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
    print(summary, file=sys.stderr if as_json else sys.stdout, flush=True)
    return len(failed)


def cases(folder: Path, names: list[str], timing: bool) -> int:
    """Run programs one after the other and report each; ends when one has lost the context."""
    import torch

    torch.manual_seed(time.time_ns() % (1 << 31))
    torch.zeros(1, device="cuda")
    print(MARK, flush=True)
    for name in names:
        faulthandler.dump_traceback_later(LIMIT_SECONDS - 3)  # where it hangs, before it is killed
        try:
            right, found = check(folder, name, timing and name in BIG)
            remark, alive = json.dumps(found), True
        except Exception as error:  # the next program needs a fresh process
            right, remark, alive = False, f"{type(error).__name__}: {error}", False
        print(MARK + json.dumps([name, right, remark, alive]), flush=True)
        if not alive:
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "cases"], help="'cases': what 'run' starts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--time", action="store_true", help="run and time the large products")
    parser.add_argument("--json", action="store_true", help="one line of JSON a program")
    options = parser.parse_intermixed_args()
    if options.mode == "build":
        return int(bool(build(options.folder, options.names)))
    if options.mode == "cases":
        return cases(options.folder, options.names, options.time)
    return int(bool(run(options.folder, options.names, options.time, options.json)))


if __name__ == "__main__":
    sys.exit(main())
