"""Families that take far longer than others run beside them: how the others fare, and what becomes of their own requests."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving import engine as engines
from kitsune_mlir.serving.aside import slow
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.engine import Engine
from kitsune_mlir.serving.family import Family
from test.oracles import request_streams
from test.oracles.timed_engine import Device, Found, Models, answered

BESIDE = 50
"""Requests of the others for each long one."""


def flat(count: int) -> float:
    return 12e-6 + 0.75e-6 * count


def load(rate: float, count: int, long: bool, one: bool) -> tuple[Found, list[Models]]:
    """Requests for 64 models, and beside every 50th one for a model of 300 us."""
    device, draw, due = Device(one), random.Random(3), 0.0
    families = [Models(device, [f"short{n}" for n in range(64)], 64, flat)]
    if long:
        families.append(Models(device, ["long"], 1, lambda count: 300e-6 * count, stream=1))
    asked = list[tuple[float, str]]()
    for number in range(count):
        due += draw.expovariate(rate)
        asked += [(due, "long")] * (long and number % BESIDE == 0) + [(due, f"short{draw.randrange(64)}")]
    return answered(device, families, asked, 5e-3), families


@pytest.mark.parametrize("rate", [2e3, 2e4, 8e4, 3e5])
def test_others_are_not_slower_for_what_takes_long(rate: float) -> None:
    count = int(min(3000, 0.1 * rate))
    (alone, _), (found, families) = load(rate, count, False, False), load(rate, count, True, False)
    for percent, more in ((50, 10e-6), (99, 60e-6)):  # the host spends 40 us on a long one
        assert found.percentile("short", percent) <= 1.1 * alone.percentile("short", percent) + more
    assert found.percentile("short", 100) < 5e-3 and not any(family.late for family in families)
    if rate < 1e5:  # 1,600 long ones a second do not fit one stream
        assert found.percentile("long", 50) < 1.2e-3


@pytest.mark.parametrize("rate", [1e4, 1e5])
def test_they_are_in_time_where_streams_share_a_queue(rate: float) -> None:
    found, families = load(rate, 2000, True, True)
    assert found.percentile("short", 100) < 5e-3 and not any(family.late for family in families)


@pytest.mark.parametrize("rate", [4e4, 8e4])
def test_a_single_call_behind_a_launch_tells_nothing_wrong(rate: float) -> None:
    """It was waited for with the launch before it, and seemed to have taken a microsecond: then all others were late."""
    _, families = load(rate, 3000, True, False)
    assert families[0].cost(1) == pytest.approx(flat(1) + 25e-6, rel=0.5)


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    long = nn.Sequential(*(nn.Linear(7, 7) for _ in range(3)))
    return {"a": nn.Linear(7, 3).eval(), "b": nn.Linear(7, 3).eval(), "long": long.eval()}


@pytest.fixture(scope="module")
def programs(models: dict[str, nn.Module]) -> dict[str, Program]:
    first, long = (kitsune_mlir.compile(models[name], (torch.randn(1, 7),), target="host") for name in ("a", "long"))
    return {"a": first, "b": first.with_weights(dict(models["b"].named_parameters())), "long": long}


class Marks(list[Any]):
    """Of launches beside the others: each is under way until it is `over`, or all are `free`."""

    free = False

    def add(self) -> Any:
        mark = types.SimpleNamespace(over=False, wait=lambda: None)
        self.append(mark)
        marks = self

        class Own:
            passed = property(lambda _: marks.free or mark.over)

            def wait(self) -> None:
                mark.wait()

        return Own()


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Marks:
    """Of launches of "long"."""
    made, real = Marks(), Family.beside

    def beside(self: Family, *call: Any) -> Any:
        return dataclasses.replace(real(self, *call), mark=made.add())

    monkeypatch.setattr(Family, "beside", beside)
    monkeypatch.setattr(Family, "handed_over", lambda self, outputs: None)
    monkeypatch.setattr(engines, "slow", lambda families: [one for one in families if "long" in one.programs])
    return made


@contextlib.contextmanager
def served(programs: dict[str, Program], limit: int, marks: Marks) -> Iterator[Engine]:
    with kitsune_mlir.serve(programs, limit=limit) as engine:
        try:
            yield engine
        finally:
            marks.free = True


def until(condition: Callable[[], object]) -> None:
    """Wait for it, 30 s at most."""
    for _ in range(400):
        if condition():
            return
        time.sleep(0.005)
    raise TimeoutError


def test_others_are_answered_while_a_long_one_is_under_way(
    models: dict[str, nn.Module], programs: dict[str, Program], marks: Marks
) -> None:
    x = torch.randn(1, 7)
    with served(programs, 4, marks) as engine:
        first = engine.submit("long", (x,))
        until(lambda: marks)
        second = engine.submit("long", (x,))
        for name in "abab":
            assert torch.allclose(engine(name, x), models[name](x), atol=1e-6)
        told: dict[int, Any] = {}
        calls = [("a", (x,)), ("long", (x,)), ("b", (x,))]
        engine.submit_many(calls, lambda places, outputs: told.update(zip(places, outputs, strict=True)), deadline=30.0)
        until(lambda: len(told) == 2)
        assert {*told} == {0, 2} and not first.done() and not second.done() and len(marks) == 1
        assert engine.stats()["waiting"] == 2
        marks[0].over = True
        assert torch.allclose(first.result(30), models["long"](x), atol=1e-6)
        until(lambda: len(marks) == 2)  # the others that wait, together
        marks[1].over = True
        assert torch.allclose(second.result(30), models["long"](x), atol=1e-6)
        until(lambda: len(told) == 3)
        assert torch.allclose(told[1], models["long"](x), atol=1e-6)
    stats = engine.stats()["models"]["long"]
    assert (stats["submitted"], stats["answered"], stats["launches"]) == (3, 3, 2)


def test_errors_cancellation_and_the_end(programs: dict[str, Program], marks: Marks) -> None:
    x = torch.randn(1, 7)

    def fails() -> None:
        raise KitsuneError("the device fell off")

    with served(programs, 1, marks) as engine:
        wrong = engine.submit("long", (torch.randn(2, 7),))
        until(lambda: marks)
        waits = [engine.submit("long", (x,)) for _ in range(2)]
        assert waits[1].cancel() and not wrong.done()
        marks[0].over = True
        with pytest.raises(ArgumentError, match=r"has shape \[2, 7\]"):
            wrong.result(30)
        until(lambda: len(marks) == 2)
        marks[1].wait, marks[1].over = fails, True
        with pytest.raises(KitsuneError, match="fell off"):
            waits[0].result(30)
        last = engine.submit("long", (x,))
        until(lambda: len(marks) == 3)
    assert last.result(0).shape == (1, 7) and not engine.stats()["waiting"]


def test_which_are_slow(programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    families = [Family({"a": programs["a"]}, 4), Family({"long": programs["long"]}, 4)]
    for family, seconds in zip(families, (1.0, 2.5), strict=True):
        family.cost = CostModel([1], [seconds])
    assert not slow(families)  # on the host nothing runs beside anything
    monkeypatch.setattr(Family, "separable", True)
    assert slow(families) == families[1:]
    families[1].cost.seconds = [1.5]
    assert not slow(families)
    families[0].cost = CostModel([], [])
    assert not slow(families)


def test_soak_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that cancel, hurry and err, where two families run beside the others, a launch for up to 2 ms."""
    draw, real = random.Random(random.randrange(1 << 30)), Family.beside
    used = set[str]()

    def beside(self: Family, models: Any, *rest: Any) -> Any:
        launched: Any = real(self, models, *rest)
        end = time.monotonic() + 2e-3 * draw.random()
        used.update(models)

        class Later:
            passed = property(lambda _: time.monotonic() > end)

            def wait(self) -> None:
                pass

        return dataclasses.replace(launched, mark=Later())

    monkeypatch.setattr(Family, "beside", beside)
    monkeypatch.setattr(Family, "handed_over", lambda self, outputs: None)
    monkeypatch.setattr(engines, "slow", lambda families: [one for one in families[1:] if not one.exclusive][:2])
    found = request_streams.soak(*request_streams.models("cpu"), 3000, seed=draw.randrange(1 << 30), limit=8, capacity=200)
    assert not found["problems"] and used
    assert found["right"] > 500 and found["faulty"] > 20 and found["left"] and found["cancelled"]
