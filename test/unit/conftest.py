"""What tests of several files share."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dynamo import report
from kitsune_mlir.dynamo.report import GraphReport
from test.programs.kept import KEPT
from test.rotation import turn


@pytest.fixture
def context() -> Iterator[ir.Context]:
    """An MLIR context with all dialects, current while the test runs; programs that `programs.kept` has parsed live as long."""
    with new_context() as made, ir.Location.unknown():
        yield made
        KEPT.clear()


@pytest.fixture
def without_scans() -> Iterator[None]:
    """No scan engine: a running sum is left to the engine that takes anything. Engines are asked in their order again after."""
    every = dict(ENGINES)
    del ENGINES["scan"]
    yield
    ENGINES.clear()
    ENGINES.update(every)


@pytest.fixture
def drawn_today(request: pytest.FixtureRequest) -> None:
    """Random numbers, PyTorch's too, are the same in each run of the test that day."""
    seed = zlib.crc32(f"{turn()} {request.node.name}".encode())
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[GraphReport]:
    """What became of the graphs that torch.compile hands over in the test, which begins with none compiled."""
    found: list[GraphReport] = []

    class Kept(report.GraphReport):
        def __init__(self, *given):
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(report, "GraphReport", Kept)
    torch._dynamo.reset()
    return found
