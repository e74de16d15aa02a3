"""What rates of `kitsune_mlir.machine.rates` stand for, each measured alone: hand-offs, L2, turns, meetings, partial results.

    python -m bench.rates build DIR                       # needs the compiler, no GPU
    python -m bench.rates run DIR [CASE...] [--json FILE]     # needs a Hopper GPU and only the runtime
    python -m bench.rates show FILE                       # what was found, beside the rates that models use

Kernels (`bench.rate_kernels`) note their own times; data that they move is checked. Programs are products by the `mma` engine:
*step* is what a tile more for each block takes, by the depth of the sum; *split* is what a product whose tiles four blocks
share takes longer than one with a tile for each block and as deep a sum a block. Cases are run in processes of their own; FILE
is written after each, and holds medians and spreads of `REPEATS` launches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.forked import answer_of
from bench.rate_findings import table
from bench.records import Record
from bench.timing import environment, note_commit, rates, sample_calls, summary

COMMAND = "python -m bench.rates run DIR"
LIMIT = 60
"""Seconds for a case."""
REPEATS = 9
BATCH = 20
STRIDE, NOTES = 128, 8  # as in `bench.rate_kernels`
COUNTERS = 4 << 10

TILES = ((128, 64), (128, 128), (128, 256))
DEPTHS = (64, 256, 512, 1024)
TURNS = (1, 3)
"""Tiles that each block has: few enough that operands and results stay in L2."""
BLOCKS = 132
SPLIT, SPLIT_DEPTH = 4, 512
"""Blocks that share a tile, and the depth of each one's part of the sum."""


def step_name(tile: tuple[int, int], depth: int, turns: int) -> str:
    """Of a program of `turns` tiles a block."""
    return f"step_{tile[0]}x{tile[1]}.k{depth}_{turns}"


def products() -> dict[str, tuple[tuple[int, int], int, int, int]]:
    """Programs by name: tile, rows, columns, depth. What is before the point names the case."""
    found = {}
    for rows, cols in TILES:
        for depth in DEPTHS:
            for turns in TURNS:
                found[step_name((rows, cols), depth, turns)] = (rows, cols), 12 * rows, 11 * turns * cols, depth
        found[f"split_{rows}x{cols}.shared"] = (rows, cols), 3 * rows, 11 * cols, SPLIT * SPLIT_DEPTH
        found[f"split_{rows}x{cols}.whole"] = (rows, cols), 12 * rows, 11 * cols, SPLIT_DEPTH
    return found


def build(folder: Path) -> None:
    """Write NAME.cubin and NAME.json of every kernel and program.

    Raises:
        ValueError: one spills registers, or is no longer what it is measured for.
    """
    from torch_mlir import ir

    from bench.rate_kernels import PROBES
    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.dialects import new_context
    from test.gpu.mma_text import Layer, program

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    for name, probe in PROBES.items():
        with ir.Context(), ir.Location.unknown():
            made = probe.make(probe).compile()
        if any(kernel.spill_store_bytes for kernel in made.cubin.kernels.values()):
            raise ValueError(f"{name} spills registers")
        facts = {
            field: getattr(probe, field) for field in ("way", "rounds", "grids", "bytes", "pieces", "memory_bytes", "ones")
        }
        facts |= {"kind": probe.make.__name__, "manifest": made.manifest}
        (folder / f"{name}.cubin").write_bytes(made.cubin.data)
        (folder / f"{name}.json").write_text(json.dumps(facts))
    for name, (tile, rows, cols, depth) in products().items():
        with new_context(), ir.Location.unknown():
            code = compile_gpu(ir.Module.parse(program([Layer(rows, cols, depth, tile=tile)])[0]), "main_p0")
        (choice,) = code.engines
        wanted = SPLIT if name.endswith(".shared") else 1
        if choice.engine != "mma" or choice.pieces != wanted:
            raise ValueError(f"{name}: {choice.engine} shares a tile among {choice.pieces} blocks, not mma among {wanted}")
        facts = {"kind": "product", "shape": [rows, cols, depth], "parameters": dict(choice.parameters)}
        (folder / f"{name}.cubin").write_bytes(code.cubin)
        (folder / f"{name}.json").write_text(json.dumps({**facts, "manifest": code.manifest.to_json()}))
        print(name, facts["parameters"], flush=True)


# --- kernels -------------------------------------------------------------------------------------------------------------


def kernel(folder: Path, name: str) -> dict[str, Any]:
    """Launch a kernel with each of its grids, check what it leaves, and say what its notes do, medians of its launches."""
    import ctypes

    import numpy as np
    import torch

    from kitsune_mlir.runtime.driver import Device, load
    from kitsune_mlir.runtime.launch import Config, library
    from kitsune_mlir.runtime.tensormap import encode

    facts = json.loads((folder / f"{name}.json").read_text())
    manifest = facts["manifest"]
    torch.zeros(1, device="cuda")
    cubin = (folder / f"{name}.cubin").read_bytes()
    function = load(Device.open(0), cubin, manifest["name"], manifest["threads"], manifest["shared_bytes"])
    counters = torch.zeros(COUNTERS * STRIDE // 4, dtype=torch.int32, device="cuda")
    memory = torch.zeros(facts["memory_bytes"] // 4, dtype=torch.int32, device="cuda")
    out = torch.zeros(BLOCKS * NOTES, dtype=torch.int64, device="cuda")
    maps = [encode(parameter["map"], memory.data_ptr()) for parameter in manifest["parameters"] if "map" in parameter]
    held = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (counters, memory, out)] + [ctypes.c_int32(facts["rounds"])]
    addresses = [ctypes.addressof(one) for one in held] + [int(one.getPtr()) for one in maps]
    arguments = np.array(addresses, dtype=np.uint64)
    found: dict[str, Any] = {"case": name, "ok": True, "rounds": facts["rounds"], "bytes": facts["bytes"], "grids": {}}
    for grid in facts["grids"]:
        stream = torch.cuda.current_stream().cuda_stream
        config = Config(grid, manifest["threads"], manifest["shared_bytes"], stream)
        launches: list[dict[str, float]] = []
        for _ in range(REPEATS + 1):
            counters.zero_()
            memory.fill_(int(facts["ones"]))
            if status := library().launch(config.address, int(function.handle), arguments.ctypes.data, None):
                raise RuntimeError(f"the launch failed with {status}")
            torch.cuda.synchronize()
            counted = counters.view(-1, STRIDE // 4)[:, 0].cpu().numpy()
            if wrong := complaint(facts, grid, counted, memory.cpu().numpy()):
                found |= {"ok": False, "problem": f"{wrong}, {grid} blocks"}
            launches.append(noted(facts, out.view(BLOCKS, NOTES)[:grid].cpu().numpy()))
        del launches[0]  # which loads the code
        found["grids"][str(grid)] = {note: summary([launch[note] for launch in launches]) for note in launches[0]}
    return found


def complaint(facts: dict[str, Any], grid: int, counters: Any, memory: Any) -> str | None:
    """What is wrong with what a launch left in its counters and its memory (arrays of i32); None if nothing is."""
    import numpy as np

    rounds, kind, way = facts["rounds"], facts["kind"], facts["way"]
    blocks = np.arange(grid)
    if kind == "hand_off":
        second = blocks >= grid // 2
        if not (counters[:grid] == rounds + second).all():
            return "posts are missing"
        number = 2 * rounds - second  # that a block wrote last
        if way == "post":
            return None
        if way == "tile":
            words = number
        else:
            half = ((number % 129).astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
            words = half << 16 | half
        return None if (memory.reshape(grid, -1) == words[:, None]).all() else "a block read what was not written yet"
    if kind == "reads":
        wanted = rounds * (facts["bytes"] // 4 if way == "plain" else 1)
        return None if (counters[:grid] == wanted).all() else "not all was read"
    if kind == "writes":
        parts = memory.reshape(BLOCKS, -1, facts["bytes"] // 4)[:grid]
        last = np.arange(rounds - parts.shape[1], rounds)
        return None if (parts == last[None, :, None]).all() else "not all was written"
    pieces = facts["pieces"]
    words = facts["bytes"] // 4 // pieces
    wanted = words * (rounds * (pieces * (pieces - 1) // 2) + pieces * (rounds * (rounds - 1) // 2))
    return None if ((counters[:grid].astype(np.int64) - wanted) & 0xFFFFFFFF == 0).all() else "sums are wrong"


def noted(facts: dict[str, Any], notes: Any) -> dict[str, float]:
    """What blocks note of a launch, an array [blocks, `NOTES`], in nanoseconds a round: medians of blocks, or of their pairs.

    "round": of a block. "all": from the first one's start to the last one's end. "clock": cycles a nanosecond. Hand-offs have
    "hop", from one block's announcement to when the other block knows, and "load", "product", "finish" and "settle", the parts
    of a block's own work (`rate_kernels.hand_off`); "p10" and "p90" are of hops of different pairs.
    """
    rounds = facts["rounds"]
    time = (notes[:, 1] - notes[:, 0]).astype(float)
    clock = notes[:, 2] / time
    found = {
        "round": statistics.median(time / rounds),
        "all": float(notes[:, 1].max() - notes[:, 0].min()) / rounds,
        "clock": statistics.median(clock),
    }
    if facts["kind"] != "hand_off":
        return found
    parts = notes[:, 3:7] / clock[:, None] / rounds
    half = len(notes) // 2
    hops = [(time[n] / rounds - parts[n].sum() - parts[n + half].sum()) / 2 for n in range(half)]
    tenths = statistics.quantiles(hops, n=10, method="inclusive")
    found |= {"hop": statistics.median(hops), "p10": tenths[0], "p90": tenths[-1]}
    own = ("load", "product", "finish", "settle")
    return found | {part: statistics.median(parts[:, number]) for number, part in enumerate(own)}


# --- programs ------------------------------------------------------------------------------------------------------------


def programs(folder: Path, case: str) -> dict[str, Any]:
    """Microseconds of every program of a case, replayed in turns, and the largest error of their results."""
    import torch

    from bench.timing import graphed
    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    calls, errors, kept = {}, [], []  # what a graph replays lives as long as the graph
    for path in sorted(folder.glob(f"{case}.*.json")):
        name = path.name.removesuffix(".json")
        facts = json.loads(path.read_text())
        executor = CudaExecutor(read_manifest(facts["manifest"]), (folder / f"{name}.cubin").read_bytes())
        rows, cols, depth = facts["shape"]
        a, b = (torch.randn(n, depth, device="cuda").bfloat16() for n in (rows, cols))
        result = torch.full((rows, cols), float("nan"), device="cuda").bfloat16()

        def call(executor: Any = executor, tensors: tuple[Any, ...] = (a, b, result)) -> None:
            executor.run([tensor.data_ptr() for tensor in tensors], torch.cuda.current_stream().cuda_stream)

        kept.append(call)
        calls[name.removeprefix(f"{case}.")] = graphed(call)
        calls[name.removeprefix(f"{case}.")]()
        wanted = a.double() @ b.double().T
        errors.append(float((result.double() - wanted).norm() / wanted.norm()))
    samples = sample_calls(calls, rounds=8, batch=BATCH, queued=True)
    times = {name: summary([1e3 * one for one in values]) for name, values in samples.items()}
    return {"case": case, "ok": max(errors) <= 2e-2, "error": max(errors), "microseconds": times}


def run(folder: Path, names: list[str], file: Path | None) -> int:
    """Measure all cases, or those that are named; how many failed."""
    built = sorted({path.name.split(".")[0] for path in folder.glob("*.json")})
    begun = answer_of(lambda: {"environment": environment(folder), "rates": rates()}, "environment", LIMIT)
    record = Record.open(file)
    record.begin({**begun, "command": COMMAND})
    failed, start = 0, time.monotonic()
    for name in [name for name in built if name in names or not names]:
        measure = kernel if (folder / f"{name}.json").exists() else programs
        entry = answer_of(lambda: measure(folder, name), name, LIMIT)  # noqa: B023
        entry = {"ok": False, **entry}
        record.add(entry)
        failed += not entry["ok"]
        print(f"{'ok  ' if entry['ok'] else 'FAIL'} {name:20s} {entry.get('problem', '')}", flush=True)
    print(f"{failed} failed, {time.monotonic() - start:.0f} s")
    print("\n".join(table(record.cases)))
    return failed


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "show"])
    parser.add_argument("path", type=Path)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--json", type=Path, help="where the record goes")
    given = parser.parse_intermixed_args()
    if given.mode == "build":
        build(given.path)
    elif given.mode == "run":
        return min(1, run(given.path, given.names, given.json))
    else:
        print("\n".join(table(Record.open(given.path).cases)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
