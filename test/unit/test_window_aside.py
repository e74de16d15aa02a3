"""Blocks whose capture cannot pay are left to PyTorch, and it is said."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.windows import balance, capture
from kitsune_mlir.windows.balance import SURE, Balance, Place


class Read(nn.Module):
    """Layers that read a value each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + 1
            x = x - 1 if x.sum() > 1e9 else x
        return x


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """No segment is, nor what blocks before have cost."""
    capture.forget()
    monkeypatch.setattr(balance, "_places", {})


class Piece:
    """A segment's entry."""

    def __init__(self, eager: float, least: float):
        self.captured, self.eager_seconds, self.least_seconds = 0.0, eager, least


def spent(*pieces: tuple[Piece, float], times: int = 1) -> str:
    own = Balance()
    for piece, seconds in pieces * times:
        own._spent += seconds
        own.segment(piece)  # type: ignore[arg-type]
    return own.loses()


def test_a_capture_loses_where_the_best_that_segments_may_do_does_not_make_up_for_it():
    assert spent((Piece(0.001, 0.0), 0.03)).startswith("capturing what takes PyTorch 1 ms took 30 ms of Python, and 0 at least")
    assert not spent((Piece(0.040, 0.0), 0.03))  # it may yet be compiled
    assert spent((Piece(0.040, 0.039), 0.03))
    assert not spent((Piece(0.001, 0.0), 0.019))  # too little is known
    assert not spent((Piece(float("inf"), 0.0), 0.03))  # it never ran in PyTorch
    assert not spent((Piece(float("inf"), 0.0), 0.5), (Piece(0.040, 0.0), 0.03))  # nor does that count for the others
    assert spent((Piece(0.040, 0.0), 0.03), (Piece(0.001, 0.0), 0.012), times=2)


def test_places_are_tried_again_later_and_later():
    place = Place("here")
    captured = []
    for _ in range(100):
        captured.append(not place.skip())
        if captured[-1]:
            place.ended("it loses")
    assert captured[:SURE] == [True] * SURE and captured.count(True) == SURE + 2
    place.ended("")
    assert not place.skip()


def test_the_rest_of_a_block_and_later_blocks_are_pytorchs(monkeypatch, caplog):
    monkeypatch.setattr(balance, "LEAST", 0.0)
    monkeypatch.setattr(balance, "STEP", -1.0)
    model, x = Read().eval(), torch.randn(3, 7)
    taken = []
    with torch.no_grad(), caplog.at_level(logging.WARNING, "kitsune_mlir.windows"):
        wanted = model(x)
        for _ in range(SURE + 2):
            with kitsune_mlir.window() as captured:
                found = [model(x) for _ in range(20)]
                kept = found[0] + 1  # of a call that was captured
            taken.append(captured.taken)
            assert all(torch.equal(one, wanted) for one in found) and torch.equal(kept, wanted + 1)
            assert "PyTorch ran the rest" in captured.explain()
    assert taken[0] < 200 and taken[SURE:] == [0, 0]
    assert len([record for record in caplog.records if "steps aside" in record.message]) == 1
    with torch.no_grad(), kitsune_mlir.window(after=1 << 30) as captured:  # to its end, whatever it costs
        model(x)
    assert captured.taken and not captured.aside


def test_blocks_that_are_over_before_they_are_judged_are_counted_too(monkeypatch):
    model, x, taken = Read().eval(), torch.randn(3, 7), []
    monkeypatch.setattr(balance, "LEAST", 0.0)
    monkeypatch.setattr(balance, "STEP", 1e9)
    with torch.no_grad():
        for _ in range(SURE + 3):
            with kitsune_mlir.window() as captured:
                model(x)
            taken.append(captured.taken)
    assert 0 not in taken[:SURE] and taken[-1] == 0
