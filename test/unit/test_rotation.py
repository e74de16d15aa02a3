"""Each part of what a run does only some of has its turn, and the same sources the same one."""

from collections import Counter
from types import SimpleNamespace

import pytest

from test.conftest import pytest_collection_modifyitems
from test.rotation import ALL, TURN, in_turn, turn


@pytest.mark.parametrize("items, count", [(10, 3), (10, 5), (7, 7), (3, 5), (0, 2), (1, 1)])
def test_all_items_have_their_turn(items: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for number in range(-(-items // count)):
        monkeypatch.setenv(TURN, str(739_000 + number))
        chosen = in_turn(range(items), count)
        assert len(chosen) == min(count, items) and chosen == sorted(chosen)
        found |= set(chosen)
    assert found == set(range(items))


def test_the_same_sources_take_the_same_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURN)
    monkeypatch.setattr("test.rotation.sources", lambda: "0000000c" + "f" * 56)
    assert turn() == 12 and in_turn(range(10), 3) == [6, 7, 8]
    monkeypatch.setattr("test.rotation.sources", lambda: "0" * 64)
    assert turn() == 12
    monkeypatch.setenv(TURN, ALL)
    assert in_turn(range(10), 3) == list(range(10)) and turn() == 0


class Case:
    """A collected test of which two cases are run in a turn, or any other one."""

    def __init__(self, nodeid: str):
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> pytest.MarkDecorator | None:
        return pytest.mark.rotated(2) if "cases" in self.nodeid else None


def test_marked_cases_have_their_turn_and_named_ones_are_always_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"a.py::test_cases[{n}]" for n in range(5)), "a.py::test_one"]
    seen: dict[str, int] = Counter()
    for number in range(5):
        monkeypatch.setenv(TURN, str(number))
        items, told = [Case(name) for name in names], []
        hook = SimpleNamespace(pytest_deselected=lambda items, told=told: told.extend(items))
        pytest_collection_modifyitems(SimpleNamespace(args=["a.py::test_cases[3]"], hook=hook), items)
        seen.update(item.nodeid for item in items)
        assert {item.nodeid for item in [*items, *told]} == set(names) and len(items) == 4
    assert seen["a.py::test_one"] == seen["a.py::test_cases[3]"] == 5 and min(seen.values()) >= 2
