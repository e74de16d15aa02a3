"""Attention through the `attention` engine on a device: programs built on one machine, run and checked on another.

    python -m test.gpu.attention_programs build DIR [NAME...]     # needs the compiler, no GPU
    python -m test.gpu.attention_programs run DIR [NAME...] [--time] [--json FILE]     # needs a Hopper GPU and torch

Results are compared with float64. An error is counted in units of 2^-8 (2^-11 for f16) of the element plus as much of its
row's size, as the weights are rounded too: three are allowed. With `--time` the cases of `TIMED` are timed beside every
backend of `scaled_dot_product_attention` that takes them, interleaved, all under CUDA graphs.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from test.gpu.attention_cases import CASES, TIMED, Case, inputs_of, model_of, reference, thirds
from test.gpu.driver import answers, program_main

LIMIT_SECONDS = 60


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile the programs; the number of those that spill registers or are not done by the engine."""
    from torch_mlir import ir

    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.frontend import import_model
    from kitsune_mlir.passes.registry import PIPELINE
    from kitsune_mlir.passmanager.manager import run_pipeline

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        case = CASES[name]
        start = time.perf_counter()
        imported = import_model(model_of(case), tuple(inputs_of(case, "cpu").values()), {}, context=new_context())
        run_pipeline(imported.module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
        with imported.module.context, ir.Location.unknown():
            code = compile_gpu(imported.module, "main_p0")
        used, engines = code.resources, [choice.engine for choice in code.engines]
        chosen = next((choice.parameters for choice in code.engines if choice.engine == "attention"), {})
        bad += used.spills or "attention" not in engines or bool(code.warnings)
        print(
            f"{name:20s} {','.join(engines):20s} {used.registers:3d} registers, {used.spill_store_bytes} spilled, "
            f"{chosen.get('pieces', 0)} pieces, {code.manifest.shared_bytes} shared, {len(code.cubin)} bytes, "
            f"{time.perf_counter() - start:.1f} s {code.warnings or ''}",
            flush=True,
        )
        (folder / f"{name}.cubin").write_bytes(code.cubin)
        (folder / f"{name}.manifest.json").write_text(code.manifest.to_json())
    return bad


def prepare(folder: Path, name: str) -> tuple[Any, dict[str, Any], Any, Any]:
    """The executor of a program, random inputs, an output full of NaN, and an action that runs it on the current stream."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    case = CASES[name]
    torch.manual_seed(0)
    given = inputs_of(case, "cuda")
    shape = (case.batch, case.heads, case.rows, case.head or case.width)
    out = torch.full(shape, float("nan"), device="cuda", dtype=next(iter(given.values())).dtype)
    manifest = read_manifest((folder / f"{name}.manifest.json").read_text())
    executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    pointers = [tensor.data_ptr() for tensor in (*given.values(), out)]
    return executor, given, out, lambda: executor.run(pointers, torch.cuda.current_stream().cuda_stream)


def check(folder: Path, name: str) -> dict[str, Any]:
    """Run one program three times, the last time on other inputs, and check."""
    import torch

    case = CASES[name]
    executor, given, out, run_once = prepare(folder, name)
    worst = 0.0
    line = ""
    for attempt in range(3):
        if attempt == 2:
            for tensor in given.values():
                if tensor.is_floating_point():
                    tensor.normal_()
        want = reference(case, given)
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        run_once()
        torch.cuda.synchronize()
        got = out.double()
        step = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[out.dtype]
        size = want.pow(2).mean(-1, keepdim=True).sqrt()
        excess = ((got - want).abs() / (step * (want.abs() + size) + 1e-6)).nan_to_num(1e9).max().item()
        worst = max(worst, excess)
        if excess > 3 and not line:
            bad = ~((got - want).abs() <= 4 * step * (want.abs() + size) + 1e-6)
            places = bad.nonzero()
            line = f"; {len(places)} of {bad.numel()} wrong, first {places[:3].tolist()}, last {places[-1:].tolist()}"
            for place in places[:3].tolist():
                line += f"; {got[tuple(place)].item():.4g} for {want[tuple(place)].item():.4g}"
    text = f"error {worst:6.3f}, {executor.blocks} blocks{line}"
    return {"case": name, "ok": worst <= 3, "text" if worst <= 3 else "error": text}


def part(folder: Path, names: Sequence[str], given: Namespace) -> None:
    """Check cases in this process, and print a line of JSON for each."""
    for name in names:
        print(json.dumps(check(folder, name)), flush=True)


def peers_of(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    """`scaled_dot_product_attention` by each backend that takes the case, and as torch chooses."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = thirds(case, given["qkv"]) if "qkv" in given else (given[name] for name in "qkv")
    more = {"attn_mask": given.get("mask"), "is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    found: dict[str, Any] = {"torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):

        def call(backend=backend):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)

        try:
            call()
        except RuntimeError:
            continue
        found[backend.name.split("_")[0].lower()] = call
    return found


def timed(folder: Path, name: str) -> dict[str, Any]:
    """Medians in microseconds of the program and its peers, interleaved, each under a CUDA graph."""
    import torch

    case = CASES[name]
    _, given, _, run_once = prepare(folder, name)
    actions = {"ours": run_once, **peers_of(case, given)}
    if case.rows == 1:  # reading is what counts: a copy reads and writes
        source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        actions["copy"] = lambda: target.copy_(source)
    graphs = {key: captured(action) for key, action in actions.items()}
    samples: dict[str, list[float]] = {key: [] for key in graphs}
    repeats = 5
    for _ in range(30):
        for key, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeats):
                graph.replay()
            end.record()
            end.synchronize()
            samples[key].append(start.elapsed_time(end) / repeats * 1e3)
    medians = {key: sorted(values)[len(values) // 2] for key, values in samples.items()}
    work = 4 * case.batch * case.heads * case.rows * case.keys * case.width * (0.5 if case.causal else 1)
    bytes = 4 * case.batch * case.kv_heads * case.keys * case.width
    best = min(value for key, value in medians.items() if key not in ("ours", "copy"))
    result: dict[str, Any] = {"case": name, "microseconds": medians, "ratio": best / medians["ours"]}
    result["tflops"] = work / medians["ours"] * 1e-6
    if "copy" in medians:
        result["bandwidth"] = bytes / medians["ours"] / (2 * (1 << 28) / medians["copy"])
    shown = ", ".join(f"{key} {value:.1f}" for key, value in medians.items())
    print(f"{name:20s} {result['tflops']:6.1f} TFLOP/s, {result['ratio']:.3f} times the best peer", end="")
    print(f", {result['bandwidth']:.3f} of the copy's rate" if "bandwidth" in result else "", f" us: {shown}", flush=True)
    return result


def captured(action: Any) -> Any:
    """A CUDA graph of one call."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run the programs; the number of those that failed."""
    wanted = [name for name in (names or CASES) if (folder / f"{name}.cubin").exists()]
    failed = 0
    for result in answers("test.gpu.attention_programs", folder, wanted, LIMIT_SECONDS):
        failed += not result["ok"]
        print(f"{result['case']:20s} {result.get('text') or 'FAILED ' + result['error']}", flush=True)
    if given.time:
        timings = [timed(folder, name) for name in wanted if name in TIMED]
        if given.json:
            given.json.write_text(json.dumps(timings, indent=1))
    print(f"{len(wanted) - failed} of {len(wanted)} right")
    return failed


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part, {"time": "the large cases, beside every backend of torch"}))
