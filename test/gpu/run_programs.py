"""Compiles the hand-written tile programs of `cases.py`, and runs them on a GPU.

    python -m test.gpu.run_programs build FOLDER [NAME...]    needs the compiler, no GPU
    python -m test.gpu.run_programs run FOLDER [NAME...]      needs a GPU, torch and cuda-bindings, no compiler

`run` works in a second process and ends it when a case takes longer than `--limit` seconds, because a wait that is never
satisfied would hang for ever. Such a case is run again from its debug build, which reports the wait that gave up; the rest
goes on in a new process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "i1": "bool",
}
LAUNCHES = 1000
STREAM_LAUNCHES = 200
START_SECONDS = 60


def all_cases(names):
    from test.gpu.cases import CASES

    cases = [make() for make in CASES]
    known = [case.name for case in cases]
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [case for case in cases if not names or case.name in names]


def build(folder: Path, names) -> int:
    """Write NAME.cubin, NAME.json (manifest) and the same of the debug build for every case; 1 if the other one spills."""
    from torch_mlir import ir

    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
    from kitsune_mlir.dialects import new_context

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for case in all_cases(names):
        for debug in (True, False):
            start = time.perf_counter()
            with new_context(), ir.Location.unknown():
                code = compile_gpu(ir.Module.parse(case.text), case.name, KernelOptions(debug=debug))
            stem = folder / (case.name + ("-debug" if debug else ""))
            stem.with_suffix(".cubin").write_bytes(code.cubin)
            stem.with_suffix(".json").write_text(code.manifest.to_json())
            stem.with_suffix(".ptx").write_text(code.ptx)
        used = code.resources
        bad += used.spills
        print(
            f"{'BAD  ' if used.spills else ''}{case.name}: {code.manifest.tiles} tiles, {used.registers} registers, "
            f"{used.spill_store_bytes} bytes spilled, {code.manifest.shared_bytes} bytes shared, "
            f"{', '.join(sorted({e.engine for e in code.engines}))}, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
    return min(1, bad)


def run(folder: Path, names, limit: float) -> int:
    """Run every case; the number of cases that failed."""
    waiting = [case.name for case in all_cases(names)]
    total, failed = len(waiting), []
    while waiting:
        # One process for as many cases as it survives: starting one costs seconds of the device's time.
        ended, bad, text = _watched(folder, waiting, limit)
        failed += bad
        if ended < len(waiting):
            stuck = waiting[ended]
            failed.append(stuck)
            print(f"{stuck}: {text}; its debug build says:", flush=True)
            print(_watched(folder, [stuck], limit, debug=True)[2], flush=True)
            ended += 1
        waiting = waiting[ended:]
    print(f"{len(failed)} of {total} cases failed: {', '.join(failed)}" if failed else f"all {total} cases right")
    return len(failed)


def _watched(folder: Path, names, limit: float, debug: bool = False) -> tuple[int, list[str], str]:
    """Run cases in one process: (how many came to an end, those that came out wrong, why it stopped if it did)."""
    command = [sys.executable, "-m", "test.gpu.run_programs", "some", str(folder), *names, *(["--debug"] if debug else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    ended, bad, tail = 0, [], []
    expired = threading.Event()

    def end() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(limit + START_SECONDS, end)
    timer.start()
    for line in process.stdout:
        if line.startswith("## "):
            verdict, name = line.split()[1:3]
            ended += 1
            bad += [name] if verdict == "bad" else []
            timer.cancel()
            timer = threading.Timer(limit, end)
            timer.start()
            tail.clear()
        else:
            print(line, end="", flush=True)
            tail.append(line)
    process.wait()
    timer.cancel()
    reason = f"did not end within {limit:.0f} s" if expired.is_set() else f"the process ended with {process.returncode}"
    return ended, bad, reason


def some(folder: Path, names, debug: bool) -> int:
    """Run cases one after the other in this process, and say after each how it went."""
    for name in names:
        wrong = one(folder, name, debug)
        print(f"## {'bad' if wrong else 'ok'} {name}", flush=True)
    return 0


def one(folder: Path, name: str, debug: bool) -> int:
    """Run one case: once, many times, from a captured graph, and on two streams at once."""
    import torch

    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    (case,) = all_cases([name])
    stem = folder / (name + ("-debug" if debug else ""))
    torch.zeros(1, device="cuda")
    manifest = read_manifest(stem.with_suffix(".json").read_text())
    executor = CudaExecutor(manifest, stem.with_suffix(".cubin").read_bytes())
    generator = torch.Generator().manual_seed(0)
    inputs = [make_input(torch, generator, *spec).cuda() for spec in case.inputs]
    expected = [e.cpu() for e in case.reference(torch, *inputs)]

    def fresh():
        return [poisoned(torch, shape, dtype) for shape, dtype in case.results]

    def launch(results, stream):
        executor.run([t.data_ptr() for t in (*inputs, *results)], stream.cuda_stream)

    def verdict(what, results):
        errors = [error_of(torch, got.cpu(), want) for got, want in zip(results, expected, strict=True)]
        good = all(error <= case.tolerance for error in errors)
        print(
            f"  {what}: largest error {max(errors):.2e}{'' if good else '   WRONG, allowed ' + str(case.tolerance)}", flush=True
        )
        return good

    default = torch.cuda.current_stream()
    print(f"{name}{' (debug)' if debug else ''}: {executor.blocks} blocks of {manifest.threads}", flush=True)
    results = fresh()
    launch(results, default)
    executor.check(default.cuda_stream)
    good = verdict("first launch", results)

    results = fresh()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        launch(results, default)
    enqueued = time.perf_counter() - start
    torch.cuda.synchronize()
    spent = time.perf_counter() - start
    print(
        f"  {LAUNCHES} launches: {spent / LAUNCHES * 1e6:.1f} us each, {enqueued / LAUNCHES * 1e6:.1f} us on the host",
        flush=True,
    )
    good &= verdict("after them", results)

    results = fresh()
    side = torch.cuda.Stream()
    side.wait_stream(default)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(3):
            launch(results, side)
    for _ in range(50):
        for result in results:
            result.copy_(poisoned(torch, result.shape, None, result.dtype))
        graph.replay()
    torch.cuda.synchronize()
    good &= verdict("replayed graph", results)

    streams = [torch.cuda.Stream() for _ in range(2)]
    outputs = [fresh() for _ in streams]
    torch.cuda.synchronize()
    for _ in range(STREAM_LAUNCHES):
        for stream, output in zip(streams, outputs, strict=True):
            launch(output, stream)
        graph.replay()
    torch.cuda.synchronize()
    for number, output in enumerate(outputs):
        good &= verdict(f"stream {number} of two, beside the graph", output)
    good &= verdict("the graph beside them", results)
    return 0 if good else 1


def make_input(torch, generator, shape, dtype, filling):
    """A tensor on the host, filled as `Case` says."""
    type = getattr(torch, DTYPES[dtype])
    if filling.startswith("index"):
        return torch.randint(0, int(filling.split()[1]), shape, generator=generator).to(type)
    if filling.startswith("signed"):
        size = int(filling.split()[1])
        return torch.randint(-size, size, shape, generator=generator).to(type)
    if filling == "bool":
        return torch.randint(0, 2, shape, generator=generator).to(type)
    if filling == "small":
        return torch.randint(-9, 10, shape, generator=generator).to(type)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values.abs().clamp(max=2) + 0.1 if filling == "positive" else values).to(type)


def poisoned(torch, shape, dtype, type=None):
    """A result that must be overwritten everywhere: NaN, or a number that no case gives."""
    type = type or getattr(torch, DTYPES[dtype])
    if type == torch.bool:
        return torch.randint(0, 2, tuple(shape), device="cuda").bool()
    return torch.full(tuple(shape), float("nan") if type.is_floating_point else 101, dtype=type, device="cuda")


def error_of(torch, got, want) -> float:
    """Largest difference, relative to the largest expected value for floats; any difference counts for integers."""
    if got.shape != want.shape:
        return float("inf")
    if not want.is_floating_point():
        return 0.0 if torch.equal(got.long(), want.long()) else float("inf")
    got, want = got.double(), want.double()
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(got), finite) or not torch.equal(
        got[~finite].nan_to_num(7.0), want[~finite].nan_to_num(7.0)
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(1e-30, want[finite].abs().max().item())
    return (got[finite] - want[finite]).abs().max().item() / scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("build", "run", "some"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--limit", type=float, default=40, help="seconds for one case")
    parser.add_argument("--debug", action="store_true", help="run the debug builds (mode 'some')")
    options = parser.parse_args()
    if options.mode == "build":
        return build(options.folder, options.names)
    if options.mode == "run":
        return run(options.folder, options.names, options.limit)
    return some(options.folder, options.names, options.debug)


if __name__ == "__main__":
    raise SystemExit(main())
