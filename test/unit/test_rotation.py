"""Each part of what changes by day has its turn."""

from collections import Counter
from types import SimpleNamespace

import pytest

from test.conftest import pytest_collection_modifyitems
from test.rotation import DAY, todays


@pytest.mark.parametrize("items, count", [(10, 3), (10, 5), (7, 7), (3, 5), (0, 2), (1, 1)])
def test_all_items_have_their_turn(items: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for number in range(-(-items // count)):
        monkeypatch.setenv(DAY, str(739_000 + number))
        chosen = todays(range(items), count)
        assert len(chosen) == min(count, items) and chosen == sorted(chosen)
        found |= set(chosen)
    assert found == set(range(items))


class Case:
    """A collected test of which two cases a day are run, or any other one."""

    def __init__(self, nodeid: str):
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> pytest.MarkDecorator | None:
        return pytest.mark.rotated(2) if "cases" in self.nodeid else None


def test_marked_cases_have_their_turn_and_named_ones_are_always_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"a.py::test_cases[{n}]" for n in range(5)), "a.py::test_one"]
    seen: dict[str, int] = Counter()
    for number in range(5):
        monkeypatch.setenv(DAY, str(number))
        items, told = [Case(name) for name in names], []
        hook = SimpleNamespace(pytest_deselected=lambda items, told=told: told.extend(items))
        pytest_collection_modifyitems(SimpleNamespace(args=["a.py::test_cases[3]"], hook=hook), items)
        seen.update(item.nodeid for item in items)
        assert {item.nodeid for item in [*items, *told]} == set(names) and len(items) == 4
    assert seen["a.py::test_one"] == seen["a.py::test_cases[3]"] == 5 and min(seen.values()) >= 2
