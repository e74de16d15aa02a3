"""Each part of what changes by day has its turn."""

import pytest

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
