"""Products through the `mma` engine on a device: programs built on one machine, run and checked against torch on another.

    python test/gpu/mma_programs.py build DIR     # needs the compiler, no GPU
    python test/gpu/mma_programs.py run DIR       # needs a Hopper GPU, torch, cuda-bindings; no compiler

Each program runs in a process of its own with a time limit. Tolerances are against float64: 2^-8 of an element (bf16's
rounding; 2^-11 for f16) plus a part of the results' size, as intermediate layers round too.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from mma_text import Layer, program  # noqa: E402

LIMIT_SECONDS = 60

BIG: dict[str, list[Layer]] = {
    "big_8192": [Layer(8192, 8192, 8192)],
    "big_8192_kn": [Layer(8192, 8192, 8192, b="kn")],
    "big_8192_km": [Layer(8192, 8192, 8192, a="km")],
    "big_8192_gelu": [Layer(8192, 8192, 8192, epilogue=("bias", "gelu"))],
    "big_4096x12288x6144": [Layer(4096, 12288, 6144)],
    "big_2048x6144x12288": [Layer(2048, 6144, 12288)],
    "big_512x4096x14336": [Layer(512, 4096, 14336, tile=(128, 128))],
    "big_1024": [Layer(1024, 1024, 1024, tile=(128, 64))],
    "big_128x4096x4096": [Layer(128, 4096, 4096, tile=(128, 64))],
    "big_300x1000x704": [Layer(300, 1000, 704, tile=(128, 64))],
    "big_65536x256x256": [Layer(65536, 256, 256, epilogue=("bias", "relu"))],
}
"""Timed beside `torch.matmul` (without the epilogue)."""

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
    "k12288": [Layer(128, 64, 12288, tile=(128, 64))],
    "batch": [Layer(100, 96, 64, batch=6)],
    "batch_shared_kn": [Layer(100, 96, 64, batch=6, b="kn", shared_b=True)],
    "heads": [Layer(128, 128, 64, batch=4, heads=4)],
    "swapped": [Layer(300, 1000, 704, swap=True)],
    "tanh_residual": [Layer(300, 520, 256, epilogue=("bias", "tanh", "residual"))],
    "silu_two_results": [Layer(300, 520, 256, epilogue=("silu", "both"))],
    "relu_in_bf16": [Layer(300, 520, 256, epilogue=("bias", "relu16"))],
    "many_tiles_ragged": [Layer(4000, 3000, 256, tile=(128, 64), epilogue=("bias",))],
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

    from kitsune_mlir.codegen.gpu.program import compile_gpu
    from kitsune_mlir.dialects import new_context

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        layers = CASES[name]
        text, inputs, results = program(layers)
        start = time.perf_counter()
        with new_context(), ir.Location.unknown():
            code = compile_gpu(ir.Module.parse(text), "main_p0", "sm_90a")
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


def one(folder: Path, name: str) -> None:
    """Run one program twice and check both runs; time it if it is a big one. Prints one line; exits 1 if it is wrong."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest import Manifest

    case = json.loads((folder / f"{name}.json").read_text())
    layers = [
        Layer(**{**layer, "tile": tuple(layer["tile"]), "epilogue": tuple(layer["epilogue"])}) for layer in case["layers"]
    ]
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
    torch.manual_seed(0)
    tensors = {}
    for item in case["inputs"]:
        scale = layers[int(item["name"][-1])].k ** -0.5 if item["name"].startswith("b") and "bias" not in item["name"] else 1.0
        tensors[item["name"]] = (torch.randn(item["shape"], device="cuda") * scale).to(dtypes[item["dtype"]])
    outputs = {
        r["name"]: torch.full(r["shape"], float("nan"), device="cuda", dtype=dtypes[r["dtype"]]) for r in case["results"]
    }
    manifest = Manifest.from_json((folder / f"{name}.manifest.json").read_text())
    executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    pointers = [t.data_ptr() for t in (*tensors.values(), *outputs.values())]
    stream = torch.cuda.current_stream().cuda_stream
    wanted = reference(layers, tensors)
    worst = 0.0
    for _ in range(2):
        for output in outputs.values():
            output.fill_(float("nan"))
        torch.cuda.synchronize()
        executor.run(pointers, stream)
        torch.cuda.synchronize()
        for key, output in outputs.items():
            got, want = output.double(), wanted[key]
            step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-18}[output.dtype]
            size = want.pow(2).mean().sqrt()
            looser = 1.0 if len(layers) == 1 else 8.0
            excess = (
                ((got - want).abs() / (step * want.abs() + looser * (2.0**-10 if step > 2.0**-17 else 2.0**-16) * size))
                .max()
                .item()
            )
            worst = max(worst, excess) if excess == excess else float("nan")
    ok = worst <= 1.05
    line = f"{name:24s} {'ok   ' if ok else 'WRONG'} error {worst:6.3f} of the tolerance, {executor.blocks} blocks"
    if not ok:
        key = next(iter(outputs))
        bad = ~((outputs[key].double() - wanted[key]).abs() <= 2.0**-7 * wanted[key].abs() + 0.02)
        places = bad.nonzero()
        line += f"; {len(places)} of {bad.numel()} wrong in {key}, first {places[:3].tolist()}, last {places[-1:].tolist()}"
        for place in places[:3].tolist():
            line += f"; {outputs[key][tuple(place)].item():.4g} for {wanted[key][tuple(place)].item():.4g}"
    if name in BIG:
        line += timed(layers[0], tensors, outputs, executor, pointers, stream)
    print(line, flush=True)
    sys.exit(not ok)


def timed(layer: Layer, tensors: dict, outputs: dict, executor: Any, pointers: list[int], stream: int) -> str:
    """TFLOP/s of the program and of `torch.matmul`, interleaved: medians of 9 rounds."""
    import torch

    a, b = tensors["a0"], tensors["b0"]
    a = a.transpose(-1, -2) if layer.a == "km" else a
    b = b if layer.b == "kn" else b.transpose(-1, -2)
    out = torch.empty_like(outputs["out0"])
    work = 2 * layer.m * layer.n * layer.k
    repeats = max(3, min(200, int(2e12 * 5 / work)))

    def measure(action) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        action()
        start.record()
        for _ in range(repeats):
            action()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats * 1e-3

    ours, theirs = [], []
    for _ in range(9):
        ours.append(measure(lambda: executor.run(pointers, stream)))
        theirs.append(measure(lambda: torch.matmul(a, b, out=out)))
    mine, other = sorted(ours)[4], sorted(theirs)[4]
    return f"; {mine * 1e6:8.1f} us {work / mine * 1e-12:6.1f} TFLOP/s, torch {other * 1e6:8.1f} us {work / other * 1e-12:6.1f}"


def run(folder: Path, names: list[str]) -> int:
    """Run the programs, each in a process of its own; the number of those that failed. Small ones run side by side."""

    def start(name: str) -> tuple[str, str, bool]:
        command = [sys.executable, __file__, "one", str(folder), name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return name, f"{name:24s} FAILED: not done after {LIMIT_SECONDS} s", False
        text = done.stdout.strip() or f"{name:24s} FAILED {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        return name, text, done.returncode == 0

    wanted = names or list(CASES)
    small, big = [name for name in wanted if name not in BIG], [name for name in wanted if name in BIG]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, text, ok in itertools.chain(pool.map(start, small), map(start, big)):
            print(text, flush=True)
            if not ok:
                failed.append(name)
    print(f"{len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return len(failed)


def main() -> None:
    mode, folder, *names = sys.argv[1:]
    if mode == "one":
        one(Path(folder), names[0])
    sys.exit(min(1, {"build": build, "run": run}[mode](Path(folder), names)))


if __name__ == "__main__":
    main()
