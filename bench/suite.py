"""The benchmark: build programs without a GPU, run them beside their peers on one.

    python -m bench.suite list [PATTERN...]
    python -m bench.suite build DIR [PATTERN...] [--jobs N]      compile to DIR/NAME.kit; needs no GPU
    python -m bench.suite run DIR [PATTERN...] [--peers quick] [--json FILE] [--seconds 60] [--resume]
                                                                 check and time them; needs a Hopper GPU and only the runtime
    python -m bench.suite warm DIR [PATTERN...] [--peers all] [--jobs 3]
                                                                 compile the peers ahead, for a `run DIR` that comes after it

A pattern is the name of a case or of a group, with `*` and `?`; without one, `build` takes the headline cases and `run` all
that DIR holds. Groups: headline, zoo, small, roofline, mlp, ffn, product, map, rows, gemv, attention, conv,
conv_last, conv_pair, conv_pair_last, depthwise, recurrent, breadth, library, operators, operators_more, random. A case of
`library` whose library is not installed (extra `breadth`) is told to be missing, and left out.

`build --jobs N` compiles in N processes, each case within `--limit` seconds, in which a crash costs only its case.

Peers: `none`, `graph` (eager and compile, each in a CUDA graph), `quick` (eager and compile, each with and without a graph),
`all` (and max-autotune in a graph: minutes of compilation for a large model; all sets have it for the twenty models of
libraries that matter most), or names between semicolons: "eager; compile, graph". The sets also have eager convolutions in
channels-last memory ("channels last, graph").

`run` works in a second process, case by case. A case that crashes or takes longer than `--limit` seconds costs only itself:
the process is replaced. FILE is written after every case; with `--seconds` no case is started later than that, and `--resume`
leaves out the cases that FILE has times of: so a sweep can be done in parts. max-autotune of a large model takes longer than a
case's limit: `warm` compiles peers side by side, into inductor's cache in DIR (or TORCHINDUCTOR_CACHE_DIR), where `run` finds
them. `python -m bench.report FILE...` merges parts into
bench/results/ (one file for a device and a date) and writes bench/README.md and the charts.

All times are milliseconds by CUDA events, 30 calls of each peer, interleaved in rounds, in one process.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.case import BenchCase
from bench.cases import select

LIMIT = 120


def build(folder: Path, cases: list[BenchCase], jobs: int = 1, limit: float = LIMIT) -> int:
    """Compile cases to packages without weights: `run` makes the same model from its seed. Returns how many failed.

    Args:
        jobs: processes, which have `limit` seconds for each case; 1: this one, which takes the time it takes.
    """
    from bench.timing import note_commit
    from bench.worker import side_by_side

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    command = [sys.executable, "-u", "-m", "bench.suite", "build-work", str(folder)]
    if jobs > 1:
        answers = side_by_side(command, [c.name for c in cases], jobs, limit, lambda a: print(_built_line(a), flush=True))
    else:
        answers = []
        for case in cases:
            answers.append({"case": case.name, **_built(folder, case)})
            print(_built_line(answers[-1]), flush=True)
    return sum(not answer["ok"] for answer in answers)


def _built_line(answer: dict[str, Any]) -> str:
    return f"{answer['case']}: {answer['told'] if answer['ok'] else answer['problem']}"


def build_work(folder: Path) -> None:
    """One of the processes of `build`: reads case names, one a line, and answers each with a line of JSON."""
    cases = {c.name: c for c in select(["*"])}
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            answer = _built(folder, cases[line.strip()])
        except Exception as error:  # an error of the compiler's own costs only its case
            answer = {"ok": False, "problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _built(folder: Path, case: BenchCase) -> dict[str, Any]:
    """Compile a case; what is to be told of it."""
    import kitsune_mlir
    import kitsune_mlir.errors
    from bench.measure import described
    from kitsune_mlir.simulation.simulate import simulate

    if case.missing:
        return {"ok": True, "told": f"missing: {case.missing} is not installed (extra `breadth`)"}
    model, args = case.make("cpu", False)
    path = folder / f"{case.name}.kit"
    try:
        exact = {"convolution_precision": "highest"} if case.dtype == "f32" else {}
        program = kitsune_mlir.compile(model, args, target="sm_90a", options=exact)
        program.save(path, weights=False, ir=False)
        predicted = 1e3 * simulate(program).seconds if program.summary.get("stages") else 0.0
        path.with_suffix(".predicted.json").write_text(json.dumps({"milliseconds": predicted}))
    except kitsune_mlir.errors.KitsuneError as error:
        return {"ok": False, "problem": str(error)}
    made = described(program)
    told = (
        f"{sum(program.seconds.values()):.1f} s, {' '.join(made['engines'])}, {made['registers']} registers, "
        f"{made['spilled_bytes']} bytes spilled, {made['slow_stages']} slow stages, "
        f"{predicted:.4f} ms predicted, {path.stat().st_size >> 10} KiB"
    )
    return {"ok": True, "told": told}


def found(folder: Path, patterns: list[str]) -> list[BenchCase]:
    """Cases that the folder holds a package of."""
    held = [c for c in select(["*"]) if (folder / f"{c.name}.kit").exists()]
    chosen = {c.name for c in select(patterns)} if patterns else {c.name for c in held}
    return [c for c in held if c.name in chosen]


def work(folder: Path, patterns: list[str], peers: tuple[str, ...]) -> None:
    """The second process: reads case names, one a line, and answers each with a line of JSON."""
    import torch

    from bench.measure import measure
    from bench.peers import peers_of
    from bench.timing import environment, rates

    speed = rates()
    print(json.dumps({"environment": environment(folder), "rates": speed}), flush=True)
    cases = {c.name: c for c in found(folder, patterns)}
    for line in sys.stdin:
        name = line.strip()
        try:
            entry = measure(folder / f"{name}.kit", cases[name], peers_of(cases[name], peers), speed)
        except Exception as error:
            entry = {"case": name, "group": cases[name].group, "ok": False, "problem": f"{type(error).__name__}: {error}"}
        print(json.dumps(entry), flush=True)
        torch.cuda.empty_cache()


def told(entry: dict[str, Any]) -> str:
    """An entry as a line for people."""
    if "milliseconds" not in entry:
        return f"FAIL {entry['case']:28s} {entry.get('problem', '')}"
    times = ", ".join(f"{name} {t['median']:.4f}" for name, t in entry["milliseconds"].items())
    faster = f", {entry['speedup']:.2f}x {entry['best_peer']}" if entry["speedup"] else ""
    return (
        f"{'ok  ' if entry['ok'] else 'WRONG'} {entry['case']:28s} error {entry['error']:.1e} launches {entry['launches']}"
        f"{faster}, {100 * entry['fraction']:.0f} % of the floor {entry['floor']:.4f}, "
        f"{entry.get('slow_stages', 0)} slow stages | {times}"
        + "".join(f" | no {name}: {why}" for name, why in entry["missing"].items())
    )


def run(folder: Path, given: argparse.Namespace) -> int:
    """Measure cases one after the other; returns how many are wrong or failed."""
    from bench.records import Record
    from bench.warm import use_cache
    from bench.worker import Worker

    use_cache(folder)

    record = Record.open(given.json, resume=given.resume)
    cases = [c for c in found(folder, given.patterns) if "milliseconds" not in record.cases.get(c.name, {})]
    for case in [c for c in cases if c.missing]:
        print(f"left out {case.name}: missing: {case.missing} is not installed", flush=True)
        cases.remove(case)
    if not cases:
        print(f"nothing to do: {folder} has no package of these cases that {given.json or 'the record'} does not have yet")
        return 0 if given.resume else 1
    command = f"python -m bench.suite run DIR {' '.join(given.patterns)}".rstrip() + f" --peers '{given.peers}'"
    start = time.monotonic()
    bad = 0
    own = [sys.executable, "-u", "-m", "bench.suite", "work", str(folder), *given.patterns, "--peers", given.peers]
    worker = Worker(own)
    try:
        for number, case in enumerate(cases):
            if time.monotonic() - start > given.seconds:
                print(f"{len(cases) - number} cases left after {given.seconds} s", flush=True)
                break
            entry = worker.ask(case.name, given.limit)
            if worker.greeting is not None:
                record.begin({**worker.greeting, "command": command})
                worker.greeting = None
            entry.setdefault("case", case.name)
            entry.setdefault("group", case.group)
            bad += not entry["ok"]
            print(told(entry), flush=True)
            record.add(entry)
    finally:
        worker.close()
    print(f"{bad} failed")
    return bad


def main() -> int:
    """Command line."""
    from bench.peers import parse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["list", "build", "run", "warm", "work", "warm-work", "build-work"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--peers", default="quick")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case later than this")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one case")
    parser.add_argument("--jobs", type=int, help="processes that build (1) and warm (3) have")
    parser.add_argument("--resume", action="store_true", help="leave out the cases that the file has")
    given = parser.parse_args()
    if given.mode == "list":
        patterns = [str(given.folder), *given.patterns] if given.folder else ["*"]
        print("\n".join(f"{c.name:32s} {c.group}" for c in select(patterns)))
        return 0
    if given.folder is None:
        parser.error("a folder is needed")
    peers = parse(given.peers)
    if given.mode == "build":
        return min(1, build(given.folder, select(given.patterns), given.jobs or 1, given.limit))
    if given.mode == "build-work":
        build_work(given.folder)
        return 0
    if given.mode in ("warm", "warm-work"):
        from bench.warm import warm, warm_work

        if given.mode == "warm-work":
            warm_work(given.folder, peers)
            return 0
        cases = [c for c in found(given.folder, given.patterns) or select(given.patterns) if not c.missing]
        return min(1, warm(given.folder, cases, given.peers, given.jobs or 3, given.limit, given.seconds))
    if given.mode == "work":
        work(given.folder, given.patterns, peers)
        return 0
    return min(1, run(given.folder, given))


if __name__ == "__main__":
    sys.exit(main())
