"""What all tests share."""

from __future__ import annotations

import pytest

from test.rotation import DAY, day


def pytest_configure() -> None:
    """Fix the day before the processes that run tests begin."""
    day()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"what changes by day was that of {DAY}={day()}")
