"""What it costs that one tile waits for another: copies in two stages, and chains of products, with and without their waits.

    python -m test.gpu.handoff_programs build DIR                  # needs the compiler, no GPU
    python -m test.gpu.handoff_programs run DIR [--json FILE]      # needs a Hopper GPU, torch and cuda-bindings

*Copies*: two dependent copies, every block one tile of each, the second one's tiles in the opposite order, as one kernel
whose tiles wait for tiles, beside the two copies as kernels one after the other in a CUDA graph (cuSync's measurement).

*Hand-off*: layers whose tiles wait for the row of tiles before them, beside the same program without waits, which computes
nonsense as fast as it can. The difference, divided by the boundaries, is the time from accumulators that are ready to the next
product that reads them: rounding, store, post, noticing, load. The results of the programs with waits are checked.
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from test.gpu.driver import answers, program_main

BLOCKS = 132
COLUMNS = 4096
COPIES = {"copies_128k": 8, "copies_1m": 64}  # rows of 16 KB a tile
LAYERS = 8
CHAINS = {"handoff_256": (2048, 256, (128, 64)), "handoff_1024": (2048, 1024, (128, 128))}  # rows, width, tile
GOALS = {"copies": 0.03, "handoff": 2.3e-6}  # overhead of the time, seconds of a boundary
TOLERANCE = 2e-2
LIMIT_SECONDS = 40


def copies_text(rows: int, stages: tuple[int, ...]) -> str:
    """Copies of BLOCKS tiles: stage 0 reads %x0, stage 1 what stage 0 wrote (or %x0, where it is alone)."""
    from test.gpu.tile_text import BOTH, buffer, generic, offset, post, program, semaphore, store_rows, task, wait_one
    from test.gpu.tile_text import rows as load

    shape = (BLOCKS * rows, COLUMNS)
    arena = 4 * shape[0] * shape[1]
    both = len(stages) == 2
    body = buffer("h", 0, shape, "f32", arena) + semaphore("s", BLOCKS) if both else ""
    for stage in stages:
        source, target = ("h" if both and stage else "x0"), ("h" if both and not stage else "y0")
        text = f"    %last = arith.constant {BLOCKS - 1} : index\n    %back = arith.subi %last, %i : index\n" if stage else ""
        place = offset(rows).replace("%i,", "%back,") if stage else offset(rows)
        text += place + (wait_one("s", "back") if both and stage else "") + load("t", source, shape, rows, "f32")
        part = (rows, COLUMNS)
        text += generic("c", [("t", BOTH, part, "f32")], (BOTH, part, "f32"), "    linalg.yield %a0 : f32")
        text += store_rows("c", target, shape, rows, "f32") + (post("s") if both and not stage else "")
        body += task(f"copy{stage}", [BLOCKS], text, "simt")
    return program("main", [(shape, "f32", "normal")], [(shape, "f32")], body, arena if both else 256)


def chain_text(name: str, waits: bool) -> str:
    """LAYERS products of one width; without waits every tile starts as soon as its block is free."""
    from test.gpu.mma_text import Layer, program

    rows, width, tile = CHAINS[name]
    text = program([Layer(rows, width, width, tile=tile, epilogue=("relu16",))] * LAYERS)[0]
    return text if waits else "\n".join(line for line in text.split("\n") if '"kitsune.wait"' not in line)


def programs() -> dict[str, str]:
    """Every program by its name: NAME.one, NAME.first, NAME.second; NAME.waits, NAME.free."""
    found = {}
    for name, rows in COPIES.items():
        found |= {f"{name}.one": copies_text(rows, (0, 1))}
        found |= {f"{name}.first": copies_text(rows, (0,)), f"{name}.second": copies_text(rows, (1,))}
    for name in CHAINS:
        found |= {f"{name}.waits": chain_text(name, True), f"{name}.free": chain_text(name, False)}
    return found


def build(folder: Path, names: Sequence[str]) -> int:
    """Write NAME.cubin and NAME.json (the manifest) of every program; how many spill."""
    from torch_mlir import ir

    from bench.timing import note_commit
    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.dialects import new_context

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    spilled = 0
    for name, text in programs().items():
        with new_context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            entry = ir.StringAttr(list(module.body.operations)[0].attributes["sym_name"]).value
            code = compile_gpu(module, entry)
        (folder / f"{name}.cubin").write_bytes(code.cubin)
        (folder / f"{name}.json").write_text(code.manifest.to_json())
        used = code.resources
        spilled += used.spill_store_bytes > 0
        engines = ", ".join(sorted({choice.engine for choice in code.engines}))
        print(f"{name}: {engines}, {used.registers} registers, {used.spill_store_bytes} bytes spilled", flush=True)
    return spilled


def executor(folder: Path, name: str) -> Any:
    """A program that can be launched."""
    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    manifest = read_manifest((folder / f"{name}.json").read_text())
    return CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())


def captured(launches: list[tuple[Any, list[torch.Tensor]]]) -> Any:
    """Replay of a graph with launches one after the other."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for program, tensors in launches:
            program.run([tensor.data_ptr() for tensor in tensors], side.cuda_stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for program, tensors in launches:
            program.run([tensor.data_ptr() for tensor in tensors], torch.cuda.current_stream().cuda_stream)
    return graph.replay


def timed(calls: dict[str, Any], rounds: int = 8) -> dict[str, float]:
    """Median seconds of each call, in turns."""
    from bench.timing import sample_calls

    return {name: statistics.median(values) * 1e-3 for name, values in sample_calls(calls, rounds=rounds).items()}


def copies(folder: Path, name: str) -> dict[str, Any]:
    """Two copies as one kernel and as two."""
    torch.zeros(1, device="cuda")
    x = torch.randn(BLOCKS * COPIES[name], COLUMNS, device="cuda")
    results = [torch.full_like(x, float("nan")) for _ in range(3)]
    one, first, second = (executor(folder, f"{name}.{part}") for part in ("one", "first", "second"))
    together = captured([(one, [x, results[0]])])
    apart = captured([(first, [x, results[1]]), (second, [results[1], results[2]])])
    together()
    apart()
    torch.cuda.synchronize()
    right = torch.equal(results[0], x) and torch.equal(results[2], x)
    seconds = timed({"one": together, "two": apart})
    overhead = seconds["one"] / seconds["two"] - 1
    return {"ok": right, "seconds": seconds, "overhead": overhead, "reached": overhead <= GOALS["copies"]}


def chain(folder: Path, name: str) -> dict[str, Any]:
    """A chain of products with its waits and without."""
    torch.zeros(1, device="cuda")
    rows, width, _ = CHAINS[name]
    x = torch.randn(rows, width, device="cuda").bfloat16()
    weights = [(torch.randn(width, width, device="cuda") * (2 / width) ** 0.5).bfloat16() for _ in range(LAYERS)]
    results = [torch.full((rows, width), float("nan"), device="cuda").bfloat16() for _ in range(2)]
    calls = {}
    for result, part in zip(results, ("waits", "free"), strict=True):
        calls[part] = captured([(executor(folder, f"{name}.{part}"), [x, *weights, result])])
        calls[part]()
    torch.cuda.synchronize()
    wanted = x.double()
    for weight in weights:
        wanted = (wanted @ weight.double().T).bfloat16().clamp(min=0).double()
    error = ((results[0].double() - wanted).norm() / wanted.norm()).item()
    seconds = timed(calls)
    boundary = (seconds["waits"] - seconds["free"]) / (LAYERS - 1)
    ok = error <= TOLERANCE
    return {"ok": ok, "error": error, "seconds": seconds, "boundary": boundary, "reached": boundary <= GOALS["handoff"]}


def part(folder: Path, names: Sequence[str], given: Namespace) -> None:
    """Run cases in this process; one JSON line each."""
    for name in names:
        print(json.dumps({"case": name, **(copies if name in COPIES else chain)(folder, name)}), flush=True)


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases; how many are wrong or did not end."""
    from bench.timing import environment

    records = []
    for record in answers("test.gpu.handoff_programs", folder, list(names or (*COPIES, *CHAINS)), LIMIT_SECONDS):
        records.append(record)
        print(json.dumps(record), flush=True)
    if given.json is not None:
        record = {"environment": environment(folder), "goals": GOALS, "results": records}
        given.json.write_text(json.dumps(record, indent=1))
    return sum(not record["ok"] for record in records)


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part))
