"""Small programs of every kind of kernel under compute-sanitizer's memcheck, racecheck and synccheck.

    python -m test.gpu.sanitize build DIR [names...]     compile the cases (needs no GPU)
    python -m test.gpu.sanitize run DIR [names...] [--zoo DIR] [--tools memcheck,...] [--jobs N] [--seconds S] [--json FILE]
    python -m test.gpu.sanitize merge FILE PART...       one table of those that several runs of the same packages wrote

`run` needs a Hopper GPU and compute-sanitizer, no compiler. `--zoo` adds the small packages that `test.gpu.zoo build` wrote
there. A process does a few cases, as its start takes seconds; where the tool finds something in it, or it hangs, each of its
cases is done again alone, so that every finding has a name. What has not begun when `--seconds` are over is said to have not
run. Results are compared with float64 on the processor. Beside the cases, `windows.window` is a short window of work in one
kernel, compared with one program after the other (`test.gpu.window_programs`), and `runtime.copies` the kernel that copies
inputs into larger ones (`test.gpu.copy_programs`).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bench.measure import relative_errors
from test.gpu import copy_programs, window_programs
from test.gpu.driver import spilled_bytes
from test.gpu.sanitizer_cases import CASES, compiled
from test.gpu.sanitizer_makers import TOLERANCE, Case
from test.gpu.shared_results import add_results

TOOLS = ("memcheck", "racecheck", "synccheck")
TOGETHER = 5
"""Cases of one process, if nothing else is asked for."""
SECONDS, EACH_SECONDS = 40, 20
"""A process may take: to start, and for each case."""
WINDOWS, COPIES = BESIDE = "windows.window", "runtime.copies"
"""What has no package of its own; a folder each, that of windows with what they are of."""
KEPT = 3
"""Findings that are written down, of each run."""

_FINDING = re.compile(r"^========= (?!COMPUTE-SANITIZER|.*SUMMARY|Target application|No kernels)(\S.*)$")
_COUNTS = re.compile(r"^========= (?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", re.MULTILINE)


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases to NAME.kit, without weights; the number of those that failed, spill, or are not done by their engine."""
    from bench.timing import note_commit

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    bad = 0
    for name in [name for name in names if name not in BESIDE] if names else list(CASES):
        try:
            program = compiled(name)
        except Exception as error:  # every other case is still worth building
            bad += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
            continue
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        engines = [task["engine"] for task in program.summary["engines"]]
        spills = spilled_bytes(program)
        wrong = spills > 0 or CASES[name].engine not in engines
        bad += wrong
        print(f"{'FAIL' if wrong else 'ok  '} {name}: {', '.join(engines)}; {spills} bytes spilled", flush=True)
    if not names or WINDOWS in names:
        window_programs.build(folder / WINDOWS, ())
    if not names or COPIES in names:
        (folder / COPIES).mkdir(exist_ok=True)
    return bad


def check(path: Path) -> dict[str, Any]:
    """Run a case twice on the device, against float64 on the processor."""
    import kitsune_mlir

    case = CASES[path.stem]
    if case.requests:
        return check_requests(path, case)
    model, inputs = case.made()
    with torch.no_grad():
        wanted = model.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    model, inputs = case.made()
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    program = kitsune_mlir.load(path, weights={name: value.cuda() for name, value in state.items()})
    given = [x.cuda() for x in inputs]
    first, again = ([t.cpu() for t in _tensors(program(*given))] for _ in range(2))
    errors = relative_errors(first, wanted)
    limits = [case.tolerance or TOLERANCE.get(t.dtype, 0.0) for t in first]
    same = not case.repeats or all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    near = all(error <= limit for error, limit in zip(errors, limits, strict=True))
    problem = [] if near else [f"errors {errors}, of which {limits} are allowed"]
    problem += [] if same else ["two runs differ"]
    return {"case": path.stem, "ok": near and same, "errors": errors, "problem": "; ".join(problem)}


def check_requests(path: Path, case: Case) -> dict[str, Any]:
    """Run a case of several requests: with every kernel that the program has, and with as many requests as it takes; each by
    Python, and by compiled code where results are small enough for that."""
    import kitsune_mlir
    from kitsune_mlir.runtime.fleet import Fleet

    pairs = case.made_for(case.requests)
    states = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model, _ in pairs]
    states = [{name: value.cuda() for name, value in state.items()} for state in states]
    program = kitsune_mlir.load(path, weights=states[0])
    programs = [program.with_weights(state) for state in states] if states[0] else [program] * len(pairs)
    together = program.batch(case.requests)
    fleet = Fleet.of(together, {str(n): one for n, one in enumerate(programs)})
    wanted = [model.double()(*(x.double() if x.is_floating_point() else x for x in inputs)) for model, inputs in pairs]
    given = [tuple(x.cuda() for x in inputs) for _, inputs in pairs]
    worst, limit, problem = 0.0, 0.0, ""
    counts = sorted({*(kernel["least_requests"] for kernel in program.summary["kernels"]), case.requests})
    for count in counts:
        outputs = [together(given[:count], programs[:count])]
        launched = fleet.launch([(str(n), args) for n, args in enumerate(given[:count])]) if fleet is not None else None
        if launched is not None:
            outputs.append([*launched[0]])
        elif fleet is not None:
            problem = f"compiled code does not take {count} calls"
        for output, want in (pair for way in outputs for pair in zip(way, wanted, strict=False)):
            found = [t.cpu() for t in _tensors(output)]
            worst = max(worst, *relative_errors(found, want))
            limit = case.tolerance or max(TOLERANCE.get(t.dtype, 0.0) for t in found)
    problem = problem if worst <= limit else f"error {worst}, of which {limit} is allowed"
    return {"case": path.stem, "ok": not problem, "errors": [worst], "counts": counts, "problem": problem}


def _tensors(found: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]


def work(paths: Sequence[Path]) -> int:
    """Check packages in this process; a line of JSON each."""
    from test.gpu import zoo

    for path in paths:
        try:
            if path.name in BESIDE:
                problem = copy_programs.small() if path.name == COPIES else window_programs.small(path)
                result = {"case": path.name, "ok": not problem, "problem": problem}
            else:
                result = zoo.check(path, counted=False) if _of_zoo(path) else check(path)
            result = {"case": _name(path)} | {key: result.get(key, "") for key in ("ok", "errors", "problem")}
        except Exception as error:
            result = {"case": _name(path), "ok": False, "problem": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(result), flush=True)
    return 0


def _of_zoo(path: Path) -> bool:
    return path.name.count(".") == 3


def _name(path: Path) -> str:
    return path.name.removesuffix(".kit")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a process under a tool gave.

    Attributes:
        count: errors, warnings or hazards that the tool counts; None: it did not get to its end.
        findings: their first lines.
        results: of the cases, by name.
        problem: why there is no count.
    """

    count: int | None
    findings: tuple[str, ...]
    results: dict[str, dict[str, Any]]
    problem: str = ""


def read(output: str) -> Found:
    """What a tool and the program under it have printed."""
    counts = _COUNTS.findall(output)
    findings = tuple(match[1] for line in output.splitlines() if (match := _FINDING.match(line)))
    results = {}
    for line in output.splitlines():
        if line.startswith('{"case"'):
            result = json.loads(line)
            results[result["case"]] = result
    count = sum(int(a or b) for a, b in counts) if counts else None
    problem = "" if counts else (output.strip().splitlines() or ["no output"])[-1][:300]
    return Found(count, findings, results, problem)


def sanitizer() -> str | None:
    """The tool's path: on PATH, or beside the CUDA toolkit."""
    beside = sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or (beside[-1] if beside else None)


def command_of(tool: str, program: str) -> list[str]:
    """What a tool is called with; the program's command follows. It does not stop at symbols that cuda.bindings looks for."""
    every = ["--racecheck-report", "analysis"] if tool == "racecheck" else []
    return [program, "--tool", tool, "--report-api-errors", "no", "--show-backtrace", "no", *every]


def under(tool: str, program: str, paths: Sequence[Path]) -> Found:
    """Cases in one process under a tool."""
    command = [*command_of(tool, program), sys.executable, "-m", "test.gpu.sanitize", "work", *map(str, paths)]
    limit = SECONDS + EACH_SECONDS * len(paths)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False)
    except subprocess.TimeoutExpired as late:
        seen = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return dataclasses.replace(read(seen), count=None, problem=f"no end in {limit} s")
    return read(done.stdout + done.stderr)


def judged(tool: str, program: str, paths: Sequence[Path], end: float) -> list[dict[str, Any]]:
    """Results of some cases under a tool, one a case; none of those that would begin after `end` (of the monotonic clock)."""
    if time.monotonic() > end:
        return []
    found = under(tool, program, paths)
    wrong = found.count != 0 or any(not found.results.get(_name(path), {}).get("ok") for path in paths)
    if wrong and len(paths) > 1:
        return [result for path in paths for result in judged(tool, program, [path], end)]
    return [_record(tool, _name(path), found) for path in paths]


def _record(tool: str, name: str, found: Found) -> dict[str, Any]:
    """A case's line of the table."""
    result = found.results.get(name, {})
    record = {"tool": tool, "case": name, "errors": found.count, "right": bool(result.get("ok"))}
    problem = result.get("problem") or found.problem
    return {
        **record,
        **({"findings": list(found.findings[:KEPT])} if found.findings else {}),
        **({"problem": problem} if problem else {}),
    }


def run(
    paths: Sequence[Path],
    tools: Sequence[str],
    jobs: int,
    together: int,
    out: Path | None,
    seconds: float = float("inf"),
) -> int:
    """All packages under all tools; the number of runs that are not clean or not right, or have not been.

    Args:
        jobs: processes side by side, each with `together` packages.
        out: results are added to this file as they come.
        seconds: none begins later.
    """
    from bench.timing import environment

    program = sanitizer()
    if program is None:
        print("skipped: compute-sanitizer is not here (it comes with the CUDA toolkit)")
        return 0
    start = time.monotonic()
    command = f"{' '.join(command_of('TOOL', 'compute-sanitizer'))} python -m test.gpu.sanitize work CASE"
    head = {"environment": environment(paths[0].parent), "command": command}
    # Neighbours in the list cost alike: every process gets some of each kind.
    batches = -(-len(paths) // together)
    parts = [(tool, paths[number::batches]) for tool in tools for number in range(batches)]
    results: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(judged, tool, program, part, start + seconds) for tool, part in parts]
        for done in concurrent.futures.as_completed(waiting):
            found = done.result()
            results += found
            for result in found:
                print(_line(result), flush=True)
            if out is not None and found:
                add_results(out, head, found, ("tool", "case"))
    bad = [result for result in results if result["errors"] != 0 or not result["right"]]
    for tool in tools:
        mine = [result for result in results if result["tool"] == tool]
        print(f"{tool}: {sum(result in bad for result in mine)} of {len(mine)} not clean")
    missed = len(paths) * len(tools) - len(results)
    told = f"{len(results) - len(bad)} runs clean, {len(bad)} not, {missed} not run"
    print(f"{told}, in {time.monotonic() - start:.0f} s")
    return len(bad) + missed


def _line(result: dict[str, Any]) -> str:
    clean = result["errors"] == 0 and result["right"]
    told = f"{result['errors']} found" + ("" if result["right"] else ", wrong results")
    remarks = [*result.get("findings", ()), result.get("problem", "")]
    return (
        f"{'ok  ' if clean else 'FAIL'} {result['tool']:10s} {result['case']:32s} {told} {' | '.join(remarks)[:300]}".rstrip()
    )


def merge(out: Path, parts: Sequence[Path]) -> int:
    """Write one table of those of several runs; how many results are not clean. They must be of one commit and device.

    Raises:
        ValueError: they are not.
    """
    tables = [json.loads(part.read_text()) for part in parts]
    for key in ("commit", "device", "driver"):
        found = {table["environment"][key] for table in tables}
        if len(found) > 1:
            raise ValueError(f"{', '.join(map(str, parts))} are of {len(found)} {key}s: {', '.join(sorted(found))}")
    results = [result for table in tables for result in table["results"]]
    out.unlink(missing_ok=True)
    add_results(out, {key: tables[0][key] for key in ("environment", "command")}, results, ("tool", "case"))
    bad = sum(result["errors"] != 0 or not result["right"] for result in results)
    print(f"{len(results)} results in {out}, {bad} not clean")
    return bad


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "merge", "work"], help="'work': what 'run' starts")
    parser.add_argument("path", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--zoo", type=Path, help="a folder with small packages of the zoo")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes side by side")
    parser.add_argument("--together", type=int, default=TOGETHER, help="packages of a process")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after so many no run begins")
    parser.add_argument("--json", type=Path)
    given = parser.parse_intermixed_args()
    if given.mode == "build":
        return min(1, build(given.path, given.names))
    if given.mode == "merge":
        return min(1, merge(given.path, [Path(name) for name in given.names]))
    if given.mode == "work":
        return work([given.path, *map(Path, given.names)])
    paths = [given.path / f"{name}.kit" for name in CASES if (given.path / f"{name}.kit").exists()]
    paths += [given.path / name for name in BESIDE if (given.path / name).is_dir()]
    paths += sorted(given.zoo.glob("*.small.kit")) if given.zoo else []
    chosen = [path for path in paths if not given.names or _name(path) in given.names]
    if not chosen:
        print(f"no case in {given.path}")
        return 1
    return min(1, run(chosen, given.tools.split(","), given.jobs, given.together, given.json, given.seconds))


if __name__ == "__main__":
    sys.exit(main())
