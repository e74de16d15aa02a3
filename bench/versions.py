"""Two versions of the compiler beside each other: the packages that both built, in one process, interleaved.

    python -m bench.suite build DIR [PATTERN...]              at each of the two commits, into folders of their own
    python -m bench.versions OLD NEW [PATTERN...] [--json FILE] [--seconds 300]      needs a Hopper GPU and only the runtime

For each case that both folders hold: whether the code is the same to the byte, whether the results are, and how long a replay
of each takes. Both have the same weights and inputs. The exit status is 1 where a case of the new version is slower than
`--least` (0.98) of the old one's speed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.case import BenchCase
from bench.forked import answer_of
from bench.suite import found
from bench.tables import geometric_mean
from bench.timing import environment, sample_calls, summary

LIMIT = 60
"""Seconds for a case."""
SHORT, BATCH = 0.2, 20
"""Programs of fewer milliseconds are timed so many calls at a time."""


def compared(old: Path, new: Path, case: BenchCase) -> dict[str, Any]:
    """The entry of a case: sameness of code and results, times of both, and their ratio."""
    import torch
    from torch.utils import _pytree as pytree

    from bench.measure import prepared
    from bench.timing import graphed

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().flatten().view(torch.uint8)

    (_, args), before = prepared(old / f"{case.name}.kit", case)
    (_, _), after = prepared(new / f"{case.name}.kit", case)
    calls = {"old": graphed(lambda: before(*args)), "new": graphed(lambda: after(*args))}
    results = [[leaf.clone() for leaf in pytree.tree_leaves(calls[name]())] for name in calls]
    torch.cuda.synchronize()
    code = [{name: data for name, data in program.artifacts.items() if name.endswith(".cubin")} for program in (before, after)]
    first = sample_calls(calls, rounds=1, queued=True)
    batch = BATCH if min(min(values) for values in first.values()) < SHORT else 1
    times = {name: summary(values) for name, values in sample_calls(calls, rounds=8, batch=batch, queued=True).items()}
    return {
        "case": case.name,
        "group": case.group,
        "same_code": code[0] == code[1],
        "same_results": all(torch.equal(bits(a), bits(b)) for a, b in zip(*results, strict=True)),
        "milliseconds": times,
        "ratio": times["old"]["median"] / times["new"]["median"],
    }


def main() -> int:
    """The command line; 1 where a case became slower, or could not be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="cases or groups; default: all that both folders hold")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--seconds", type=float, default=300, help="no case is started later than that")
    parser.add_argument("--least", type=float, default=0.98, help="least ratio of old time to new time")
    given = parser.parse_intermixed_args()
    held = {case.name for case in found(given.new, given.patterns)}
    cases = [case for case in found(given.old, given.patterns) if case.name in held]
    if not cases:
        parser.error("no case is in both folders")
    entries, start = [], time.monotonic()
    for case in cases:
        if time.monotonic() - start > given.seconds:
            break
        entry = answer_of(lambda case=case: compared(given.old, given.new, case), case.name, LIMIT)
        entries.append(entry)
        said = entry.get("problem") or f"{entry['ratio']:.3f}, code {'same' if entry['same_code'] else 'differs'}"
        print(f"{case.name:28s} {said}{'' if entry.get('same_results', True) else ', RESULTS DIFFER'}", flush=True)
    timed = [entry for entry in entries if "ratio" in entry]
    slow = [entry["case"] for entry in timed if entry["ratio"] < given.least]
    same = sum(entry["same_code"] for entry in timed)
    print(f"{len(timed)} of {len(cases)} cases compared, {same} of the same code; slower than {given.least}: {slow or 'none'}")
    if timed:
        print(f"geometric mean of old time / new time: {geometric_mean([entry['ratio'] for entry in timed]):.4f}")
    if given.json is not None:
        run = {"environments": {"old": environment(given.old), "new": environment(given.new)}, "cases": entries}
        given.json.write_text(json.dumps(run, indent=1) + "\n")
    return int(bool(slow) or len(timed) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
