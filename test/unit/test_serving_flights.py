"""Launches that are begun while others are under way: who is told what, in which order."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import KitsuneError
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

    def marked(self: Family) -> Callable[[], None]:
        number = sum(kind == "begun" for kind, *_ in seen)
        seen.append(("begun", number))
        return lambda: seen.append(("over", number))

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


def test_an_error_of_the_device_is_told_to_the_calls_of_the_launch(
    programs: dict[str, Program], order: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = Family._marked

    def broken(self: Family) -> Callable[[], None]:
        wait = marked(self)
        if order[-1] != ("begun", 1):
            return wait

        def fails() -> None:
            raise KitsuneError("the device fell off")

        return fails

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
