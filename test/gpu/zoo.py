"""The zoo on a GPU, in two steps, so that the machine with the GPU needs no compiler.

    python -m test.gpu.zoo build DIR [--size small|full] [--dtype bf16|f32] [names...]    compile to packages (needs no GPU)
    python -m test.gpu.zoo run DIR [names...] [--json FILE]                               check them (needs a Hopper GPU)
    python -m test.gpu.zoo soak DIR [names...] [--launches 10000] [--json FILE]           many launches, also on 4 streams
    compute-sanitizer --tool memcheck python -m test.gpu.zoo one DIR NAME.DTYPE.SIZE --uncounted

`run` and `soak` use only the runtime: torch, cuda-bindings, safetensors. Cases run in a few processes side by side (`--jobs`);
one that is silent for too long, or crashes, costs only itself. Results are added to FILE, which several of these commands may
share. `bench.suite` is what times them.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir
import kitsune_mlir.errors
from bench.measure import relative_errors
from bench.models import ZOO, make
from bench.timing import launches, note_commit
from test.gpu.driver import answers_beside, spilled_bytes
from test.gpu.shared_results import add_results
from test.gpu.soak import soak

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
LIMITS = {"bf16": 2e-2, "f32": 1e-5}
SECONDS = 60
"""Without a line from a process before its case counts as hung."""
STACKS = (2, 4, 8)
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    f"llama_stack_{layers}": (
        "llama8b_stack",
        {"layers": layers, "width": 512, "heads": 8, "kv_heads": 2, "hidden": 1024, "batch": 1, "cached": 129},
        {"schedule": "temporal"},
    )
    for layers in STACKS
}
"""More cases: a model of the zoo, its numbers, and options. Equal layers that are stages of their own share their code."""


def build(folder: Path, size: str, dtypes: list[str], names: list[str]) -> int:
    """Compile cases to `NAME.DTYPE.SIZE.kit`, without weights: `run` makes the same from the seed; how many failed or spill."""
    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    failed = 0
    for name in names or [*ZOO, *VARIANTS]:
        for dtype in dtypes:
            model, args = made(name, size, dtype)
            options = {"convolution_precision": "highest", **VARIANTS.get(name, ("", {}, {}))[2]}
            try:
                program = kitsune_mlir.compile(model, args, target="sm_90a", options=options)
            except kitsune_mlir.errors.KitsuneError as error:
                print(f"FAIL {name} {dtype} {size}: {error}")
                failed += 1
                continue
            path = folder / f"{name}.{dtype}.{size}.kit"
            program.save(path, weights=False)
            kernels = program.summary["kernels"]
            spilled = spilled_bytes(program)
            failed += spilled > 0
            total = sum(program.seconds.values())
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in program.seconds.items())
            print(
                f"{'FAIL ' if spilled else ''}{name} {dtype} {size}: {total:.1f} s ({phases}), "
                f"{kernels[0]['registers']} registers, {spilled} bytes spilled, {path.stat().st_size >> 10} KiB",
                flush=True,
            )
    return failed


def made(name: str, size: str, dtype: str):
    """A model of the zoo, or a variant of one, and its inputs."""
    base, numbers, _ = VARIANTS.get(name, (name, {}, {}))
    return make(base, size=size, dtype=DTYPES[dtype], seed=0, **numbers)


def opened(path: Path):
    """A package's program, its model and fresh inputs, on the device."""
    name, dtype, size, _ = path.name.split(".")
    model, args = made(name, size, dtype)
    model = model.eval().cuda()
    torch.manual_seed(int.from_bytes(path.name.encode(), "little") % 2**31)
    args = tuple(torch.randn_like(a, device="cuda") if a.is_floating_point() else a.cuda() for a in args)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    return kitsune_mlir.load(path, weights=state), model, args


def check(path: Path, counted: bool = True) -> dict:
    """Run one package on fresh inputs against float64, twice for determinism.

    `counted=False` leaves the profiler out (it and compute-sanitizer exclude each other).
    """
    name, dtype, size, _ = path.name.split(".")
    program, model, args = opened(path)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        wanted = exact(*(a.double() if a.is_floating_point() else a for a in args))
        del exact
        first = program(*args)
        second = program(*args)
    torch.cuda.synchronize()
    errors = relative_errors(first, wanted)
    result = {
        "case": f"{name}.{dtype}.{size}",
        "errors": errors,
        "limit": LIMITS[dtype],
        "repeat_difference": max(relative_errors(first, second), default=0.0),
        "ok": all(e <= LIMITS[dtype] for e in errors),
    }
    if counted:
        result["launches"] = launches(lambda: program(*args))
        result["eager_launches"] = launches(lambda: model(*args))
    return result


def hold_out(path: Path, launches: int) -> dict:
    """Launch one package many times (`soak.py`)."""
    program, _, args = opened(path)
    found = soak(lambda: program(*args), LIMITS[path.name.split(".")[1]], launches, launches // 10, 4)
    return {"case": _name(path), **found}


def run(
    folder: Path, names: Sequence[str], out: Path | None, jobs: int, work: str = "one", switches: Sequence[str] = ()
) -> int:
    """Check packages of a folder in `jobs` processes; returns how many failed.

    Args:
        names: of the packages, with type and size, or of the models; none: all packages.
        out: results are added to this file as they come.
        work: the mode of this program that a process does, and its switches.
    """
    from bench.timing import environment

    head = {"environment": environment(folder), "command": f"python -m test.gpu.zoo {'run' if work == 'one' else 'soak'} DIR"}
    found = [_name(path) for path in sorted(folder.glob("*.kit"))]
    wanted = [name for name in found if not names or {name, f"{name}.kit", name.split(".")[0]} & set(names)]
    bad = 0
    for result in answers_beside(jobs, "test.gpu.zoo", folder, wanted, SECONDS, switches, work):
        bad += not result["ok"]
        print(f"{'ok  ' if result['ok'] else 'FAIL'} {result['case']:32s} {_words(result)}", flush=True)
        if out is not None:
            add_results(out, head, [result])
    print(f"{len(wanted) - bad} passed, {bad} failed")
    return bad if wanted else 1


def _name(path: Path) -> str:
    return path.name.removesuffix(".kit")


def _words(result: dict) -> str:
    """A result in a line."""
    if "wrong" in result:
        kind = "same bits" if result["deterministic"] else "within tolerance"
        return (
            f"{result['launches']} launches in {result['seconds']} s, {result['interleaved']} on {result['streams']} streams: "
            f"{result['wrong']} and {result['wrong_interleaved']} wrong ({kind})"
        )
    worst = max(result.get("errors", [float("nan")]), default=0.0)
    launched = f"launches {result.get('launches')} (eager {result.get('eager_launches')})"
    return f"error {worst:.1e} {launched} {result.get('error', '')}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = ["build", "run", "one", "soak", "hold-out"]
    parser.add_argument("mode", choices=modes, help="'one' and 'hold-out' are what 'run' and 'soak' start")
    parser.add_argument("--launches", type=int, default=10000, help="soak: in a row; a tenth of them on four streams")
    parser.add_argument("path", type=Path, metavar="DIR")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--size", default="small")
    parser.add_argument("--dtype", default="bf16,f32")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side")
    parser.add_argument("--uncounted", action="store_true", help="no profiler: for runs under compute-sanitizer")
    given = parser.parse_intermixed_args()
    if given.mode == "build":
        return min(1, build(given.path, given.size, given.dtype.split(","), given.names))
    if given.mode == "run":
        return min(1, run(given.path, given.names, given.json, given.jobs))
    if given.mode == "soak":
        return min(1, run(given.path, given.names, given.json, given.jobs, "hold-out", ["--launches", str(given.launches)]))
    for name in given.names:
        path, held = given.path / f"{name}.kit", given.mode == "hold-out"
        print(json.dumps(hold_out(path, given.launches) if held else check(path, not given.uncounted)), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
