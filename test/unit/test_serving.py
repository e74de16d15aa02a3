"""The engine that serves programs: joins, deadlines, errors, cancellation, back-pressure; thousands of requests of threads."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, BusyError, DeadlineError, KitsuneError
from kitsune_mlir.runtime.batch import Batch
from kitsune_mlir.runtime.fleet import Fleet
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving import families
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.requests import Request
from kitsune_mlir.serving.statistics import percentile
from test.oracles.request_streams import Counter, Lookup, Tower, soak


def compiled(model: nn.Module, *args: Any) -> Program:
    return kitsune_mlir.compile(model, args, target="host")


@pytest.fixture(scope="module")
def towers() -> dict[str, Tower]:
    return {f"tower{n}": Tower() for n in range(6)}


@pytest.fixture(scope="module")
def programs(towers: dict[str, Tower]) -> dict[str, Program]:
    first = compiled(towers["tower0"], torch.randn(2, 16))
    return {name: first.with_weights(dict(tower.named_parameters())) for name, tower in towers.items()}


@pytest.fixture(scope="module")
def lookup() -> Program:
    return compiled(Lookup(), torch.randn(5, 4), torch.tensor([0, 1]))


def blocked(engine: Any) -> threading.Event:
    """As `held`, by a launch that waits, so that nothing can be over too soon."""
    gate, begun = threading.Event(), threading.Event()
    family = engine._families["tower0"]
    real = family.finish

    def finish() -> None:
        family.finish = real
        begun.set()
        gate.wait(10)

    family.finish = finish
    engine.submit("tower0", (torch.zeros(2, 16),))
    begun.wait(10)
    return gate


def test_answers_are_the_models(towers, programs):
    with kitsune_mlir.serve(programs, limit=8) as engine:
        calls = [(name, torch.randn(2, 16)) for name in towers for _ in range(5)]
        futures = [engine.submit(name, (x,)) for name, x in calls]
        for (name, x), future in zip(calls, futures, strict=True):
            assert torch.allclose(future.result(10), towers[name](x), atol=1e-5)
        x = torch.randn(2, 16)
        assert torch.equal(engine("tower1", x), engine("tower1", x=x))
    stats = engine.stats()
    assert stats["waiting"] == 0 and sum(one["answered"] for one in stats["models"].values()) == 32


def test_waiting_requests_of_several_models_share_a_launch(programs):
    with kitsune_mlir.serve(programs, limit=32, measure=False) as engine:
        gate = blocked(engine)
        futures = [engine.submit(name, (torch.randn(2, 16),)) for name in programs for _ in range(4)]
        gate.set()
        for future in futures:
            future.result(10)
        models = engine.stats()["models"].values()
        assert sum(one["joined"] for one in models) == 24 and max(one["launches"] for one in models) <= 2


def test_programs_compiled_of_equal_models_are_one_family():
    models = {"a": Tower(), "b": Tower(), "c": Tower(17)}
    made = {name: compiled(model, torch.randn(2, model.first.in_features)) for name, model in models.items()}
    with kitsune_mlir.serve(made, measure=False) as engine:
        assert engine._families["a"] is engine._families["b"] is not engine._families["c"]
        for name, model in models.items():
            x = torch.randn(2, model.first.in_features)
            assert torch.allclose(engine(name, x), model(x), atol=1e-5)


def test_the_earliest_deadline_comes_first(programs):
    order: list[int] = []
    with kitsune_mlir.serve(programs, limit=1, measure=False) as engine:
        gate = blocked(engine)
        for n, deadline in enumerate((50.0, 30.0, None, 40.0, 35.0)):  # none is late on a busy machine
            future = engine.submit("tower1", (torch.randn(2, 16),), deadline=deadline)
            future.add_done_callback(lambda _, n=n: order.append(n))
        gate.set()
    assert order == [2, 1, 4, 3, 0]  # without one: as if it had a second


def test_deadlines_that_are_over(programs):
    with kitsune_mlir.serve(programs, measure=False) as engine:
        gate = blocked(engine)
        late = engine.submit("tower1", (torch.randn(2, 16),), deadline=0.01)
        other = engine.submit("tower1", (torch.randn(2, 16),), deadline=30)
        time.sleep(0.05)
        gate.set()
        with pytest.raises(DeadlineError, match="the deadline of model 'tower1' was over"):
            late.result(10)
        assert other.result(10).shape == (2, 3)
    assert engine.stats()["models"]["tower1"]["expired"] == 1


def test_back_pressure_and_cancellation(programs):
    with kitsune_mlir.serve(programs, capacity=3, measure=False) as engine:
        gate = blocked(engine)
        futures = [engine.submit("tower1", (torch.randn(2, 16),)) for _ in range(3)]
        with pytest.raises(BusyError, match="3 requests wait, and the engine's capacity is 3"):
            engine.submit("tower2", (torch.randn(2, 16),))
        assert futures[1].cancel()
        futures.append(engine.submit("tower2", (torch.randn(2, 16),)))
        for _ in range(200):  # what is cancelled is held no longer than there is room for it
            assert futures.pop().cancel()
            futures.append(engine.submit("tower2", (torch.randn(2, 16),)))
        assert len(engine._pending()) < 100
        gate.set()
        assert futures[0].result(10).shape == (2, 3) and futures[-1].result(10).shape == (2, 3)
        with pytest.raises(CancelledError):
            futures[1].result()
    stats = engine.stats()["models"]
    assert (stats["tower1"]["cancelled"], stats["tower2"]["refused"], stats["tower2"]["cancelled"]) == (1, 1, 200)


def test_errors_are_their_own_requests(programs, lookup):
    with kitsune_mlir.serve({**programs, "lookup": lookup}, measure=False) as engine:
        gate = blocked(engine)
        table = torch.randn(5, 4)
        good = engine.submit("lookup", (table, torch.tensor([4, 0])))
        outside = engine.submit("lookup", (table, torch.tensor([4, 5])))
        shape = engine.submit("lookup", (table[:4], torch.tensor([4, 5])))
        gate.set()
        assert torch.equal(good.result(10), table[[4, 0]] + 1)
        with pytest.raises(KitsuneError, match="index"):
            outside.result(10)
        with pytest.raises(ArgumentError, match=r"^input 'table' has shape \[4, 4\], compiled for \[5, 4\]"):
            shape.result(10)
        with pytest.raises(ArgumentError, match="no model 'nobody'; models are lookup, tower0"):
            engine.submit("nobody")
        for deadline in (0, -1.0, float("nan"), float("inf"), "soon"):
            with pytest.raises(ArgumentError, match="a deadline is a number of seconds above 0"):
                engine.submit("tower0", (table,), deadline=deadline)  # type: ignore[arg-type]
    with pytest.raises(BusyError, match="closed"):
        engine.submit("lookup", (table, torch.tensor([4, 0])))
    with pytest.raises(ArgumentError, match="no models"):
        kitsune_mlir.serve({})
    with pytest.raises(ArgumentError, match="limit of an engine"):
        kitsune_mlir.serve(programs, limit=0)


def test_an_engine_survives_what_breaks_a_launch(programs, monkeypatch):
    with kitsune_mlir.serve(programs, measure=False) as engine:
        gate = blocked(engine)
        bad = engine.models["tower3"]
        batch, one = Batch.__call__, Program.__call__

        def broken(self: Batch, requests: Any, programs: Any, *rest: Any, **options: Any) -> Any:
            if bad in programs:
                raise RuntimeError("no memory")
            return batch(self, requests, programs, *rest, **options)

        def alone(self: Program, *args: Any, **kwargs: Any) -> Any:
            if self is bad:
                raise RuntimeError("no memory")
            return one(self, *args, **kwargs)

        monkeypatch.setattr(Batch, "__call__", broken)
        monkeypatch.setattr(Fleet, "launch", lambda *_: None)
        monkeypatch.setattr(Program, "__call__", alone)
        futures = {name: engine.submit(name, (torch.randn(2, 16),)) for name in programs}
        gate.set()
        with pytest.raises(RuntimeError, match="no memory"):
            futures.pop("tower3").result(10)
        assert all(future.result(10).shape == (2, 3) for future in futures.values())


def test_changes_of_a_models_weights_are_made_one_after_the_other():
    models = {"a": Counter(), "b": Counter()}
    first = compiled(models["a"], torch.zeros(4))
    programs = {name: first.with_weights({"total": model.total}) for name, model in models.items()}
    with kitsune_mlir.serve(programs, limit=4) as engine:  # measuring changes nothing
        futures = [engine.submit("ab"[n % 2], (torch.full((4,), float(n)),)) for n in range(40)]
        sums = {"a": 0.0, "b": 0.0}
        for n, future in enumerate(futures):
            sums["ab"[n % 2]] += n
            assert torch.equal(future.result(10), torch.full((4,), sums["ab"[n % 2]]))
    assert all(torch.equal(model.total, torch.full((4,), sums[name])) for name, model in models.items())


def test_requests_that_change_the_same_tensor_are_run_alone():
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 1

    class Model(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return add(x, y)

    program, x = compiled(Model(), torch.zeros(4), torch.zeros(4)), torch.zeros(4)
    with kitsune_mlir.serve({"tower0": program}, measure=False) as engine:
        gate = threading.Event()
        family = engine._families["tower0"]
        real = family.finish
        family.finish = lambda: (gate.wait(10), setattr(family, "finish", real))
        futures = [engine.submit("tower0", (torch.zeros(4), torch.zeros(4)))]
        futures += [engine.submit("tower0", (x, torch.ones(4))) for _ in range(5)]
        gate.set()
        assert [float(future.result(10)[0]) for future in futures[1:]] == [1, 2, 3, 4, 5]


def test_closing_answers_or_cancels(programs):
    engine = kitsune_mlir.serve(programs, measure=False)
    gate = blocked(engine)
    futures = [engine.submit("tower1", (torch.randn(2, 16),)) for _ in range(10)]
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.set()
    closer.join(10)
    assert all(future.result(0).shape == (2, 3) for future in futures)
    engine = kitsune_mlir.serve(programs, measure=False)
    gate = blocked(engine)
    futures = [engine.submit("tower1", (torch.randn(2, 16),)) for _ in range(10)]
    closer = threading.Thread(target=engine.close, args=(True,))
    closer.start()
    while not all(future.cancelled() for future in futures):
        time.sleep(0.001)
    gate.set()
    closer.join(10)
    assert not closer.is_alive()


def test_the_cost_of_launches():
    cost = CostModel.measured(lambda n: 0.001 + 0.0001 * n, 12)
    assert cost.counts == [1, 2, 4, 8, 12]
    assert cost(3) == pytest.approx(0.0013) and cost(20) == pytest.approx(0.003) and cost.gain(4) == pytest.approx(0.001)
    assert CostModel.measured(lambda n: 0.2 * n, 64).counts == [1]
    assert cost.observe(3, 0.0026) == pytest.approx(2) and cost.counts == [1, 2, 3, 4, 8, 12]
    assert cost(3) == pytest.approx(0.0013 + 0.1 * 0.0013)
    cost.observe(6, 1.0)  # somebody else had the processor
    assert cost(6) < 1.31 * 0.0016
    cost.observe(16, 0.0032)  # beyond what was measured
    assert cost(16) == 0.0032
    empty = CostModel([], [])
    assert empty(5) == 0 and empty.gain(1) == 0 and empty.observe(2, 0.5) == 1 and empty(4) == 1.0
    assert percentile([1, 2, 3, 4], 50) == 2 and percentile([], 99) == 0 and percentile([7], 99) == 7


def test_each_program_is_used_in_launches_of_few_and_of_many(programs):
    class Counted(Family):
        def finish(self):
            seen.append(len(seen))

    seen, sizes = [], []
    family = Counted(programs, 3)
    run = family.batch
    family.batch = type(
        "Noted", (), {"limit": 3, "__call__": lambda self, *call: (sizes.append(len(call[0])), run(*call))[1]}
    )()
    families._use_all(family)
    assert len(programs) == 6 and sizes == [2, 2, 2, 3, 3] and len(seen) == 11


def test_waiting_for_company_only_while_it_pays(programs):
    family = Family(programs, 4)
    family.cost = CostModel([1, 4], [0.010, 0.013])  # a joined request saves 9 ms
    assert family.patience(0.0) == 0
    now = 1.0

    def arrive(after: float, deadline: float, family: Family = family) -> None:
        family.add(Request(now + deadline, "tower0", (), {}, True, now + after))

    arrive(0.0, 1.0)
    assert family.patience(now) == 0  # nobody knows when the next one comes
    arrive(0.002, 1.0)
    assert 0.008 < family.patience(now + 0.002) < 0.0091 and family.patience(now + 0.012) == 0
    arrive(0.004, 0.022)  # with little slack: no more than half of it
    assert 0 < family.patience(now + 0.004) < 0.0026
    assert family.patience(now + 0.008) == 0
    arrive(0.006, 1.0)
    assert family.patience(now + 0.006) == 0  # a launch is full
    slow = Family(programs, 4)
    slow.cost = CostModel([1, 4], [0.010, 0.040])  # nothing is saved
    for after in (0.0, 0.001):
        arrive(after, after + 1, slow)
    assert slow.patience(now) == 0


def test_who_is_late_runs_alone_and_later(programs):
    family = Family(programs, 8)
    family.cost = CostModel([1, 8], [0.001, 0.005])
    for _ in range(3):
        assert family.limit == 8
        family.observe(8, 0.02)
    assert family.late and family.limit == 1
    for _ in range(16):
        family.observe(1, 0.001)
    assert not family.late and family.limit == 8
    with kitsune_mlir.serve(programs, measure=False) as engine:  # nobody else is held up
        (only,) = engine._all
        only.cost = CostModel([1, 8], [0.001, 0.002])
        for _ in range(3):
            only.observe(8, 0.02)
        assert not only.late and only.limit == only.most


@pytest.mark.parametrize("measure", [False, True])
def test_soak(towers, programs, lookup, measure):
    """Clients that cancel, hurry and err: every request is answered rightly, or has its own error; none is lost."""
    every = {**programs, "lookup": lookup, "counter": compiled(Counter(), torch.zeros(4))}
    found = soak(towers, every, 2000, seed=random.randrange(1 << 30), limit=16, capacity=200, measure=measure)
    assert not found["problems"]
    assert found["right"] > 500 and found["faulty"] > 20 and found["left"] and found["cancelled"]


def test_the_soak_sees_what_is_wrong(towers, programs, lookup):
    """Answers that are another model's."""
    wrong = {**programs, "tower1": programs["tower2"], "lookup": lookup, "counter": compiled(Counter(), torch.zeros(4))}
    assert any(problem.startswith("tower: ") for problem in soak(towers, wrong, 300, limit=16)["problems"])
