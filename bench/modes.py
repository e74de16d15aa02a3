"""Every mode of a pipeline beside the one that the compiler chooses.

    python -m bench.modes build DIR [CASE...]                compile each case in each mode; needs no GPU
    python -m bench.modes run DIR [CASE...] [--json FILE]    check and time them; needs a Hopper GPU and only the runtime

CASE is a name of `bench.cases`; without one, `CASES`. A mode that a model cannot have, or that changes nothing for it, is
recorded with the reason. `run` times one replay of a CUDA graph (submitted while the device is busy, so that its time alone is
seen), and replays one after the other, all modes of a case in turns. Each case runs in a process of its own, forked before the
GPU is touched, and is given up after `--seconds`. Two modes whose programs are the same are measured as one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.case import LIMITS, BenchCase
from bench.cases import all_cases
from bench.forked import answer_of
from bench.tables import MODES
from bench.timing import environment, graphed, note_commit, sample_calls

CASES = (
    "nerf_256k", "dlrm_2048", "mgn_20k_120k", "gcast_512", "gpt3_mlp_512", "llama8b_tok_b1", "llama8b_tok_b16",
    "llama8b_prefill_128", "stitch_4096x1024", "zoo_bert_layer", "zoo_resnet_block", "zoo_moe", "attention_block_1024",
    "mlp_512x4_1000", "ffn_1024_256", "llama8b_stack8_tok_b1",
)  # fmt: skip
SECONDS = 12
QUEUED = 20
"""Replays in a row whose time is divided by their number."""


def build(folder: Path, names: list[str], modes: list[str]) -> int:
    """Compile to CASE.MODE.kit, and write CASE.json: what each mode's program is, or why there is none."""
    import kitsune_mlir
    import kitsune_mlir.errors

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    for name in names or CASES:
        case = all_cases()[name]
        model, args = case.make("cpu", False)
        found: dict[str, dict[str, Any]] = {}
        same: dict[str, str] = {}
        for mode in ("auto", *modes):
            if mode == found.get("auto", {}).get("mode"):
                found[mode] = {**found["auto"], "same_as": "auto"}
                continue
            remarks: list[str] = []
            options = {"schedule": mode, "on_remark": lambda found, remarks=remarks: remarks.append(found.message)}
            try:
                program = kitsune_mlir.compile(model, args, target="sm_90a", options=options)
            except kitsune_mlir.errors.KitsuneError as error:
                found[mode] = {"problem": str(error).splitlines()[0]}
                print(f"{name} {mode}: {found[mode]['problem']}", flush=True)
                continue
            key = hashlib.sha256(program.ir("tiles").encode()).hexdigest()
            said = [r.partition(" op ")[2] for r in remarks if " op mode " in r or "cannot be" in r or "launches:" in r]
            if (why := _refused(mode, said)) is not None:
                found[mode] = {"problem": why}
                print(f"{name} {mode}: {why}", flush=True)
                continue
            found[mode] = {"mode": program.summary["mode"], "launches": program.summary["launches"], "remarks": said}
            if key in same:
                found[mode]["same_as"] = same[key]
            else:
                same[key] = mode
                program.save(folder / f"{name}.{mode}.kit", weights=False, ir=False)
            print(f"{name} {mode}: {sum(program.seconds.values()):.1f} s {found[mode]}", flush=True)
        (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _refused(mode: str, said: list[str]) -> str | None:
    """Why a model cannot have a mode that changes nothing for it, by what the passes said; else None."""
    return next((one for one in said if one.startswith(f"cannot be {mode}")), None)


def measure(folder: Path, case: BenchCase) -> dict[str, Any]:
    """Microseconds of one case in each mode, and errors against float64."""
    import torch

    import kitsune_mlir
    from bench.measure import exact, prepared, relative_errors

    found = json.loads((folder / f"{case.name}.json").read_text())
    built = [mode for mode in found if (folder / f"{case.name}.{mode}.kit").exists()]
    (model, args), first = prepared(folder / f"{case.name}.{built[0]}.kit", case)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    programs = {
        mode: first if mode == built[0] else kitsune_mlir.load(folder / f"{case.name}.{mode}.kit", weights=state)
        for mode in built
    }
    reference = exact(model, args)
    for mode, program in programs.items():
        with torch.no_grad():
            found[mode]["error"] = max(relative_errors(program(*args), reference))
    del reference
    torch.cuda.empty_cache()
    graphs = {mode: graphed(lambda p=program: p(*args)) for mode, program in programs.items()}
    one = sample_calls(graphs, rounds=6, each=6, queued=True)
    queued = sample_calls(graphs, rounds=3, each=4, batch=QUEUED)
    for mode in built:
        found[mode]["one"] = round(1e3 * statistics.median(one[mode]), 2)
        found[mode]["queued"] = round(1e3 * statistics.median(queued[mode]), 2)
    return {"case": case.name, "limit": LIMITS[case.dtype], "modes": found, "environment": environment(folder)}


def run(folder: Path, names: list[str], out: Path | None, seconds: float = SECONDS) -> int:
    """Measure the cases that the folder holds; returns how many failed or are wrong."""
    results, failed, where = [], 0, {}
    for name in names or [n for n in all_cases() if (folder / f"{n}.json").exists()]:
        result = answer_of(lambda name=name: measure(folder, all_cases()[name]), name, seconds)
        wrong = [m for m, found in result.get("modes", {}).items() if not found.get("error", 0.0) <= result["limit"]]
        failed += "problem" in result or bool(wrong)
        where = result.pop("environment", where)  # asked for in the case's process: this one has not touched the GPU
        results.append(result)
        print(told(result), flush=True)
        if out is not None:  # after every case: whoever ends this early keeps what there is
            record = {"environment": where, "command": "python -m bench.modes run DIR", "results": results}
            out.write_text(json.dumps(record, indent=1) + "\n")
    return failed


def told(result: dict[str, Any]) -> str:
    """A result as a line for people."""
    if "problem" in result:
        return f"{result['case']}: {result['problem']}"
    cells = []
    for mode, found in result["modes"].items():
        if "one" in found:
            cells.append(f"{mode} ({found['mode']}) {found['one']:.1f}/{found['queued']:.1f} us error {found['error']:.1e}")
        else:
            cells.append(f"{mode}: {found.get('problem') or 'same as ' + found.get('same_as', 'nothing that was built')}")
    return f"{result['case']}: {', '.join(cells)}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--modes", default=",".join(MODES), help="beside auto, with commas between them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="most time of a case")
    given = parser.parse_args()
    if given.what == "build":
        return build(given.folder, given.names, given.modes.split(","))
    return run(given.folder, given.names, given.json, given.seconds)


if __name__ == "__main__":
    sys.exit(main())
