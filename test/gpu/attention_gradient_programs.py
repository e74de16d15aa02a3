"""Attention with its gradients through the engines on a device: programs built on one machine, run and checked on another.

    python -m test.gpu.attention_gradient_programs build DIR [NAME...]     # needs the compiler, no GPU
    python -m test.gpu.attention_gradient_programs run DIR [NAME...] [--time] [--json FILE]     # needs a Hopper GPU and torch

A program gives the result and the gradients of queries, keys and values. They are compared with float64. An error is counted
in units of 2^-8 (2^-11 for f16) of the element plus as much of its row's size (`sizes_of`): four are allowed, as what is summed
was rounded, too. Every case runs twice on the same inputs, and must give the same bits. With `--time` the cases of
`TRAINED_TIMED` are timed beside backends of `scaled_dot_product_attention` with their own gradients, interleaved, all under
CUDA graphs.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from test.gpu.attention_cases import TRAINED, TRAINED_TIMED, Case, inputs_of, reference
from test.gpu.attention_programs import captured
from test.gpu.driver import answers, program_main

LIMIT_SECONDS = 60
ALLOWED = 4
CASES = {**TRAINED, **TRAINED_TIMED}
ENGINE = "attention_gradient"


def model_of(case: Case) -> Any:
    """The attention and its gradients as a module of its inputs and the result's gradient."""
    import torch

    from kitsune_mlir.frontend.gradients.attention import Dropout, attention_gradients, attention_with_statistics

    class Model(torch.nn.Module):
        def forward(self, q, k, v, *rest):
            *masks, gradient = rest
            dropout = Dropout(masks.pop(0), case.dropout) if case.dropout else None
            if case.layout == "bshd":
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            how = (masks[0] if masks else None, case.causal, case.width**-0.5 if case.scale is None else case.scale)
            out, statistics = attention_with_statistics(q, k, v, *how, dropout)
            found = attention_gradients(q, k, v, *how, out, statistics, gradient, dropout=dropout)
            return (out, *found)

    return Model()


def trained_inputs(case: Case, device: str) -> dict[str, Any]:
    """Random inputs, with the result's gradient."""
    import torch

    given = inputs_of(case, device)
    shape = (case.batch, case.heads, case.rows, case.head or case.width)
    return given | {"gradient": torch.randn(shape, device=device).to(given["q"].dtype)}


def exact_results(case: Case, given: dict[str, Any]) -> list[Any]:
    """The result and the gradients of q, k and v, their heads outside of their rows, in float64."""
    import torch

    with torch.enable_grad():
        leaves = {name: given[name].double().requires_grad_() for name in "qkv"}
        out = reference(case, given | leaves)
        found = torch.autograd.grad(out, list(leaves.values()), given["gradient"].double())
    return [out.detach(), *(x.transpose(1, 2).contiguous() if case.layout == "bshd" else x for x in found)]


def sizes_of(case: Case, exact: Sequence[Any]) -> list[Any]:
    """What errors of each row of the results are measured by: its own size, or where that is larger, that of what is summed.

    Gradients of scores are differences of sums of `head` random products, weighted as the result is for a row of queries, and
    as the gradient of values is for one of keys.
    """
    import torch

    out, dq, dk, dv = (x.pow(2).mean(-1, keepdim=True).sqrt() for x in exact)
    scale = abs(case.width**-0.5 if case.scale is None else case.scale) * (case.head or case.width) ** 0.5
    return [out, torch.maximum(dq, scale * out), torch.maximum(dk, scale * dv), dv]


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
        imported = import_model(model_of(case), tuple(trained_inputs(case, "cpu").values()), {}, context=new_context())
        run_pipeline(imported.module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
        with imported.module.context, ir.Location.unknown():
            code = compile_gpu(imported.module, "main_p0")
        engines = [choice.engine for choice in code.engines]
        expected = 0 if case.rows == 1 else 2
        bad += bool(code.resources.spills or engines.count(ENGINE) != expected or code.warnings)
        print(
            f"{name:20s} {','.join(engines):60s} {code.resources.spill_store_bytes} spilled, {len(code.cubin)} bytes, "
            f"{time.perf_counter() - start:.1f} s {code.warnings or ''}",
            flush=True,
        )
        (folder / f"{name}.cubin").write_bytes(code.cubin)
        (folder / f"{name}.manifest.json").write_text(code.manifest.to_json())
    return bad


def prepare(folder: Path, name: str) -> tuple[dict[str, Any], list[Any], Any]:
    """Random inputs, outputs full of NaN, and an action that runs the program on the current stream."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    case = CASES[name]
    torch.manual_seed(0)
    given = trained_inputs(case, "cuda")
    shapes = [out.shape for out in exact_results(case, given)]
    outs = [torch.full(shape, float("nan"), device="cuda", dtype=given["q"].dtype) for shape in shapes]
    manifest = read_manifest((folder / f"{name}.manifest.json").read_text())
    executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    pointers = [tensor.data_ptr() for tensor in (*given.values(), *outs)]
    return given, outs, lambda: executor.run(pointers, torch.cuda.current_stream().cuda_stream)


def check(folder: Path, name: str) -> dict[str, Any]:
    """Run one program twice on some inputs and once on others, and check."""
    import torch

    case = CASES[name]
    given, outs, run_once = prepare(folder, name)
    worst, line, before = [0.0] * 4, "", None
    for attempt in range(3):
        if attempt == 2:
            for tensor in given.values():
                if tensor.is_floating_point():
                    tensor.normal_()
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        run_once()
        torch.cuda.synchronize()
        if attempt == 1 and before is not None and not all(map(torch.equal, before, outs)):
            line += "; other bits the second time"
        before = [out.clone() for out in outs]
        exact = exact_results(case, given)
        for number, (out, want, size) in enumerate(zip(outs, exact, sizes_of(case, exact), strict=True)):
            got, step = out.double(), {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[out.dtype]
            excess = ((got - want).abs() / (step * (want.abs() + size) + 1e-6)).nan_to_num(1e9)
            worst[number] = max(worst[number], excess.max().item())
            if excess.max() > ALLOWED and line.count("wrong") < 4:
                places = (excess > ALLOWED).nonzero()
                line += f"; {'out dq dk dv'.split()[number]}: {len(places)} of {excess.numel()} wrong, "
                line += f"first {places[:2].tolist()}, last {places[-1:].tolist()}, rows "
                line += f"{sorted({place[2] for place in places.tolist()})[:12]}"
                for place in places[:2].tolist():
                    line += f"; {got[tuple(place)].item():.4g} for {want[tuple(place)].item():.4g}"
    text = f"errors {', '.join(f'{error:.3f}' for error in worst)}{line}"
    right = max(worst) <= ALLOWED and not line
    return {"case": name, "ok": right, "text" if right else "error": text}


def part(folder: Path, names: Sequence[str], given: Namespace) -> None:
    """Check cases in this process, and print a line of JSON for each."""
    for name in names:
        print(json.dumps(check(folder, name)), flush=True)


def peers_of(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    """`scaled_dot_product_attention` and its gradients by each backend that takes the case, and as torch chooses."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    leaves = [given[name].detach().requires_grad_() for name in "qkv"]
    more = {"attn_mask": given.get("mask"), "is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    more["dropout_p"] = case.dropout

    def step() -> Any:
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, **more)
            return torch.autograd.grad(out, leaves, given["gradient"])

    found: dict[str, Any] = {"torch": step}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def call(backend=backend):
            with sdpa_kernel(backend):
                return step()

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
    given, _, run_once = prepare(folder, name)
    graphs = {key: captured(action) for key, action in {"ours": run_once, **peers_of(case, given)}.items()}
    samples: dict[str, list[float]] = {key: [] for key in graphs}
    for _ in range(20):
        for key, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(3):
                graph.replay()
            end.record()
            end.synchronize()
            samples[key].append(start.elapsed_time(end) / 3 * 1e3)
    medians = {key: sorted(values)[len(values) // 2] for key, values in samples.items()}
    work = 14 * case.batch * case.heads * case.rows * case.keys * case.width * (0.5 if case.causal else 1)
    best = min(value for key, value in medians.items() if key != "ours")
    shown = ", ".join(f"{key} {value:.1f}" for key, value in medians.items())
    tflops = work / medians["ours"] * 1e-6
    print(f"{name:20s} {tflops:6.1f} TFLOP/s, {best / medians['ours']:.3f} times the best peer, us: {shown}", flush=True)
    return {"case": name, "microseconds": medians, "ratio": best / medians["ours"], "tflops": tflops}


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run the programs; the number of those that failed."""
    wanted = [name for name in (names or CASES) if (folder / f"{name}.cubin").exists()]
    failed = 0
    for result in answers("test.gpu.attention_gradient_programs", folder, wanted, LIMIT_SECONDS):
        failed += not result["ok"]
        print(f"{result['case']:20s} {result.get('text') or 'FAILED ' + result['error']}", flush=True)
    if given.time:
        timings = [timed(folder, name) for name in wanted if name in TRAINED_TIMED]
        if given.json:
            given.json.write_text(json.dumps(timings, indent=1))
    print(f"{len(wanted) - failed} of {len(wanted)} right")
    return failed


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part, {"time": "the large cases, beside backends of torch"}))
