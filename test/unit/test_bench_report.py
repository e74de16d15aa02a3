"""bench/README.md says what the recorded runs say."""

from pathlib import Path

from bench.report import report


def test_report_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "bench" / "README.md"
    assert page.read_text() == report(), "run: python -m bench.report"
