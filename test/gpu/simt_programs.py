"""Programs for the simt engine on a device, in two halves that may run on different machines.

    python -m test.gpu.simt_programs build FOLDER [--time]   compiles every case (needs the compiler, no GPU)
    python -m test.gpu.simt_programs run FOLDER [--time]     runs and checks them (needs a GPU and cuda-bindings, no compiler)

Without `--time`: the cases of `simt_cases.py`, which are small; results are compared with torch in float64. With it: those of
`simt_timed.py`, about 1 GB each, checked and timed beside a device copy; `--json FILE` writes the figures down.
`--only REGEX` selects cases by name.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.sweeps import Function
from test.gpu.simt_cases import CASES, DTYPES, TOLERANCE, Case, error_of
from test.gpu.simt_timed import TIMED, check, measure

TARGET = "h200"
SECONDS = 30  # for one case, the start of its process included
EVERY: dict[str, Case] = {**CASES, **TIMED}


# --- building


def plan_case(case: Case):
    """Import a case and plan it, down to the tile program; the imported model, whose module holds it."""
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.frontend import import_model
    from kitsune_mlir.passes.form_stages import FormStages
    from kitsune_mlir.passes.materialize import Materialize
    from kitsune_mlir.passes.normalize import Normalize
    from kitsune_mlir.passes.partition_streams import PartitionStreams
    from kitsune_mlir.passes.place_buffers import PlaceBuffers
    from kitsune_mlir.passes.synchronize import Synchronize

    model = import_model(Function(case.run), tuple(case.make("cpu", empty=True)), context=new_context())
    planning = (Normalize(), FormStages(target=TARGET), PartitionStreams(target=TARGET), PlaceBuffers(), Synchronize())
    for step in (*planning, Materialize()):
        step.run(model.module.operation)
    return model


def compile_case(case: Case, engine: Any = None) -> list[tuple[Any, ...]]:
    """Plan a case and emit its tile programs by simt alone, or by `engine`: (imported model, executor) of each."""
    from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
    from kitsune_mlir.codegen.gpu.kernel import executor
    from kitsune_mlir.dialects.tile_reader import ProgramView

    model = plan_case(case)
    found = []
    for op in model.module.body.operations:
        if "kitsune.program" in op.operation.attributes:
            program = ProgramView(op.operation)
            found.append((model, executor.build(program, program.name, engines={"simt": engine or SimtEngine()})))
    return found


def build_case(folder: Path, name: str) -> str:
    """Compile a case into files of the folder; a line about it."""
    import numpy as np

    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from test.oracles.upstream import values_of

    start = time.perf_counter()
    case = EVERY[name]
    model = plan_case(case)
    code = compile_gpu(model.module, "main_p0")
    (folder / f"{name}.cubin").write_bytes(code.cubin)
    (folder / f"{name}.manifest").write_text(code.manifest.to_json())
    arguments = []
    for number, (argument, value) in enumerate(zip(model.arguments, values_of(model, case.make("cpu")), strict=True)):
        if argument.position is None:
            np.save(folder / f"{name}.{number}.npy", value.numpy())
            arguments.append({"file": f"{name}.{number}.npy"})
        else:
            arguments.append({"input": argument.position})
    results = [{"shape": list(r.shape), "dtype": r.dtype, "index": r.index} for r in model.results if r.kind == "tensor"]
    (folder / f"{name}.json").write_text(json.dumps({"arguments": arguments, "results": results}))
    plans = "; ".join(f"{e.engine} {e.tiles} tiles {e.parameters}" for e in code.engines)
    spills = f" SPILLS {code.resources.spill_store_bytes}" if code.resources.spills else ""
    return f"{code.resources.registers} registers{spills}, {time.perf_counter() - start:.1f} s, {plans}"


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases into a folder; the number that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        try:
            told = build_case(folder, name)
            failed += " SPILLS " in told
            print(f"built {name}: {told}", flush=True)
        except Exception as error:  # every other case is still worth building
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"built {len(names) - failed} of {len(names)} cases into {folder}")
    return failed


# --- running


def run_case(folder: Path, name: str) -> dict[str, Any]:
    """Run and check one case, and time it if it is one of `TIMED`; figures, with "ok" among them."""
    import numpy as np

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    case, notes = EVERY[name], json.loads((folder / f"{name}.json").read_text())
    manifest = read_manifest((folder / f"{name}.manifest").read_text())
    torch.zeros(1, device="cuda")
    program = CudaExecutor(manifest, (folder / f"{name}.cubin").read_bytes())
    inputs = case.make("cuda")
    arguments = [
        torch.from_numpy(np.load(folder / item["file"])).cuda() if "file" in item else inputs[item["input"]].contiguous()
        for item in notes["arguments"]
    ]
    order = sorted({item["index"]: item for item in notes["results"]}.items())
    stored = {i: torch.zeros(item["shape"], dtype=DTYPES[item["dtype"]], device="cuda") for i, item in order}
    results = [stored[item["index"]] for item in notes["results"]]
    pointers = [t.data_ptr() for t in (*arguments, *stored.values())]
    stream = torch.cuda.current_stream().cuda_stream

    def launch() -> None:
        program.run(pointers, stream)

    launch()
    torch.cuda.synchronize()
    if name in TIMED:
        timed = TIMED[name]
        error, right = check(timed, inputs, results)
        return {"name": name, "ok": right, "error": error, "blocks": program.blocks, **measure(timed, launch, inputs, results)}
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    wanted = case.run(*wide)
    wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    errors = [error_of(found, reference) for found, reference in zip(results, wanted, strict=True)]
    right = all(error <= TOLERANCE.get(found.dtype, 0.0) for error, found in zip(errors, results, strict=True))
    return {"name": name, "ok": right, "error": max(errors), "blocks": program.blocks}


def line_of(figures: dict[str, Any]) -> str:
    """A line for people."""
    rest = "  ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items() if k not in ("name", "ok")
    )
    return f"{'ok   ' if figures['ok'] else 'WRONG'} {figures['name']:24} {rest}"


def run(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Run cases in a process that is replaced whenever a case crashes or hangs; the figures of each."""
    found, left = [], [name for name in names if (folder / f"{name}.json").exists()]

    def note(figures: dict[str, Any]) -> None:
        found.append(figures)
        left.pop(0)
        print(line_of(figures), flush=True)

    while left:
        command = [sys.executable, "-m", "test.gpu.simt_programs", "batch", str(folder), "--names", *left]
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
                    note({"name": left[0], "ok": False, "problem": f"no result in {SECONDS} s"})
                    break
                if not line:  # the process ended early
                    child.wait()
                    errors.seek(0)
                    note({"name": left[0], "ok": False, "problem": str(errors.read().strip().splitlines()[-1:])})
                    break
                note(json.loads(line))
            child.kill()
            child.wait()
    print(f"{sum(not figures['ok'] for figures in found)} failed")
    return found


def _pump(stream, lines: queue.SimpleQueue) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("build", "run", "batch"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time", action="store_true", help="the large cases, timed")
    parser.add_argument("--only", default="", help="cases whose names this regular expression finds")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode == "batch":
        for name in options.names:
            print(json.dumps(run_case(options.folder, name)), flush=True)
            torch.cuda.empty_cache()
        return 0
    names = [name for name in (TIMED if options.time else CASES) if re.search(options.only, name)]
    if options.mode == "build":
        return min(1, build(options.folder, names))
    figures = run(options.folder, names)
    if options.json:
        options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cases": figures}, indent=1) + "\n")
    return int(not all(item["ok"] for item in figures))


if __name__ == "__main__":
    sys.exit(main())
