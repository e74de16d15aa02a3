"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections import defaultdict

import pytest

from test.rotation import TURN, in_turn, turn

YOUNG = 20_000
"""New objects after which Python looks for cycles among them; 700 if nothing is said."""


def pytest_configure(config: pytest.Config) -> None:
    """Fix the part before the processes that run tests begin."""
    config.addinivalue_line("markers", "rotated(count): so many of the test's cases in a run (test/rotation.py)")
    turn()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other turns do, but for tests that the command names."""
    named = [argument.partition("::")[2] for argument in config.args]
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("rotated") and not any(name and item.nodeid.endswith(name) for name in named):
            cases[item.nodeid.partition("[")[0]].append(item)
    others = {
        item
        for group in cases.values()
        for item in set(group).difference(in_turn(group, group[0].get_closest_marker("rotated").args[0]))
    }
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """What PyTorch and the tests are made of stays: the collector of cycles need not look at it again after each test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 10)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"what is done in turn was that of {TURN}={os.environ[TURN]}")
