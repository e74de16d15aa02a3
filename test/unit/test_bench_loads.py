"""Loads of many models: what is sent, that every system answers as eager does, and what is recorded and drawn."""

import argparse
import multiprocessing
import os
import random
import statistics
import threading
import types
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from bench.charts import draw_loads
from bench.requests import processes
from bench.requests.arrivals import Arrivals
from bench.requests.loads import PATIENCE, Load, measure
from bench.requests.processes import Unavailable, mps
from bench.requests.scenarios import ADAPTERS, SCENARIOS, requests
from test.rotation import in_turn

ASKED = argparse.Namespace(device="cpu", small=True, deadline=5.0, limit=64)


def test_an_open_loop_counts_what_ended(monkeypatch: pytest.MonkeyPatch):
    now = 100.0

    def sleep(seconds: float) -> float:
        nonlocal now
        now += seconds
        return now

    clock = types.SimpleNamespace(perf_counter=lambda: sleep(1e-4), sleep=sleep)
    monkeypatch.setattr("bench.requests.arrivals.time", clock)
    arrivals = Arrivals([0.0, 0.0, 0.5, 2.0, 2.5], 1.0)
    assert arrivals.take(1) == range(1) and arrivals.take() == range(1, 2) and not arrivals.take(wait=False)
    assert arrivals.take() == range(2, 3) and 100.5 <= now < 100.6  # has waited for it
    arrivals.ended([0, 2])
    arrivals.ended([1], right=False)
    now = 102.6
    assert arrivals.take() == range(3, 5)
    arrivals.ended([3])
    now = 103.6
    assert not arrivals.take()
    arrivals.wait()  # for nobody: the load is over
    assert arrivals.latencies().tolist() == pytest.approx([0.0, 0.5, 0.6], abs=0.1)
    assert arrivals.latencies([0, -1, 1, 1, 2]).tolist() == pytest.approx([0.5, 0.6], abs=0.1)


@pytest.mark.parametrize("arrivals", ["poisson", "gamma"])
def test_requests_are_drawn_as_said(arrivals: str):
    given = requests([8, 4], 3, 100.0, 15_000, arrivals, random.randrange(1 << 30))
    gaps = [b.due - a.due for a, b in zip(given, given[1:], strict=False)]
    mean = statistics.fmean(gaps)
    assert min(gaps) >= 0 and mean == pytest.approx(0.01, rel=0.15)
    assert statistics.stdev(gaps) / mean == pytest.approx(4 if arrivals == "gamma" else 1, rel=0.25)
    assert all(len({*one.models}) == 3 and max(one.models) < (8, 4)[one.family] for one in given)
    first = [one.models[0] for one in given if one.family == 0]
    counts = sorted((first.count(n) for n in range(8)), reverse=True)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.2) and counts[0] / counts[7] == pytest.approx(8, rel=0.3)


def test_adapters_share_their_base():
    models = ADAPTERS.models(True, "cpu", torch.float32)
    pointers = [{name: p.data_ptr() for name, p in model.named_parameters()} for model in models]
    for name, place in pointers[0].items():
        assert (len({one[name] for one in pointers}) == 1) == name.startswith("base"), (name, place)


@pytest.mark.parametrize("name", in_turn(list(SCENARIOS), 1))
def test_every_system_answers_as_eager_does(name: str):
    load = Load(name, ASKED)
    for system in ("engine", "engine, threads", "one by one", "batched", "vmap"):
        with load.system(system, 64) as run:
            assert load.error(run) < 1e-4, system
            figures = load.run(run, requests(load.counts, load.scenario.each, 1e9, 12, "poisson", 0), PATIENCE)
            assert figures["answered"] == figures["requests"] == 12
    with pytest.raises(Unavailable, match="the host has none"), load.system("streams", 1):
        pass


def test_a_wrong_answer_is_found():
    load = Load("S2", ASKED)
    output: Any = load.models[0](load.inputs[0][1])

    def run(arrivals: Arrivals, asked: Any, keep: Any) -> None:
        keep.update({number: output for number in range(len(asked))})

    assert load.error(run) > 0.1
    output = ValueError("none")
    with pytest.raises(ValueError, match="none"):
        load.error(run)
    with pytest.raises(TimeoutError, match="8 of 8 requests have no answer"):
        load.error(lambda arrivals, asked, keep: None)


def test_a_process_answers_its_part(monkeypatch: pytest.MonkeyPatch):
    """Two of them, as threads."""

    class Process(threading.Thread):
        """Has its own end of the pipe, as a process has."""

        def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool):
            own = Connection(os.dup(args[0].fileno()))
            super().__init__(target=target, args=(own, *args[1:]), daemon=daemon)

    context = types.SimpleNamespace(Process=Process, Pipe=multiprocessing.Pipe)
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda kind: context)
    monkeypatch.setattr(processes.torch, "set_num_threads", lambda count: None)  # threads that begin later would have it, too
    load = Load("S7", ASKED)
    monkeypatch.setattr(processes, "made", lambda *_: (load.models, load.inputs))  # threads have one source of random numbers
    served = processes.Processes("S7", True, "cpu", torch.float32, 0, 2)
    assert load.error(served.run) < 1e-4
    figures = load.run(served.run, requests(load.counts, load.scenario.each, 1e5, 12, "poisson", 0))
    assert figures["answered"] == figures["requests"] == 12
    served.close()


def test_mps_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="is not installed"), mps():
        pass


def test_entries_and_their_picture(tmp_path):
    asked = argparse.Namespace(
        **vars(ASKED), systems=["one by one", "streams"], rates=[200.0, 400.0], arrivals=["poisson"], requests=10, seconds=0.03,
        own=[0.8],
    )  # fmt: skip
    entries = [*{entry["case"]: entry for entry in measure("S2", asked)}.values()]
    assert [entry["case"] for entry in entries] == ["S2 poisson 200", "S2 poisson 400", "S2 poisson 0.8 of its own"] and all(
        one["ok"] for one in entries
    )
    assert entries[0]["missing"] == {"streams": "the host has none"} and {*entries[0]["systems"]} == {"one by one"}
    (path,) = draw_loads({entry["case"]: entry for entry in entries}, tmp_path)
    assert path.name == "load-S2-poisson.svg" and "one by one" in path.read_text()
    asked.rates, asked.own = [], []
    assert len({entry["rate"] for entry in measure("S2", asked)}) == 4
