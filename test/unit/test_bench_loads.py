"""Loads of many models: what is sent, that every system answers as eager does, and what is recorded and drawn."""

import argparse
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.charts import draw_loads
from bench.requests import processes
from bench.requests.load import offer
from bench.requests.loads import Load, measure
from bench.requests.processes import Unavailable, mps
from bench.requests.scenarios import ADAPTERS, SCENARIOS, requests
from test.rotation import todays

ASKED = argparse.Namespace(device="cpu", small=True, deadline=5.0)


def test_an_open_loop_counts_what_ended():
    sent: list[int] = []

    def send(number: int, ended: Callable[[Any], None]) -> None:
        sent.append(number)
        for part in range(2):
            ended(ValueError("no") if number == 1 and part == 0 else torch.zeros(1))

    times, seconds = offer([0.0, 0.0, 0.001], send, parts=2)
    assert sent == [0, 1, 2] and len(times) == 2 and 0 <= times[0] <= times[1] <= seconds


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


@pytest.mark.parametrize("name", todays(list(SCENARIOS), 1))
def test_every_system_answers_as_eager_does(name: str):
    load = Load(name, ASKED)
    for system in ("engine", "one by one", "batched", "vmap"):
        with load.system(system, 64) as send:
            assert load.error(send) < 1e-4, system
            figures = load.run(send, requests(load.counts, load.scenario.each, 1e9, 12, "poisson", 0))
            assert figures["answered"] == figures["requests"] == 12
    with pytest.raises(Unavailable, match="the host has none"), load.system("streams", 1):
        pass


def test_a_wrong_answer_is_found():
    load = Load("S2", ASKED)
    assert load.error(lambda model, row, ended: ended(load.models[0](load.inputs[0][row]))) > 0.1
    with pytest.raises(ValueError, match="none"):
        load.error(lambda model, row, ended: ended(ValueError("none")))


def test_mps_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="is not installed"), mps():
        pass


def test_entries_and_their_picture(tmp_path):
    asked = argparse.Namespace(
        **vars(ASKED), systems=["one by one", "streams"], rates=[200.0, 400.0], arrivals=["poisson"], requests=10, seconds=0.03,
        own=[0.8],
    )  # fmt: skip
    entries = list(measure("S2", asked))
    assert [entry["case"] for entry in entries] == ["S2 poisson 200", "S2 poisson 400", "S2 poisson 0.8 of its own"] and all(
        one["ok"] for one in entries
    )
    assert entries[0]["missing"] == {"streams": "the host has none"} and {*entries[0]["systems"]} == {"one by one"}
    (path,) = draw_loads({entry["case"]: entry for entry in entries}, tmp_path)
    assert path.name == "load-S2-poisson.svg" and "one by one" in path.read_text()
    asked.rates, asked.own = [], []
    assert len({entry["rate"] for entry in measure("S2", asked)}) == 4
