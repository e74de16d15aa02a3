"""Small models of libraries through torch.compile(backend="kitsune"): what is compiled, right or not, how fast on a GPU.

    python -m bench.library [NAME...] [--device cpu] [--dtype f32,bf16] [--peers quick] [--json FILE] [--resume] [--guard]
                            [--jobs N] [--prepare]

Needs the extra `breadth`. A model passes if its error against float64 is at most twice eager's own, and if as many graphs,
programs and operators left to PyTorch come out as `library_models.expected` says. Times (on a GPU) are of whole calls, of which
Dynamo's guards are a part, and of the compiled function in a CUDA graph, beside PyTorch's. Each case has a process of its own.
`--prepare` times nothing: with KITSUNE_CACHE=1 it fills the caches, and a later run with the same ones is short. `--guard` adds
columns of the model compiled with the option `guard`, and what it chose.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench import host
from bench.breadth.library.made import imported
from bench.forked import answer_of, in_turns
from bench.library_case import measure
from bench.library_models import MODELS
from bench.peers import parse
from bench.records import Record
from bench.timing import environment

SECONDS = 600
LIBRARIES = ("transformers", "torchvision", "timm", "torch_geometric.nn", "diffusers")
"""Imported once for all cases, where there are more than `FEW`."""
FEW = 3


def device_here() -> dict[str, Any]:
    """{"device": "cuda"} or {"device": "cpu"}; for a process of its own."""
    return {"device": "cuda" if torch.cuda.is_available() else "cpu"}


def environment_of(device: str, path: Path | None) -> dict[str, Any]:
    """What a record in a file says of the machine; for a process of its own."""
    return host.environment() if device != "cuda" else environment(path.parent if path else None)


def main() -> int:
    """Command line; the exit status is the number of cases that are not right, or not compiled as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", help="cuda where there is one")
    parser.add_argument("--dtype", default="f32,bf16")
    parser.add_argument("--peers", default="none", help="what is timed beside it on a GPU: see bench.peers")
    parser.add_argument("--mode", help="of torch.compile")
    parser.add_argument("--guard", action=argparse.BooleanOptionalAction, default=False, help="also with the option guard")
    parser.add_argument("--prepare", action="store_true", help="fill the caches, time nothing")
    parser.add_argument("--jobs", type=int, default=1, help="cases that prepare side by side; each is timed alone")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out cases that the file has")
    given = parser.parse_args()
    # Each in a process of its own: children of a process that asked CUDA for anything cannot use it.
    given.device = given.device or answer_of(device_here, "device", SECONDS)["device"]
    record = Record.open(given.json, given.resume)
    peers = parse(given.peers)
    chosen = [(name, dtype) for name in given.names or MODELS for dtype in given.dtype.split(",")]
    chosen = [(name, dtype) for name, dtype in chosen if "error" not in record.cases.get(f"{name}_{dtype}", {})]
    if chosen:
        about = answer_of(functools.partial(environment_of, given.device, given.json), "environment", SECONDS)
        run = {"command": "python -m bench.library", "mode": given.mode, "guard": given.guard}
        record.begin({"environment": about, **run, "cache": os.environ.get("KITSUNE_CACHE") != "0"})
    if given.device == "cpu" and len(chosen) > FEW:  # some of them ask CUDA, which children could not use then
        for library in LIBRARIES:
            with contextlib.suppress(ImportError):
                imported(library)

    works = {
        f"{name}_{dtype}": functools.partial(measure, name, given.device, dtype, peers, given.mode, given.guard, given.prepare)
        for name, dtype in chosen
    }
    in_turns(works, record, given.seconds, given.jobs, timed=not given.prepare)
    bad = [case for case, one in record.cases.items() if not (one.get("right") and one.get("as_expected"))]
    print(f"{len(record.cases) - len(bad)} of {len(record.cases)} right and compiled as expected", *bad, sep="\n  ")
    print(*summary_of(record.cases.values()), sep="\n")
    return len(bad)


def summary_of(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Shares of the work in programs, speed beside PyTorch with the guard off and on, how much the guard left to PyTorch."""
    known, said = [case for case in cases if "error" in case], list[str]()
    counted = [case["work"] for case in known if "work" in case]
    for kind in ("operations", "bytes") if counted else ():
        rest, whole = (sum(work[kind][n] for work in counted) for n in (0, 1))
        said.append(f"{kind} in programs: {1 - rest / max(whole, 1):.2%} of {len(counted)} models")
    timed = [case for case in known if "milliseconds" in case]
    for own in ("kitsune, graph", "kitsune", "kitsune, guard, graph", "kitsune, guard"):
        ratios = {case["case"]: ratio for case in timed if (ratio := _ratio(own, case["milliseconds"]))}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            least = ", ".join(f"{name} {ratios[name]:.2f}" for name in sorted(ratios, key=ratios.__getitem__)[:5])
            said.append(f"{own}: {mean:.2f} beside the best peer of {len(ratios)} models, least {least}")
    chosen = {case["case"]: case["chosen"] for case in timed if case.get("chosen")}
    if chosen:
        left = {name: sum(theirs for _, theirs, taken in each if taken) for name, each in chosen.items()}
        ours = sum(own for each in chosen.values() for own, _, taken in each if not taken)
        share = sum(left.values()) / (sum(left.values()) + ours)
        names = ", ".join(name for name, value in left.items() if value)
        said.append(f"the guard took PyTorch for {share:.1%} of the summed time of {len(chosen)} models: {names or 'never'}")
    return said


def _ratio(own: str, times: Mapping[str, float]) -> float | None:
    """The least time of a peer over ours: of peers in CUDA graphs where ours is; with the guard, of what it may pick."""
    graph = own.endswith("graph")
    peers = [name for name in times if not name.startswith("kitsune") and name.endswith("graph") is graph]
    if "guard" in own:
        peers = [name for name in peers if name.startswith("eager")]
    return min(times[name] for name in peers) / times[own] if own in times and peers else None


if __name__ == "__main__":
    sys.exit(main())
