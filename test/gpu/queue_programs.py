"""Tiles handed from block to block: rings in L2 and clusters as kernels, and models whose stages run side by side.

    python -m test.gpu.queue_programs build DIR [names...]             # needs the compiler, no GPU
    python -m test.gpu.queue_programs run DIR [names...] [--json FILE]     # needs a Hopper GPU; no compiler

Kernels (`queue_kernels.py`) are checked word by word and measured: bytes a second through all rings together, and the time of
one hand-off. Models are compiled in each mode, checked against float64 and, where tiles are shared alike, against the temporal
program bit by bit, launched repeatedly, on two streams and from a captured graph, and timed beside it. One that hangs costs
only itself.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from test.gpu.driver import answers, program_main, spilled_bytes

LIMIT_SECONDS = 25
TOLERANCE = 2e-2


class Branches(nn.Module):
    """A trunk that two heads read."""

    def __init__(self, width: int):
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(self.trunk(x))
        return torch.nn.functional.gelu(self.one(h)), self.two(h)


def mlp(*widths: int) -> nn.Module:
    layers = [part for a, b in zip(widths, widths[1:], strict=False) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "mlp3_2048": (lambda: mlp(480, 1024, 1024, 512), (2048, 480)),
    "mlp3_8192": (lambda: mlp(480, 1024, 1024, 512), (8192, 480)),
    "mlp2_129": (lambda: mlp(512, 1024, 512), (129, 512)),
    "mlp2_1": (lambda: mlp(512, 1024, 512), (1, 512)),
    "mlp4_1000": (lambda: mlp(512, 512, 512, 512, 512), (1000, 512)),
    "branches_7": (lambda: Branches(512), (7, 512)),
    "branches_1000": (lambda: Branches(512), (1000, 512)),
}
MODES = ("temporal", "spatial", "queue")
"""`queue`: spatial, and edges go through rings of `RING_TILES` tiles where they can."""
RING_TILES = 12


def build(folder: Path, names: Sequence[str]) -> int:
    """Write NAME.cubin and NAME.kernel.json of kernels, NAME.MODE.kit of models; how many spill."""
    from torch_mlir import ir

    import kitsune_mlir
    from test.gpu.queue_kernels import PROBES

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name, probe in PROBES.items():
        if names and name not in names:
            continue
        with ir.Context(), ir.Location.unknown():
            made = probe.make(probe).compile()
        bad += any(kernel.spill_store_bytes for kernel in made.cubin.kernels.values())
        (folder / f"{name}.cubin").write_bytes(made.cubin.data)
        described = {
            "manifest": made.manifest,
            "kind": probe.make.__name__,
            "slot_bytes": probe.slot_bytes,
            "slots": probe.slots,
            "cluster": probe.cluster,
            "workspace_bytes": probe.workspace_bytes,
        }
        (folder / f"{name}.kernel.json").write_text(json.dumps(described))
    for name, (make, shape) in MODELS.items():
        if names and name not in names:
            continue
        for mode in MODES:
            torch.manual_seed(0)
            model = make().to(torch.bfloat16).eval()
            args = (torch.randn(shape).to(torch.bfloat16),)
            ringed = mode == "queue"
            passes = {"kitsune-place-buffers": f"rings={RING_TILES}"} if ringed else {}
            options = {"schedule": "spatial" if ringed else mode, "passes": passes}
            program = kitsune_mlir.compile(model, args, target="sm_90a", options=options)
            program.save(folder / f"{name}.{mode}.kit", weights=False)
            spilled = spilled_bytes(program)
            bad += spilled > 0
            engines = ", ".join(f"{e['task']} {e['engine']} {e['tiles']}" for e in program.summary["engines"])
            print(f"{'BAD  ' if spilled else ''}{name} {mode}: {engines}; {spilled} bytes spilled", flush=True)
    return bad


# --- kernels -------------------------------------------------------------------------------------------------------------


def kernel(path: Path) -> dict:
    """Check and measure a kernel of `queue_kernels.py`."""
    import ctypes

    import numpy as np

    from kitsune_mlir.runtime.driver import Device, call, load
    from kitsune_mlir.runtime.launch import Config, library

    case = json.loads(path.read_text())
    manifest, kind, slots = case["manifest"], case["kind"], case["slots"]
    torch.zeros(1, device="cuda")
    device = Device.open(0)
    cubin = path.with_name(path.name.replace(".kernel.json", ".cubin")).read_bytes()
    function = load(device, cubin, manifest["name"], manifest["threads"], manifest["shared_bytes"])
    blocks = device.multiprocessors // 2 * 2
    if case["cluster"] > 1:
        blocks = blocks // 2 // case["cluster"] * case["cluster"]  # surely all resident

    def words(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device="cuda")

    workspace = words(case["workspace_bytes"] // 4)
    memory = words(blocks * slots * case["slot_bytes"] // 4)
    out = words(blocks * manifest["threads"])
    rounds = (96 << 20) // case["slot_bytes"] // slots * slots if kind == "pairs" else 2000
    held = [ctypes.c_void_p(t.data_ptr()) for t in (workspace, memory, out)] + [ctypes.c_int32(rounds)]
    table = np.array([ctypes.addressof(one) for one in held], dtype=np.uint64)
    stream = torch.cuda.current_stream().cuda_stream
    config = Config(blocks, manifest["threads"], manifest["shared_bytes"], stream, case["cluster"] == 1)

    def launch() -> None:
        status = library().launch(config.address, int(function.handle), table.ctypes.data, None)
        if status:
            raise RuntimeError(f"launch failed with {status}")

    times, right = [], True
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        right = right and _right(kind, case, out, rounds, blocks)
    call("cuCtxSynchronize")
    best = statistics.median(times[1:])
    result = {"ok": right, "milliseconds": best, "rounds": rounds}
    if kind == "pairs":
        return result | {"terabytes_per_second": blocks // 2 * rounds * case["slot_bytes"] / best / 1e9}
    return result | {"handoff_us": best * 1e3 / rounds / (2 if kind == "there_and_back" else 1)}


def _right(kind: str, case: dict, out: Tensor, rounds: int, blocks: int) -> bool:
    """Whether every word was seen: the sums that threads left."""
    slot, mask = case["slot_bytes"], (1 << 32) - 1
    pieces = torch.arange(slot // 16, dtype=torch.int64)
    tile = int(pieces.sum()) * 4 + slot // 16 * 6  # words of tile 0
    seen = out.to(torch.int64)
    if kind == "exchange":
        size = case["cluster"]
        place = torch.arange(256, dtype=torch.int64) % (slot // 4)
        each = place // 4 + place % 4
        total = rounds * (rounds - 1) // 2 * size + rounds * (size * (size - 1) // 2) + rounds * size * each
        return bool(((seen.reshape(-1, 256)[:blocks].cpu() - total) & mask == 0).all())
    halves = blocks if kind == "there_and_back" else blocks // 2
    per_thread = case["manifest"]["threads"]
    got = seen[: halves * per_thread].reshape(halves, per_thread).sum(1)
    want = rounds * tile + rounds * (rounds - 1) // 2 * (slot // 4)
    return bool(((got.cpu() - want) & mask == 0).all())


# --- models --------------------------------------------------------------------------------------------------------------


def model(path: Path) -> dict:
    """Check the modes of a model against float64 and each other, and time them beside eager PyTorch."""
    import kitsune_mlir
    from bench.timing import graphed, time_calls

    name = path.name.split(".")[0]
    torch.manual_seed(0)
    make, shape = MODELS[name]
    module = make().to(torch.bfloat16).eval().cuda()
    torch.manual_seed(1)
    x = torch.randn(shape, device="cuda").to(torch.bfloat16)
    state = dict(module.named_parameters())
    with torch.no_grad():
        wanted = _leaves(copy.deepcopy(module).double()(x.double()))
        programs = {
            found.name.split(".")[1]: kitsune_mlir.load(found, weights=state)
            for found in sorted(path.parent.glob(f"{name}.*.kit"))
        }
        first = {mode: [g.clone() for g in _leaves(program(x))] for mode, program in programs.items()}
        torch.cuda.synchronize()
        errors = {
            mode: [((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, wanted, strict=True)]
            for mode, got in first.items()
        }
        equal = {
            mode: all(torch.equal(a, b) for a, b in zip(got, first["temporal"], strict=True))
            for mode, got in first.items()
            if _pieces(programs[mode]) == _pieces(programs["temporal"])
        }
        stable = {mode: _stable(program, x, first[mode]) for mode, program in programs.items()}
        calls = {mode: graphed(lambda program=program: program(x)) for mode, program in programs.items()}
        calls["eager"] = graphed(lambda: module(x))
        times = time_calls(calls)
    within = all(e <= TOLERANCE for each in errors.values() for e in each)
    return {
        "ok": within and all(equal.values()) and all(stable.values()),
        "errors": errors,
        "equal_to_temporal": equal,
        "stable": stable,
        "milliseconds": times,
    }


def _pieces(program) -> list[tuple[str, str]]:
    """How each stage shares the sums of its tiles among blocks: what is shared is added in another order."""
    return [(engine["task"], engine["parameters"].get("pieces", "")) for engine in program.summary["engines"]]


def _leaves(value) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def _stable(program, x: Tensor, first: list[Tensor]) -> bool:
    """Whether many launches, on two streams too and from a graph, all give the first result again."""
    from bench.timing import graphed

    streams = [torch.cuda.Stream() for _ in range(2)]
    got = []
    for _ in range(100):
        got.append(_leaves(program(x)))
    torch.cuda.synchronize()
    for number in range(50):
        with torch.cuda.stream(streams[number % 2]):
            got.append(_leaves(program(x)))
    torch.cuda.synchronize()
    replay = graphed(lambda: program(x))
    for _ in range(20):
        kept = _leaves(replay())
    torch.cuda.synchronize()
    got.append(kept)
    return all(torch.equal(a, b) for each in got for a, b in zip(each, first, strict=True))


# --- running -------------------------------------------------------------------------------------------------------------


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases, one after the other; the number of those that failed."""
    paths = [*sorted(folder.glob("*.kernel.json")), *sorted(folder.glob("*.temporal.kit"))]
    found = [name for path in paths if (name := path.name.split(".")[0]) in names or not names]
    records = []
    for record in answers("test.gpu.queue_programs", folder, found, LIMIT_SECONDS):
        records.append(record)
        print(json.dumps(record), flush=True)
    failed = sum(not record["ok"] for record in records)
    if given.json is not None:
        from bench.timing import environment

        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"environment": environment(folder), "results": records}, indent=1))
    print(f"{len(records) - failed} passed, {failed} failed")
    return failed


def part(folder: Path, names: Sequence[str], _: Namespace) -> int:
    """Run cases in this process: a line of JSON each."""
    for name in names:
        described = folder / f"{name}.kernel.json"
        record = kernel(described) if described.exists() else model(folder / f"{name}.temporal.kit")
        print(json.dumps({"case": name, **record}), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run, part))
