"""Recurrent layers beside cuDNN's: LSTM, GRU and plain RNN of 256 to 1024 units, batch 1 to 64, 32 to 512 steps."""

from __future__ import annotations

import functools

import torch

from bench.breadth.sequence import Recurrent
from bench.case import DTYPES, BenchCase, Inputs
from bench.models import Maker, default_dtype

__all__ = ["recurrent"]

UNITS, BATCHES = (256, 512, 1024), (1, 8, 64)


def _made(
    kind: str, units: int, batch: int, steps: int, layers: int, both: bool, dtype: str, device: str, values: bool
) -> Inputs:
    """Weights as PyTorch makes them: larger ones make states that do not forget rounding errors."""
    torch.manual_seed(0)
    with default_dtype(DTYPES[dtype]), torch.device(device):
        model = Recurrent(kind, units, units, num_layers=layers, bidirectional=both)
    x = Maker(DTYPES[dtype], device, values).normal(batch, steps, units)
    return model.eval().requires_grad_(False), (x,)


def _case(
    kind: str, units: int, batch: int, steps: int = 128, layers: int = 1, dtype: str = "bf16", both: bool = False
) -> BenchCase:
    name = f"{kind.lower()}_{'both_ways_' if both else ''}{layers}x{units}_b{batch}_t{steps}"
    name += "" if dtype == "bf16" else f"_{dtype}"
    make = functools.partial(_made, kind, units, batch, steps, layers, both, dtype)
    return BenchCase(name, "recurrent", make, dtype, goal=1.0, by_eager=True)


def recurrent() -> list[BenchCase]:
    """One layer of each width and batch, and from there more layers, other cells, other lengths, f32, both directions."""
    return [
        *(_case("LSTM", units, batch) for units in UNITS for batch in BATCHES),
        *(_case("LSTM", units, batch, layers=2) for units in (256, 1024) for batch in (1, 64)),
        *(_case("LSTM", units, batch, 32) for units in (256, 1024) for batch in (1, 64)),
        *(_case("LSTM", units, batch, 512) for units in (512, 1024) for batch in (1, 64)),
        *(_case("GRU", units, batch) for units in UNITS for batch in (1, 64)),
        _case("GRU", 512, 8, 512, layers=2),
        *(_case("RNN", units, batch) for units in (256, 1024) for batch in (1, 64)),
        *(_case("LSTM", units, batch, dtype="f32") for units, batch in ((512, 1), (512, 64), (1024, 8))),
        _case("GRU", 256, 8, dtype="f32"),
        _case("LSTM", 512, 8, both=True),
        _case("GRU", 1024, 64, both=True),
        _case("LSTM", 650, 20, 35, layers=2),
    ]
