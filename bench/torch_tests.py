"""PyTorch's own tests of torch.compile, with this backend in place of the one that they test.

    python -m bench.torch_tests SRC [PATTERN...] [--json FILE] [--resume] [--sample N] [--seconds 300]

SRC is PyTorch's source tree (its `test` folder is enough), of about the version that is installed. Patterns are of names such
as `test_torchinductor.CpuTests.test_add*`. Each test has a process of its own; what ends it, or takes too long, is a crash. A
failed assertion is a wrong result, but where results lie at most twice as far from those in float64 as eager's do, or are to be
eager's bit by bit and are within the tolerance of other tests; any other error, and one that is expected and not raised, is a
failure; what fails with PyTorch's backend too is called so and not counted. `torch_tests_left_out.txt` lists what is not asked:
tests of code, metrics or objects that Inductor makes.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bench import host
from bench.forked import answer_of
from bench.records import Record
from bench.torch_tests_case import imported_first, names_of, outcome_of

__all__ = ["left_out", "shares"]

FILES = {
    "test/dynamo/test_backends.py": ("*",),
    "test/dynamo/test_aot_autograd.py": ("*",),
    "test/functorch/test_aotdispatch.py": ("TestAOTAutograd", "TestAOTModuleSimplified", "TestAOTAutogradWithDynamo"),
    "test/inductor/test_torchinductor.py": ("CpuTests", "SweepInputsCpuTest", "TestFull"),
}
"""PyTorch's files, and which classes of them are run."""

LEFT_OUT = Path(__file__).with_name("torch_tests_left_out.txt")
COUNTED = ("passed", "wrong", "crashed", "failed")


def left_out(text: str) -> dict[str, str]:
    """Patterns of names, and why they are left out: lines of `pattern: reason`; `#` begins a comment."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [line.partition(": ")[::2] for line in lines]
    if bad := [line for line, (_, reason) in zip(lines, pairs, strict=True) if not reason.strip()]:
        raise ValueError(f"no reason: {bad}")
    return {pattern.strip(): reason.strip() for pattern, reason in pairs}


def shares(cases: Iterable[dict[str, Any]]) -> str:
    """One line: how many tests came to what, and the share of those that passed among those that ran."""
    counts = collections.Counter(one["outcome"] for one in cases)
    ran = sum(counts[kind] for kind in COUNTED)
    share = f"{100 * counts['passed'] / ran:.1f} % of {ran} passed" if ran else "nothing ran"
    return f"{share}: {', '.join(f'{n} {kind}' for kind, n in counts.most_common())}"


def _chosen(source: Path, patterns: list[str]) -> dict[str, Path]:
    """Names of the tests that a pattern fits, and their files."""
    found = {}
    for path, classes in FILES.items():
        if not patterns or any(fnmatch.fnmatch(Path(path).stem, pattern.split(".")[0]) for pattern in patterns):
            answer = answer_of(lambda path=path, classes=classes: {"names": names_of(source / path, classes)}, path, 300)
            if "problem" in answer:
                raise SystemExit(f"{source / path}: {answer['problem']}")
            found |= dict.fromkeys(answer["names"], source / path)
    return {name: path for name, path in found.items() if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)}


def _judged(path: Path, name: str, seconds: float) -> dict[str, Any]:
    """What becomes of one test."""
    answer = answer_of(lambda: outcome_of(path, name), name, seconds)
    if "problem" in answer:
        answer = {"outcome": "crashed", "reason": answer["problem"]}
    if answer["outcome"] in COUNTED and answer["outcome"] != "passed":
        other = answer_of(lambda: outcome_of(path, name, own=False), name, seconds)
        if other.get("outcome") != "passed":
            return {**answer, "outcome": "fails with PyTorch's backend", "as": answer["outcome"], "there": str(other)}
    return answer


def _without_folders(answer: dict[str, Any], source: Path) -> dict[str, Any]:
    """What is said of a test, without where things lie on this machine."""
    text = json.dumps(answer)
    for folder in (
        source,
        source.resolve(),
        Path(__file__).parents[1],
        Path(torch.__file__).parents[1],
        Path(os.__file__).parent,
    ):
        text = text.replace(f"{folder}/", "")
    return json.loads(text)


def main() -> int:
    """Command line; the exit status is the number of tests that are wrong or crash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out tests that the file has")
    parser.add_argument("--sample", type=int, help="so many of the tests, drawn at random")
    parser.add_argument("--tests", default="of the version that is installed", help="which they are, for the record")
    parser.add_argument("--seconds", type=float, default=300, help="for one test")
    given = parser.parse_args()
    record = Record.open(given.json, given.resume)
    environment = answer_of(host.environment, "environment", 60)
    record.begin({"environment": environment, "command": "python -m bench.torch_tests", "tests": given.tests})
    without = left_out(LEFT_OUT.read_text())
    chosen = {name: path for name, path in _chosen(given.source, given.patterns).items() if name not in record.cases}
    names = sorted(chosen) if given.sample is None else random.Random(0).sample(sorted(chosen), min(given.sample, len(chosen)))
    imported_first(dict.fromkeys(chosen.values()))
    for name in names:
        reasons = [reason for pattern, reason in without.items() if fnmatch.fnmatch(name, pattern)]
        if reasons:
            answer = {"outcome": "left out", "reason": reasons[0]}
        else:
            answer = _judged(chosen[name], name, given.seconds)
        answer = _without_folders(answer, given.source)
        record.add({**answer, "case": name})
        print(json.dumps({"case": name, **answer}), flush=True)
    print(shares(record.cases.values()))
    return sum(one["outcome"] in ("wrong", "crashed") for one in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
