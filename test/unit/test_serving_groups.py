"""Calls that are handed in together: what becomes of each is told once, a launch at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, BusyError, DeadlineError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.engine import Engine


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Linear]:
    return {name: nn.Linear(7, 3).eval() for name in "abc"}


@pytest.fixture(scope="module")
def programs(models: dict[str, nn.Linear]) -> dict[str, Program]:
    first = kitsune_mlir.compile(models["a"], (torch.randn(1, 7),), target="host")
    return {name: first.with_weights(dict(model.named_parameters())) for name, model in models.items()}


class Told:
    """What a group was told of each of so many calls, and how often."""

    def __init__(self, count: int):
        self.outputs: dict[int, Any] = {}
        self.times, self.count, self.over = 0, count, threading.Event()

    def __call__(self, places: Sequence[int], outputs: Sequence[Any]) -> None:
        assert len(places) == len(outputs) and not {*places} & {*self.outputs}
        self.outputs.update(zip(places, outputs, strict=True))
        self.times += 1
        if len(self.outputs) == self.count:
            self.over.set()

    def wait(self) -> list[Any]:
        assert self.over.wait(30)
        return [self.outputs[place] for place in range(self.count)]


class Held(Engine):
    """An engine whose next launch waits at `gate`; `begun` says that it does."""

    gate: threading.Event | None = None
    begun: threading.Event

    def hold(self, x: Tensor) -> threading.Event:
        self.begun, gate = threading.Event(), threading.Event()
        self.gate = gate
        self.submit("a", (x,))
        assert self.begun.wait(30)
        return gate

    def _launch(self, *args: Any) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            self.begun.set()
            gate.wait(30)
        super()._launch(*args)


def held(programs: dict[str, Program], limit: int = 8, capacity: int = 100) -> Held:
    with kitsune_mlir.serve(programs, limit=limit, capacity=capacity, measure=False) as made:
        families = made._all
    return Held(families, capacity)


def test_each_is_answered_once_beside_futures(models, programs):
    with held(programs) as engine:
        calls = [(random.choice("abc"), (torch.randn(1, 7),)) for _ in range(21)]
        gate, told = engine.hold(calls[0][1][0]), Told(21)
        engine.submit_many(calls, told, deadline=30)
        x = torch.randn(1, 7)
        future = engine.submit("b", (x,), deadline=20)  # comes first, in the same launch as some of them
        gate.set()
        for (name, (row,)), output in zip(calls, told.wait(), strict=True):
            assert torch.allclose(output, models[name](row), atol=1e-6)
        assert torch.allclose(future.result(30), models["b"](x), atol=1e-6)
    assert told.times == 3  # 22 requests, 8 a launch
    stats = engine.stats()
    assert stats["waiting"] == 0 and sum(one["answered"] for one in stats["models"].values()) == 23
    with pytest.raises(BusyError, match="closed"):
        engine.submit_many(calls, told)


def test_errors_are_their_own_calls(programs):
    with held(programs) as engine:
        told = Told(3)
        engine.submit_many([("a", (torch.randn(1, 7),)), ("b", (torch.randn(2, 7),)), ("c", (torch.randn(1, 7),))], told)
        first, second, third = told.wait()
        assert first.shape == third.shape == (1, 3)
        assert isinstance(second, ArgumentError) and str(second).startswith("input 'input' has shape [2, 7], compiled for")
        with pytest.raises(ArgumentError, match="no model 'd'; models are a, b, c"):
            engine.submit_many([("a", ()), ("d", ())], told)
        with pytest.raises(ArgumentError, match="a deadline is a number"):
            engine.submit_many([("a", ())], told, deadline=0)
        assert told.times <= 3 and engine.submit_many([], told).cancel() == 0


def test_those_for_which_there_is_no_room_are_refused_at_once(programs):
    with held(programs, capacity=5) as engine:
        x = torch.randn(1, 7)
        gate, told = engine.hold(x), Told(9)
        engine.submit_many([("a", (x,))] * 9, told)
        assert {*told.outputs} == {5, 6, 7, 8}
        assert all(isinstance(one, BusyError) and "capacity is 5" in str(one) for one in told.outputs.values())
        gate.set()
        assert all(isinstance(one, Tensor) for one in told.wait()[:5])
        family = engine._all[0]
        family.pace, family._spare = 0.001, (0.008, 0.008)  # seconds
        gate, told = engine.hold(x), Told(5)
        engine._backlog.free = 0.0
        engine.submit_many([("a", (x,))] * 5, told, deadline=0.0105)
        assert {*told.outputs} == {3, 4} and "after its deadline" in str(told.outputs[4])  # 10.5, 9.5, 8.5, 7.5
        with pytest.raises(BusyError, match="3 requests wait, so that it would be answered after its deadline"):
            engine.submit("a", (x,), deadline=0.0105)
        unhurried = engine.submit("a", (x,))
        gate.set()
        assert all(isinstance(one, Tensor | DeadlineError) for one in told.wait()[:3])
        assert unhurried.result(30).shape == (1, 3)
    stats = engine.stats()["models"]["a"]
    assert stats["refused"] == 7 and stats["submitted"] == stats["answered"] + stats["failed"]
    assert not engine._backlog._ahead


def test_a_group_is_cancelled_until_it_is_started(programs):
    with held(programs) as engine:
        x = torch.randn(1, 7)
        gate, told, other = engine.hold(x), Told(4), Told(2)
        group = engine.submit_many([("a", (x,)), ("b", (x,))] * 2, told)
        engine.submit_many([("a", (x,))] * 2, other)
        assert group.cancel() == 4 and group.cancel() == 0
        assert all(isinstance(one, CancelledError) for one in told.wait())
        gate.set()
        assert all(isinstance(one, Tensor) for one in other.wait())
        gate, told = engine.hold(x), Told(3)
        engine.submit_many([("c", (x,))] * 3, told)
        closer = threading.Thread(target=engine.close, args=(True,))
        closer.start()
        assert all(isinstance(one, CancelledError) for one in told.wait())
        gate.set()
        closer.join(30)
        assert not closer.is_alive()
    stats = engine.stats()
    assert stats["waiting"] == 0 and [stats["models"][name]["cancelled"] for name in "abc"] == [2, 2, 3]


def test_what_is_told_and_fails_is_nobody_elses(programs, caplog):
    with held(programs) as engine:
        x, told = torch.randn(1, 7), Told(1)
        engine.submit_many([("a", (x,))], lambda places, outputs: 1 // 0)
        engine.submit_many([("a", (x,))], told)
        assert told.wait()[0].shape == (1, 3)
    assert "ZeroDivisionError" in caplog.text


def test_a_source_is_asked_between_launches(programs):
    """By the engine's own thread, until it says that nothing comes any more, or fails."""
    asked, told, x = list[bool](), Told(5), torch.randn(1, 7)
    ready = threading.Event()

    def source(engine: Engine, idle: bool) -> bool:
        if not asked:
            assert ready.wait(30)
        asked.append(idle)
        assert threading.current_thread() is engine._thread
        if len(asked) == 1:
            engine.submit_many([("a", (x,)), ("b", (x,))], lambda places, outputs: told(places, outputs))
        elif idle and len(told.outputs) == 2:
            engine.submit_many([("c", (x,))] * 3, lambda places, outputs: told([2 + n for n in places], outputs))
            return False
        return True

    with kitsune_mlir.serve(programs, limit=4, measure=False, source=source) as engine:
        ready.set()
        assert all(isinstance(one, Tensor) for one in told.wait())
        count = len(asked)
        assert asked[0] and engine("a", x).shape == (1, 3) and len(asked) == count
    for failing in (lambda engine, idle: 1 // 0, lambda engine, idle: False):
        with kitsune_mlir.serve(programs, measure=False, source=failing) as engine:
            assert engine("b", x).shape == (1, 3)


def test_what_a_source_hands_in_is_launched_at_once_where_nothing_waits(models, programs):
    """It is answered when `submit_many` returns, in launches of the limit; errors are their own; who has no time is told so."""
    xs, seen, over = [torch.randn(1, 7) for _ in range(10)], list[Any](), threading.Event()

    def source(engine: Engine, idle: bool) -> bool:
        told: dict[int, Any] = {}
        engine.submit_many(
            [("abc"[n % 3], (x,)) for n, x in enumerate(xs)], lambda p, o: told.update(zip(p, o, strict=True)), deadline=60.0
        )
        seen.append(dict(told))
        wrong = [("a", (xs[0],)), ("b", (torch.randn(2, 7),)), ("c", (xs[1],))]
        engine.submit_many(wrong, lambda p, o: told.update(zip(p, o, strict=True)))
        seen.append([told[n] for n in range(3)])

        def more(places: Any, outputs: Any) -> None:
            engine.submit_many([("a", (xs[2],))], lambda _, o: (seen.append(("more", o[0])), over.set()))  # in its turn
            raise ZeroDivisionError

        engine.submit_many([("b", (xs[3],))], more)
        seen.append(len(seen))
        engine.submit_many([("b", (xs[3],))], lambda _, o: seen.append(("late", o[0])), deadline=1e-9)
        return False

    with kitsune_mlir.serve(programs, limit=4, measure=False, source=source) as engine:
        assert over.wait(30)
    first, second, third, *others = seen
    for n, x in enumerate(xs):
        assert torch.allclose(first[n], models["abc"[n % 3]](x), atol=1e-5)
    assert isinstance(second[1], ArgumentError) and second[1].__cause__ is None
    assert torch.allclose(second[2], models["c"](xs[1]), atol=1e-5) and third == 2
    assert [kind for kind, _ in others] == ["late", "more"] and isinstance(others[0][1], DeadlineError)
    assert torch.allclose(others[1][1], models["a"](xs[2]), atol=1e-5)
    counts = engine.stats()["models"]
    assert [sum(one[name] for one in counts.values()) for name in ("submitted", "answered", "failed")] == [16, 14, 2]
    assert counts["a"]["submitted"] == 6 and counts["a"]["joined"] == 5 and counts["a"]["launches"] == 5
