"""Attention through the `attention` engine on a device: programs built on one machine, run and checked on another.

    python test/gpu/attention_programs.py build DIR [NAME...]     # needs the compiler, no GPU
    python test/gpu/attention_programs.py run DIR [NAME...] [--time] [--json FILE]     # needs a Hopper GPU and torch

Results are compared with float64. An error is counted in units of 2^-8 (2^-11 for f16) of the element plus as much of its
row's size, as the weights are rounded too: three are allowed. With `--time` the cases of `TIMED` are timed beside every
backend of `scaled_dot_product_attention` that takes them, interleaved, all under CUDA graphs.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

LIMIT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention.

    Attributes:
        batch, heads, kv_heads, rows, keys, width: extents; `head` those of v's elements (default: width).
        causal: row i attends to keys 0 ... i.
        mask: "" or what is masked: "float" [rows, keys] added, "heads" [batch, heads, rows, keys] added, "padding"
            [batch, 1, 1, keys] bool, "rows" [batch, 1, rows, keys] bool with rows without any key.
        layout: "bhsd" as torch wants it; "bshd": heads inside rows, transposed in the model; "fused": q, k and v are thirds
            of one tensor.
        cached: keys and values are concatenations of `cached` old ones and `keys - cached` new ones, which come in "bshd".
        dtype: "bf16" or "f16".
        scale: factor of the scores; None is 1 / sqrt(width).
    """

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    width: int
    head: int = 0
    causal: bool = False
    mask: str = ""
    layout: str = "bhsd"
    cached: int = 0
    dtype: str = "bf16"
    scale: float | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs, in order."""
        head = self.head or self.width
        found: dict[str, tuple[int, ...]] = {"q": self._shape(self.heads, self.rows, self.width)}
        if self.layout == "fused":
            found = {"qkv": (self.batch, self.rows, 3 * self.heads * self.width)}
        elif self.cached:
            found |= {
                "old_k": (self.batch, self.kv_heads, self.cached, self.width),
                "old_v": (self.batch, self.kv_heads, self.cached, head),
                "k": (self.batch, self.keys - self.cached, self.kv_heads, self.width),
                "v": (self.batch, self.keys - self.cached, self.kv_heads, head),
            }
        else:
            found["k"] = self._shape(self.kv_heads, self.keys, self.width)
            found["v"] = self._shape(self.kv_heads, self.keys, head)
        masks = {
            "float": (self.rows, self.keys),
            "heads": (self.batch, self.heads, self.rows, self.keys),
            "padding": (self.batch, 1, 1, self.keys),
            "rows": (self.batch, 1, self.rows, self.keys),
        }
        return found | ({"mask": masks[self.mask]} if self.mask else {})

    def _shape(self, heads: int, rows: int, width: int) -> tuple[int, ...]:
        return (self.batch, heads, rows, width) if self.layout == "bhsd" else (self.batch, rows, heads, width)


SMALL: dict[str, Case] = {
    "plain": Case(2, 4, 4, 256, 256, 64),
    "causal": Case(2, 4, 4, 512, 512, 128, causal=True),
    "width_128": Case(1, 2, 2, 384, 640, 128),
    "width_80": Case(1, 3, 3, 256, 256, 80),
    "width_96": Case(1, 3, 3, 200, 300, 96, causal=False),
    "width_256": Case(1, 2, 2, 256, 384, 256, causal=False),
    "width_256_causal": Case(1, 2, 2, 320, 320, 256, causal=True),
    "width_16": Case(2, 2, 2, 100, 100, 16),
    "width_40_head_24": Case(1, 2, 2, 130, 150, 40, head=24),
    "f16": Case(2, 4, 4, 256, 256, 64, dtype="f16"),
    "f16_causal": Case(1, 4, 4, 300, 300, 128, causal=True, dtype="f16"),
    "grouped": Case(2, 8, 2, 256, 256, 128, causal=True),
    "grouped_bshd": Case(2, 8, 2, 256, 256, 128, causal=True, layout="bshd"),
    "bshd": Case(2, 4, 4, 256, 256, 64, layout="bshd"),
    "fused": Case(2, 4, 4, 200, 200, 64, causal=True, layout="fused"),
    "keys_1000": Case(1, 2, 2, 1000, 1000, 64),
    "keys_1000_causal": Case(1, 2, 2, 1000, 1000, 128, causal=True),
    "keys_129_causal": Case(2, 2, 2, 129, 129, 64, causal=True),
    "keys_7": Case(2, 3, 3, 7, 7, 64),
    "keys_7_causal": Case(2, 3, 3, 7, 7, 64, causal=True),
    "rows_1": Case(3, 4, 4, 1, 129, 64),
    "cross": Case(2, 4, 4, 300, 77, 64),
    "cross_long": Case(1, 2, 2, 65, 1000, 128),
    "causal_wide": Case(1, 2, 2, 256, 700, 64, causal=True),
    "causal_tall": Case(1, 2, 2, 700, 256, 64, causal=True),
    "float_mask": Case(2, 4, 4, 256, 256, 64, mask="float"),
    "head_mask": Case(2, 4, 4, 200, 264, 64, mask="heads"),
    "head_mask_grouped": Case(2, 4, 2, 200, 264, 64, mask="heads"),
    "padding_mask": Case(3, 4, 4, 128, 200, 64, mask="padding"),
    "row_mask": Case(2, 4, 4, 130, 130, 64, mask="rows"),
    "negative_scale": Case(1, 2, 2, 130, 130, 64, scale=-0.3),
    "large_scale": Case(1, 2, 2, 130, 130, 64, scale=4.0),
    "decode": Case(2, 8, 2, 1, 1000, 128),
    "decode_16": Case(2, 8, 2, 16, 512, 128),
    "decode_mask": Case(2, 8, 2, 1, 500, 64, mask="padding"),
    "decode_cached": Case(2, 8, 2, 1, 513, 128, cached=512),
    "decode_cached_3": Case(2, 8, 2, 3, 103, 64, cached=100),
    "decode_width_256": Case(2, 4, 2, 1, 300, 256),
    "prefill_cached": Case(1, 4, 2, 130, 330, 64, cached=200),
}

TIMED: dict[str, Case] = {
    "prefill_4096": Case(1, 32, 32, 4096, 4096, 128, causal=True),
    "prefill_4096_full": Case(1, 32, 32, 4096, 4096, 128),
    "encoder_1024": Case(4, 16, 16, 1024, 1024, 64),
    "bert_512": Case(8, 12, 12, 512, 512, 64, mask="padding"),
    "prefill_4096_64": Case(1, 32, 32, 4096, 4096, 64, causal=True),
    "prefill_2048_256": Case(1, 16, 16, 2048, 2048, 256, causal=True),
    "grouped_2048": Case(1, 32, 8, 2048, 2048, 128, causal=True),
    "decode_16_8192": Case(16, 32, 8, 1, 8192, 128),
    "decode_1_1024": Case(1, 32, 8, 1, 1024, 128),
    "decode_1_8192": Case(1, 32, 8, 1, 8192, 128),
}

CASES = {**SMALL, **TIMED}


def model_of(case: Case) -> Any:
    """The attention as a module of its inputs."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, q, *rest):
            mask = rest[-1] if case.mask else None
            if case.layout == "fused":
                q, k, v = thirds(case, q)
            elif case.cached:
                old_k, old_v, k, v = rest[:4]
                k = torch.cat([old_k, k.transpose(1, 2)], 2)
                v = torch.cat([old_v, v.transpose(1, 2)], 2)
            else:
                k, v = rest[:2]
                if case.layout == "bshd":
                    k, v = k.transpose(1, 2), v.transpose(1, 2)
            if case.layout == "bshd":
                q = q.transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=case.causal, scale=case.scale, enable_gqa=case.heads != case.kv_heads
            )

    return Model()


def thirds(case: Case, fused: Any) -> list[Any]:
    """q, k and v of a fused tensor, as torch wants them."""
    shape = (case.batch, case.rows, case.heads, case.width)
    return [part.view(shape).transpose(1, 2) for part in fused.split(case.heads * case.width, dim=-1)]


def inputs_of(case: Case, device: str) -> dict[str, Any]:
    """Random inputs."""
    import torch

    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
    found = {}
    for name, shape in case.shapes.items():
        if name == "mask" and case.mask in ("padding", "rows"):
            mask = torch.rand(shape, device=device) < 0.7
            if case.mask == "rows":
                mask[:, :, ::5] = False
            else:
                mask[..., 0] = True
            found[name] = mask
        else:
            found[name] = torch.randn(shape, device=device).to(dtype)
    return found


def build(folder: Path, names: list[str]) -> int:
    """Compile the programs; the number of those that spill registers or are not done by the engine."""
    from torch_mlir import ir

    from kitsune_mlir.codegen.gpu.program import compile_gpu
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.frontend import import_model
    from kitsune_mlir.passes.registry import PIPELINE
    from kitsune_mlir.passmanager import run_pipeline

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        case = CASES[name]
        start = time.perf_counter()
        imported = import_model(model_of(case), tuple(inputs_of(case, "cpu").values()), {}, context=new_context())
        run_pipeline(imported.module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
        with imported.module.context, ir.Location.unknown():
            code = compile_gpu(imported.module, "main_p0", "sm_90a")
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


def reference(case: Case, given: dict[str, Any]) -> Any:
    """The result in float64; rows without any key are 0."""
    import torch

    q, k, v = thirds(case, given["qkv"].double()) if "qkv" in given else (given[name].double() for name in "qkv")
    if case.cached:
        k = torch.cat([given["old_k"].double(), k.transpose(1, 2)], 2)
        v = torch.cat([given["old_v"].double(), v.transpose(1, 2)], 2)
    elif case.layout == "bshd":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    q = q.transpose(1, 2) if case.layout == "bshd" else q
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (case.width**-0.5 if case.scale is None else case.scale)
    if case.causal:
        keep = torch.ones(case.rows, case.keys, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if case.mask in ("padding", "rows"):
        scores = scores.masked_fill(~given["mask"], float("-inf"))
    elif case.mask:
        scores = scores + given["mask"].double()
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def prepare(folder: Path, name: str) -> tuple[Any, dict[str, Any], Any, Any]:
    """The executor of a program, random inputs, an output full of NaN, and an action that runs it on the current stream."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest import Manifest

    case = CASES[name]
    torch.manual_seed(0)
    given = inputs_of(case, "cuda")
    shape = (case.batch, case.heads, case.rows, case.head or case.width)
    out = torch.full(shape, float("nan"), device="cuda", dtype=next(iter(given.values())).dtype)
    manifest = Manifest.from_json((folder / f"{name}.manifest.json").read_text())
    executor = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    pointers = [tensor.data_ptr() for tensor in (*given.values(), out)]
    return executor, given, out, lambda: executor.run(pointers, torch.cuda.current_stream().cuda_stream)


def check(folder: Path, name: str) -> bool:
    """Run one program three times, the last time on other inputs, and check; prints one line."""
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
    ok = worst <= 3
    print(f"{name:20s} {'ok   ' if ok else 'WRONG'} error {worst:6.3f}, {executor.blocks} blocks{line}", flush=True)
    return ok


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


def run(folder: Path, names: list[str], with_times: bool, file: str | None) -> int:
    """Run the programs; the number of those that failed. Several cases share a process; a crash costs what is left of them."""
    wanted = [name for name in (names or CASES) if (folder / f"{name}.cubin").exists()]
    size = -(-len(wanted) // 6)
    pieces = [wanted[i : i + size] for i in range(0, len(wanted), size)]

    def start(piece: list[str]) -> tuple[list[str], int]:
        command = [sys.executable, "-u", __file__, "some", str(folder), *piece]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
            lines, message = done.stdout.splitlines(), (done.stderr.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired as late:
            text = late.stdout or b""
            lines, message = (text.decode() if isinstance(text, bytes) else text).splitlines(), f"not done in {LIMIT_SECONDS} s"
        left = piece[len(lines) :]
        failed = sum(" ok " not in line for line in lines) + len(left)
        return [*lines, *(f"{name:20s} FAILED {message}" for name in left)], failed

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for lines, count in pool.map(start, pieces):
            print("\n".join(lines), flush=True)
            failed += count
    if with_times:
        results = [timed(folder, name) for name in wanted if name in TIMED]
        if file:
            Path(file).write_text(json.dumps(results, indent=1))
    print(f"{len(wanted) - failed} of {len(wanted)} right")
    return failed


def main() -> int:
    arguments = sys.argv[1:]
    command, folder = arguments[0], Path(arguments[1])
    file = None
    if "--json" in arguments:
        at = arguments.index("--json")
        file = arguments[at + 1]
        del arguments[at : at + 2]
    with_times = "--time" in arguments
    names = [name for name in arguments[2:] if name != "--time"]
    if command == "build":
        return build(folder, names)
    if command == "some":
        return sum([not check(folder, name) for name in names])
    return run(folder, names, with_times, file)


if __name__ == "__main__":
    sys.exit(bool(main()))
