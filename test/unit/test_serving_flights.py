"""Launches that are begun while others are under way: who is told what, in which order."""

from __future__ import annotations

import threading
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import DeadlineError, KitsuneError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving import bell
from kitsune_mlir.serving.engine import Engine
from kitsune_mlir.serving.family import Family
from test.unit.test_serving_groups import Told, held

CALLS = 8
"""Of a launch."""


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    first = kitsune_mlir.compile(nn.Linear(7, 3).eval(), (torch.randn(1, 7),), target="host")
    return {"a": first, "b": first.with_weights({})}


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What happens to launches, each of which is under way until it is waited for, as on a GPU: ("begun" or "over", number)."""
    seen: list[Any] = []

    def marked(self: Family) -> Any:
        number = sum(kind == "begun" for kind, *_ in seen)
        seen.append(("begun", number))
        return types.SimpleNamespace(wait=lambda: seen.append(("over", number)), passed=False)

    monkeypatch.setattr(Family, "_marked", marked)
    yield seen


def served(programs: dict[str, Program], rounds: int, told: Told, order: list[Any]) -> Engine:
    """An engine whose source hands in a launch's calls so often; `order` gets ("asked", idle) and ("told", places)."""
    x, left = torch.randn(1, 7), [rounds]

    def done(first: int, places: Any, outputs: Any) -> None:
        order.append(("told", first))
        told([CALLS * first + place for place in places], outputs)

    def source(engine: Engine, idle: bool) -> bool:
        order.append(("asked", idle))
        if left[0]:
            left[0] -= 1
            first = rounds - left[0] - 1
            calls = [("ab"[n % 2], (x,)) for n in range(CALLS)]
            engine.submit_many(calls, lambda places, outputs: done(first, places, outputs), deadline=30.0)
            return True
        return not idle  # what is under way is answered before nothing comes any more

    return kitsune_mlir.serve(programs, limit=CALLS, measure=False, source=source)


def test_a_launch_is_begun_before_the_one_before_is_over(programs: dict[str, Program], order: list[Any]) -> None:
    told = Told(3 * CALLS)
    with served(programs, 3, told, order):
        assert all(isinstance(output, Tensor) and output.shape == (1, 3) for output in told.wait())
    kinds = [one for one in order if one[0] != "asked"]
    of = [(kind, number) for number in range(3) for kind in ("begun", "over", "told")]
    wanted = [of[0], of[3], of[1], of[2], of[6], of[4], of[5], of[7], of[8]]
    assert kinds == wanted
    # Where something is under way the source is not to wait for what comes.
    assert [idle for kind, idle in order if kind == "asked"][:4] == [True, False, False, False]


def test_statistics_and_costs_of_launches_that_overlap(programs: dict[str, Program], order: list[Any]) -> None:
    told = Told(20 * CALLS)
    with served(programs, 20, told, order) as engine:
        told.wait()
        family = engine._families["a"]
    counts = engine.stats()["models"]
    assert sum(one["answered"] for one in counts.values()) == 20 * CALLS and not engine.stats()["waiting"]
    assert 0 < family.expected(CALLS) < 1 and not family.late
    family.alone = False  # there are others, which a late one would hold up
    for judged in (False, True):
        for _ in range(5):
            family.observe(CALLS, 3 * family.cost(CALLS), judged=judged)
        assert family.late == judged  # of a launch that was over before somebody looked nobody knows what it took


def test_an_error_of_the_device_is_told_to_the_calls_of_the_launch(
    programs: dict[str, Program], order: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = Family._marked

    def broken(self: Family) -> Any:
        mark = marked(self)

        def fails() -> None:
            raise KitsuneError("the device fell off")

        if order[-1] == ("begun", 1):
            mark.wait = fails
        return mark

    monkeypatch.setattr(Family, "_marked", broken)
    told = Told(4 * CALLS)
    with served(programs, 4, told, order) as engine:
        outputs = told.wait()
    for number, output in enumerate(outputs):
        assert isinstance(output, KitsuneError if number // CALLS == 1 else Tensor)
    assert sum(one["failed"] for one in engine.stats()["models"].values()) == CALLS


def test_an_error_of_the_engine_is_told_to_calls_under_way(
    programs: dict[str, Program], order: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    told, late = Told(2 * CALLS), Told(2 * CALLS)
    with held(programs, limit=CALLS) as engine:
        x = torch.randn(1, 7)
        gate = engine.hold(x)
        engine.submit_many([("a", (x,))] * 2 * CALLS, told, deadline=30.0)
        engine.submit_many([("b", (x,))] * 2 * CALLS, late, deadline=40.0)

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(engine._counts, "bulk", broken)
        gate.set()
        for output in (*told.wait(), *late.wait()):
            assert isinstance(output, ZeroDivisionError)


def test_who_hands_in_more_than_a_launch_leaves_the_interpreter(
    programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not the engine's own thread, and not where little waits."""
    naps: list[int] = []

    monkeypatch.setattr(bell, "time", types.SimpleNamespace(sleep=lambda _: naps.append(threading.get_ident())))
    with held(programs, limit=CALLS, capacity=1000) as engine:
        x, first, second, third = torch.randn(1, 7), Told(CALLS), Told(1), Told(40)
        gate = engine.hold(x)
        engine.submit_many([("a", (x,))] * CALLS, first, deadline=30.0)
        assert not naps

        def more(places: Any, outputs: Any) -> None:
            engine.submit_many([("a", (x,))] * 40, third, deadline=30.0)
            second(places, outputs)

        engine.submit_many([("a", (x,))], more, deadline=30.0)
        assert naps == [threading.get_ident()]
        gate.set()
        for told in (first, second, third):
            told.wait()
    assert naps == [threading.get_ident()]


def test_calls_that_come_too_late_behind_a_launch_are_told_so_at_once(programs: dict[str, Program], order: list[Any]) -> None:
    """They do not become requests, which cost more; where nothing is under way they may be in time in a smaller launch."""
    told, rounds = Told(2 * CALLS), [0]

    def source(engine: Engine, idle: bool) -> bool:
        family, first, x = engine._families["a"], rounds[0] * CALLS, torch.randn(1, 7)
        if rounds[0] == 2:
            return False
        family.cost.counts, family.cost.seconds = [1, CALLS], [2.0, 4.0]  # seconds, as far as it knows
        family.set_pace()
        ends = [5.0] * CALLS if not first else [6.0] * 3 + [60.0] * (CALLS - 3)
        rounds[0] += 1
        engine.submit_many([("a", (x,))] * CALLS, lambda p, o: told([first + n for n in p], o), deadline=ends)
        assert not engine._arrived and not engine._bulk
        return True

    with kitsune_mlir.serve(programs, limit=CALLS, measure=False, source=source) as engine:
        outputs = told.wait()
    late = [n for n, one in enumerate(outputs) if isinstance(one, DeadlineError)]
    assert late == [CALLS, CALLS + 1, CALLS + 2] and all(
        isinstance(one, Tensor) for n, one in enumerate(outputs) if n not in late
    )
    counts = engine.stats()["models"]["a"]
    assert (counts["submitted"], counts["answered"], counts["expired"]) == (2 * CALLS, 2 * CALLS - 3, 3)


def test_calls_whose_deadlines_are_not_quite_in_order_stay_together(programs: dict[str, Program]) -> None:
    """Within a launch's worth; who is more urgent than more of them comes first."""
    x, order = torch.randn(1, 7), list[str]()
    with held(programs, limit=CALLS, capacity=1000) as engine:
        over = [threading.Event() for _ in range(3)]

        def hand_in(number: int, count: int, deadline: float) -> None:
            def done(*_: Any) -> None:
                order.append(str(number))
                over[number].set()

            engine.submit_many([("a", (x,))] * count, done, deadline=deadline)

        gate = engine.hold(x)
        hand_in(0, CALLS, 50.0)
        hand_in(1, 3, 49.0)
        assert engine._bulk._ordered and len(engine._bulk._line) == 2 and not engine._arrived
        hand_in(2, 2, 40.0)
        assert not engine._bulk._ordered
        gate.set()
        assert all(one.wait(30) for one in over)
    assert order[0] == "2" and not engine.stats()["waiting"]


def test_calls_that_are_left_out_and_cancelled_meanwhile_are_told_once(programs: dict[str, Program]) -> None:
    """Whoever is told of a launch cancels the rest, of which some were left out of it as too late."""
    told, groups, x = Told(3 * CALLS), list[Any](), torch.randn(1, 7)
    with held(programs, limit=CALLS, capacity=1000) as engine:
        family = engine._families["a"]
        gate = engine.hold(x)
        family.cost.counts, family.cost.seconds = [1, CALLS], [2.0, 4.0]  # seconds, as far as it knows
        family.set_pace()
        family.pace = 0.0  # nobody is refused
        engine._backlog.free = 0.0

        def done(places: Any, outputs: Any) -> None:
            told(places, outputs)
            if told.times == 1:
                groups[0].cancel()

        ends = [3.5] * CALLS + [60.0] * 2 * CALLS
        groups.append(engine.submit_many([("a", (x,))] * 3 * CALLS, done, deadline=ends))
        gate.set()
        outputs = told.wait()
    kinds = Counter(type(one) for one in outputs)
    assert kinds[Tensor] == CALLS and kinds[CancelledError] == 2 * CALLS
    counts = engine.stats()["models"]["a"]
    assert not engine.stats()["waiting"] and not engine._backlog._ahead
    assert (counts["submitted"], counts["cancelled"], counts["failed"]) == (3 * CALLS + 1, 2 * CALLS, 0)


def test_what_comes_while_the_last_is_put_in_order_is_not_in_it(programs: dict[str, Program]) -> None:
    """A list that was empty is not read again, when others may have put something in: they would be run twice."""
    with held(programs, limit=CALLS) as engine:
        gate = engine.hold(torch.randn(1, 7))
        before = engine._arrived
        with engine._queues:
            engine._fetch(False)
        assert not before and engine._arrived is not before
        gate.set()
