"""Who launches a request that is the only one: the thread that waits for it, where that is as good as the engine's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, DeadlineError
from kitsune_mlir.serving.bell import TRUSTED
from kitsune_mlir.serving.engine import Engine


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return nn.Linear(7, 3).eval()


@pytest.fixture(scope="module")
def program(model: nn.Module) -> Any:
    return kitsune_mlir.compile(model, (torch.randn(5, 7),), target="host")


@pytest.fixture
def engine(program: Any) -> Iterator[Engine]:
    with kitsune_mlir.serve({"a": program}, measure=False) as made:
        yield made


def threads_of(engine: Engine) -> list[int]:
    """The threads that wait for launches, as they come."""
    seen, family = list[int](), engine._all[0]
    real = family.finish
    family.finish = lambda: (seen.append(threading.get_ident()), real())[1]
    return seen


def test_a_call_is_launched_by_who_waits_for_it(engine: Engine, model: nn.Module) -> None:
    seen, x = threads_of(engine), torch.randn(5, 7)
    for _ in range(3):
        assert torch.allclose(engine("a", x), model(x), atol=1e-5)
    assert seen == [threading.get_ident()] * 3
    assert torch.allclose(engine("a", input=x, deadline=10.0), model(x), atol=1e-5)  # by keyword
    counts = engine.stats()["models"]["a"]
    assert (counts["submitted"], counts["answered"], counts["launches"], counts["joined"]) == (4, 4, 4, 0)
    assert counts["p50"] > 0 and engine.stats()["waiting"] == 0


def test_a_future_whose_answer_is_waited_for_is_answered_once(engine: Engine, model: nn.Module) -> None:
    """By this thread or the engine's, whichever comes first."""
    for _ in range(50):
        x = torch.randn(5, 7)
        future = engine.submit("a", (x,))
        assert torch.allclose(future.result(), model(x), atol=1e-5)
        assert torch.allclose(engine.submit("a", (x,)).result(30), model(x), atol=1e-5)  # no longer than this
        assert engine.submit("a", (x,)).exception() is None
    assert engine.stats()["models"]["a"]["answered"] == 150


@pytest.mark.parametrize("kind", ["inference", "dispatch", "function"])
def test_a_thread_that_makes_other_tensors_leaves_it_to_the_engine(engine: Engine, kind: str) -> None:
    modes = {"inference": torch.inference_mode, "dispatch": TorchDispatchMode, "function": TorchFunctionMode}
    seen, x = threads_of(engine), torch.randn(5, 7)
    with modes[kind]():
        y = engine("a", x)
    assert seen == [engine._thread.ident] and not y.is_inference()


def test_errors_of_a_request_that_is_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"has shape \[5, 6\]"):
        engine("a", torch.randn(5, 6))
    with pytest.raises(DeadlineError, match="the deadline of model 'a' was over"):
        engine("a", torch.randn(5, 7), deadline=1e-9)
    counts = engine.stats()["models"]["a"]
    assert (counts["failed"], counts["expired"], counts["launches"]) == (2, 1, 1)

    def interrupted(*call: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._all[0], "output", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine("a", torch.randn(5, 7))
    monkeypatch.undo()
    assert engine("a", torch.randn(5, 7)).shape == (5, 3) and not engine._waiting


def test_while_a_launch_is_under_way_the_engine_goes_on(engine: Engine) -> None:
    """What waits then is launched by the engine's thread, and what others call is called there."""
    gate, begun, seen, called = threading.Event(), threading.Event(), threads_of(engine), list[int]()
    real = engine._all[0].finish
    engine._all[0].finish = lambda: (begun.set(), gate.wait(30), real())[2]
    first = engine.submit("a", (torch.randn(5, 7),))
    first.add_done_callback(lambda _: called.append(threading.get_ident()))
    assert begun.wait(30)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(engine, "a", torch.randn(5, 7))
        while not (engine._arrived and engine._arrived[0]._own):  # until it waits
            time.sleep(0.001)
        gate.set()
        assert second.result(30).shape == (5, 3) and first.done()
    assert {*seen} == {engine._thread.ident} == {*called}


def test_calls_handed_in_at_once_with_deadlines_of_their_own(program: Any) -> None:
    told: dict[int, Any] = {}
    done = threading.Event()

    def tell(places: Any, outputs: Any) -> None:
        told.update(zip(places, outputs, strict=True))
        if len(told) == 3:
            done.set()

    calls = [("a", (torch.randn(5, 7),))] * 3
    with kitsune_mlir.serve({"a": program}, measure=False) as engine:
        engine.submit_many(calls, tell, deadline=[30.0, 1e-9, 20.0])
        assert done.wait(30)
        assert isinstance(told[1], DeadlineError) and told[0].shape == told[2].shape == (5, 3)
        for deadline, problem in (
            ([1.0], "1 deadlines were given for 3 calls"),
            ([1.0, 0.0, 1.0], "of call 1 is 0.0; a number"),
        ):
            with pytest.raises(ArgumentError, match=problem):
                engine.submit_many(calls, tell, deadline=deadline)
        engine.submit_many([], tell, deadline=[])


def test_the_engine_sleeps_while_others_do_its_work(engine: Engine, model: nn.Module) -> None:
    """After some requests that were launched by who waited for them it is not woken for the next; it finds what nobody waits
    for, and is woken where anybody looks at the future in another way."""
    seen, x = threads_of(engine), torch.randn(5, 7)
    for _ in range(TRUSTED):
        engine("a", x)
    assert engine._bell._helped >= TRUSTED
    assert torch.allclose(engine.submit("a", (x,)).result(), model(x), atol=1e-5)
    told = threading.Event()
    engine.submit("a", (x,)).add_done_callback(lambda _: told.set())
    assert told.wait(30)
    for _ in range(TRUSTED):
        engine("a", x)
    future = engine.submit("a", (x,))  # nobody looks
    deadline = time.monotonic() + 30
    while future._state != "FINISHED" and time.monotonic() < deadline:
        time.sleep(0.001)
    assert future.done() and seen[-1] == engine._thread.ident
    for _ in range(TRUSTED):
        engine("a", x)
    assert {*wait([engine.submit("a", (x,)), engine.submit("a", (x,))], 30).done} and not engine._waiting
