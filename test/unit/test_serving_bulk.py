"""Calls that are launched and counted together, by arrays: what they give, and when each becomes a request of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, BusyError, DeadlineError
from kitsune_mlir.runtime.fleet import Fleet, Outputs
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.statistics import KEPT, Statistics
from kitsune_mlir.serving.tally import Tally
from test.unit.test_serving_groups import Told, held


class Sum(nn.Module):
    """Two inputs, two results of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = self.layer(x) * y
        return z, (z > 0).sum(-1)


@pytest.fixture(scope="module")
def models() -> list[nn.Module]:
    return [Sum().eval() for _ in range(5)]


@pytest.fixture(scope="module")
def programs(models: list[nn.Module]) -> dict[str, Program]:
    first = kitsune_mlir.compile(models[0], (torch.randn(2, 7), torch.randn(2, 3)), target="host")
    return {str(n): first.with_weights(dict(model.named_parameters())) for n, model in enumerate(models)}


def calls(count: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(2, 7), torch.randn(2, 3)) for _ in range(count)]


def launched(fleet: Fleet | None, given: list[Any]) -> tuple[Outputs, np.ndarray]:
    """What a fleet gives, which takes these calls."""
    found = fleet.launch(given) if fleet is not None else None
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_fleet_gives_what_calls_give(models: list[nn.Module], programs: dict[str, Program], count: int) -> None:
    fleet = Fleet.of(programs["0"].batch(64), programs)
    for _ in range(2):
        given, wanted = calls(count), [random.randrange(5) for _ in range(count)]
        outputs, numbers = launched(fleet, [(str(n), args) for n, args in zip(wanted, given, strict=True)])
        assert len(outputs) == count and not outputs.errors and numbers.tolist() == wanted
        for number, args, (z, positive) in zip(numbers, given, outputs, strict=True):
            wanted, counted = models[number](*args)
            assert torch.allclose(z, wanted, atol=1e-5) and torch.equal(positive, counted)
            assert not z._is_view() and z.data_ptr() % 16 == 0
        assert outputs[0] is outputs[0] and [*outputs[1:]] == [*outputs][1:]


def test_what_does_not_fit_is_looked_at_one_by_one(programs: dict[str, Program]) -> None:
    fleet, ((first, (x, y), last)) = Fleet.of(programs["0"].batch(8), programs), calls(3)
    assert fleet is not None
    wrong: list[Any] = [(x,), (x.double(), y), [x, y], (x[:1], y), (x.T.contiguous().T, y), (x, torch.randn(7)[1:].view(2, 3))]
    for args in wrong:
        for given in ([first, args, last], [args, first, last]):
            assert fleet.launch([("0", one) for one in given]) is None
    both = torch.randn(2, 7)
    launched(fleet, [("0", first), ("1", (both, y)), ("0", (both, y))])  # what is only read may be shared


def test_programs_that_change_something_or_give_much_are_no_fleet() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x)
            return self.total * 2

    program = kitsune_mlir.compile(Counting(), (torch.zeros(3),), target="host")
    assert Fleet.of(program.batch(4), {"a": program}) is None
    wide = kitsune_mlir.compile(nn.Linear(4, 8192).eval(), (torch.randn(1, 4),), target="host")
    assert Fleet.of(wide.batch(4), {"a": wide}) is None


def test_an_assertion_of_one_call_is_its_own() -> None:
    program = kitsune_mlir.compile(nn.Embedding(5, 3), (torch.tensor([0, 1]),), target="host")
    fleet = Fleet.of(program.batch(8), {"a": program})
    outputs, _ = launched(fleet, [("a", (torch.tensor(one),)) for one in ([0, 4], [1, 7], [3, 3])])
    assert [*outputs.errors] == [1] and outputs[1] is outputs.errors[1]
    assert torch.equal(outputs[2], outputs[2]) and outputs[0].shape == (2, 3)
    assert {*outputs.part(1, 3).errors} == {0} and outputs.part(1, 3)[1] is outputs[2]
    assert Outputs.of([1, ValueError("x")]).errors.keys() == {1}


def test_a_weight_that_changes_is_seen(programs: dict[str, Program]) -> None:
    """Those that a program reads where they lie, and those of which it has a copy."""
    model = nn.Linear(7, 3).eval().requires_grad_(False)
    model.weight.data = torch.randn(7, 3).T
    program = kitsune_mlir.compile(model, (torch.randn(1, 7),), target="host")
    fleet, x = Fleet.of(program.batch(4), {"a": program}), torch.randn(1, 7)
    assert fleet is not None
    for _ in range(2):
        found = fleet.launch([("a", (x,)), ("a", (x,))])
        if found is not None:
            assert torch.allclose(found[0][1], model(x), atol=1e-5)
        else:
            assert program.copies.stale
        model.weight.mul_(2)


def test_a_tally_counts_as_one_by_one() -> None:
    tally, counted = Tally(3), [Statistics() for _ in range(3)]
    for launch in range(400):
        numbers = np.array([random.randrange(3) for _ in range(random.randrange(2, 200))])
        spans = [(1, launch * 1e-3), (len(numbers) - 1, launch * 1e-3)]
        late = numbers[: len(numbers) // 3]
        if launch % 2:
            tally.add(numbers, spans, [late], True)
        else:
            tally.add(numbers, spans, [late])
        for n in numbers:
            one = counted[n]
            one.submitted, one.answered, one.joined = (
                one.submitted + launch % 2,
                one.answered + 1,
                one.joined + (len(numbers) > 1),
            )
            one.latencies.append(launch * 1e-3)
        for n in late:
            counted[n].missed += 1
        for n in {*numbers.tolist()}:
            counted[n].launches += 1
    for number, wanted in enumerate(counted):
        found = tally.added_to(Statistics(submitted=2), number)
        for name in ("answered", "missed", "launches", "joined"):
            assert getattr(found, name) == getattr(wanted, name)
        assert found.submitted == wanted.submitted + 2 and found.to_dict()["p99"] == wanted.to_dict()["p99"]
        assert [*found.latencies][-1000:] == [*wanted.latencies][-1000:] and len(found.latencies) <= KEPT


@pytest.fixture
def lines() -> Iterator[dict[str, Program]]:
    first = kitsune_mlir.compile(nn.Linear(7, 3).eval(), (torch.randn(1, 7),), target="host")
    other = kitsune_mlir.compile(nn.Linear(7, 4).eval(), (torch.randn(1, 7),), target="host")
    yield {"a": first, "b": first.with_weights({}), "c": other}


def test_calls_of_several_groups_share_launches(lines: dict[str, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    with held(lines, limit=64, capacity=200) as engine:
        x, told = torch.randn(1, 7), [Told(20) for _ in range(6)]
        gate = engine.hold(x)
        sizes = list[int]()
        monkeypatch.setattr(Fleet, "launch", lambda self, given: sizes.append(len(given)))
        for one in told:
            engine.submit_many([("ab"[n % 2], (x,)) for n in range(20)], one, deadline=30.0)
        gate.set()
        for one in told:
            assert all(torch.allclose(output, lines["a"](x), atol=1e-5) for output in one.wait())
        assert sizes == [64, 56]
    counts = engine.stats()["models"]
    assert counts["a"]["submitted"] == counts["a"]["answered"] == 61 and counts["b"]["joined"] == 60
    assert not engine._waiting and not engine._backlog._ahead


def test_an_urgent_request_comes_before_calls_that_wait_together(lines: dict[str, Program]) -> None:
    """A future's, and those of a group whose deadlines are sooner; calls of two families, in one group."""
    order: list[Any] = []
    with held(lines, limit=4) as engine:
        x = torch.randn(1, 7)
        gate, over = engine.hold(x), threading.Event()
        engine.submit_many([("a", (x,))] * 6, lambda places, _: order.append(("late", *places)), deadline=50.0)
        engine.submit_many(
            [("b", (x,)), ("c", (x,)), ("b", (x,))], lambda p, _: order.append(("mixed", *p)), deadline=[9, 3, 8]
        )
        engine.submit("b", (x,), deadline=2.0).add_done_callback(lambda _: order.append("future"))
        engine.submit_many([("a", (x,))], lambda *_: over.set(), deadline=60.0)
        gate.set()
        assert over.wait(30)
    assert order.index("future") < order.index(("mixed", 1)) < [n for n, one in enumerate(order) if one[0] == "late"][-1]
    assert sorted(p for one in order if one[0] == "mixed" for p in one[1:]) == [0, 1, 2]


def test_calls_that_come_too_late_cost_the_others_no_seat(lines: dict[str, Program]) -> None:
    """A source brings more than launches do: those that can be met are launched, not the first that came."""
    told, over = dict[int, Any](), threading.Event()

    def source(engine: Any, idle: bool) -> bool:
        family = engine._families["a"]
        family.cost.counts, family.cost.seconds = [1, 8], [0.5, 1.0]  # seconds, as far as it knows
        family.set_pace()
        x = torch.randn(1, 7)
        ends = [0.6] * 30 + [30.0] * 16  # a launch of eight is over after a second
        engine.submit_many([("a", (x,))] * 46, lambda p, o: told.update(zip(p, o, strict=True)), deadline=ends)
        over.set()
        return False

    with kitsune_mlir.serve(lines, limit=8, measure=False, source=source):
        assert over.wait(30)
    assert len(told) == 46 and all(isinstance(told[n], Tensor) for n in range(30, 46))
    assert sum(isinstance(told[n], BusyError | DeadlineError) for n in range(30)) > 20


def test_errors_of_calls_that_are_launched_together(lines: dict[str, Program]) -> None:
    with held(lines, limit=16) as engine:
        x, told = torch.randn(1, 7), Told(12)
        gate = engine.hold(x)
        engine.submit_many([("a", (x if n % 5 else x[:, :6],)) for n in range(12)], told, deadline=30.0)
        gate.set()
        outputs = told.wait()
    assert [n for n, one in enumerate(outputs) if isinstance(one, ArgumentError)] == [0, 5, 10]
    assert all(one.__cause__ is None for one in outputs if isinstance(one, ArgumentError))
    counts = engine.stats()["models"]["a"]
    assert (counts["submitted"], counts["answered"], counts["failed"]) == (13, 10, 3)


@pytest.mark.parametrize("many", [1, 40])
def test_an_error_of_the_engine_itself_is_told_to_all_that_wait(
    lines: dict[str, Program], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the launch that broke, those that waited, alone or together; nobody waits for ever, and it is closed."""
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    with held(lines, limit=32) as engine:
        x, told, late = torch.randn(1, 7), Told(many), Told(40)
        gate = engine.hold(x)
        engine.submit_many([("a", (x,))] * many, told, deadline=30.0)
        engine.submit_many([("b", (x,))] * 40, late, deadline=40.0)
        future = engine.submit("c", (x,), deadline=50.0) if many == 1 else None

        def breaks(*_: Any) -> Any:
            raise ZeroDivisionError

        family = engine._families["a"]
        monkeypatch.setattr(family, "outputs", breaks)
        monkeypatch.setattr(family, "together", breaks)
        gate.set()
        for output in (*told.wait(), *late.wait()):
            assert isinstance(output, ZeroDivisionError)
        if future is not None:
            assert isinstance(future.exception(30), ZeroDivisionError)
        with pytest.raises(BusyError, match="closed"):
            engine.submit("a", (x,))


def test_calls_that_wait_together_and_cannot_be_met_are_told_so_while_others_are_launched(lines: dict[str, Program]) -> None:
    """They do not wait until nothing else does; small groups join the line where there is one."""
    with held(lines, limit=8, capacity=500) as engine:
        family, x = engine._families["a"], torch.randn(1, 7)
        told, small = Told(200), Told(3)
        gate = engine.hold(x)
        family.cost.counts, family.cost.seconds = [1, 8], [2.0, 4.0]  # seconds, as far as it knows
        family.set_pace()
        family.pace = 0.0  # nobody is refused
        engine._backlog.free = 0.0
        ends = [3.5] * 100 + [60.0] * 100  # a launch of eight is over after four seconds
        engine.submit_many([("a", (x,))] * 200, told, deadline=ends)
        engine.submit_many([("b", (x,))] * 3, small, deadline=70.0)
        assert len(engine._bulk._line) == 2 and not engine._arrived
        gate.set()
        outputs = told.wait()
        assert all(isinstance(one, Tensor) for one in (*outputs[100:], *small.wait()))
        assert sum(isinstance(one, DeadlineError | BusyError) for one in outputs[:100]) > 80
    stats = engine.stats()
    assert stats["waiting"] == 0 and not engine._backlog._ahead
    assert sum(one["submitted"] - one["answered"] - one["failed"] for one in stats["models"].values()) == 0
