"""Forecasts of an engine: its order of requests on a clock that only counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.requests import Queue
from kitsune_mlir.serving.simulate import simulate

FLAT = ([1, 32], [100e-6, 160e-6])


def queue(exclusive: bool = False) -> Queue:
    return Queue(64, 32, exclusive, CostModel([*FLAT[0]], [*FLAT[1]]))


def test_without_load_a_request_takes_what_its_launch_does() -> None:
    found = simulate([queue()], 10.0, 2000)
    assert found.p50 == pytest.approx(100e-6, rel=0.01) and found.launches > 1990 and found.expired == 0


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_nobody_waits_for_company_where_launches_keep_up(share: float) -> None:
    peak = 32 / 160e-6
    found = simulate([queue()], share * peak, 20_000, deadline=0.002)
    assert found.p99 < 2.2 * 160e-6 and found.in_time == 20_000 and not found.refused  # a launch that runs, and one's own


def test_beyond_what_launches_do() -> None:
    peak = 32 / 160e-6
    found = simulate([queue()], 2 * peak, 20_000, deadline=0.002)
    assert found.refused + found.expired + len(found.latencies) == 20_000 and found.refused > 9_000 and found.expired < 100
    assert 0.0017 < found.p99 < 0.002  # what is taken in is answered in time
    slower = simulate([queue()], 2 * peak, 20_000, deadline=0.002, overhead=5e-6)
    assert len(slower.latencies) < 0.6 * len(found.latencies)


def test_models_that_change_their_weights_come_once_in_a_launch() -> None:
    one = Queue(1, 32, True, CostModel([*FLAT[0]], [*FLAT[1]]))
    assert simulate([one], 1e6, 500).launches == 500
    assert simulate([queue()], 1e6, 500).launches < 40


def test_an_engine_stays_as_it_is() -> None:
    program = kitsune_mlir.compile(nn.Linear(4, 3).eval(), (torch.randn(2, 4),), target="host")
    with kitsune_mlir.serve([program], limit=8) as engine:
        before = engine.stats()
        first, again = (engine.forecast(1000.0, count=300, seed=3) for _ in range(2))
        assert first == again and len(first.latencies) == 300 and engine.stats() == before
        with pytest.raises(ArgumentError, match="not 0"):
            engine.forecast(0)
