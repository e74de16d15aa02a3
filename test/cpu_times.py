"""Processor time of each test, its processes included: other work on the machine changes it little.

    python -m pytest -n 2 -m "not gpu" -p test.cpu_times && python -m test.cpu_times       the tests that take most, and the sum

Each process writes out/times/NUMBER.jsonl. Collecting takes each process some time more, which is not in the sum.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path("out/times")
SHOWN = 40


def seconds() -> float:
    """Processor time of this process and those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = seconds()
    result = yield
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{os.getpid()}.jsonl").open("a") as out:
        print(json.dumps([item.nodeid, round(seconds() - start, 3)]), file=out)
    return result


def main() -> None:
    """Print the table, cases of a test together."""
    total, cases = Counter(), Counter()
    for path in FOLDER.glob("*.jsonl"):
        for name, spent in map(json.loads, path.read_text().splitlines()):
            test = re.sub(r"\[.*", "", name)
            total[test] += spent
            cases[test] += 1
    print(f"{sum(cases.values())} cases, {sum(total.values()):.0f} s\n")
    print("| seconds | cases | test |\n|---|---|---|")
    for test, spent in total.most_common(SHOWN):
        print(f"| {spent:.1f} | {cases[test]} | {test} |")


if __name__ == "__main__":
    main()
