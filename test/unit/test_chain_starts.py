"""Sums of a chain that start from what other tasks make: nothing of it is read before the task's waits are over."""

import pytest
import torch
from torch import nn
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.wide import consumer as chain_wide
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.lower import replace_program
from kitsune_mlir.dialects.tile_reader import program_functions
from test.programs.compiled import planned
from test.unit.test_chain_engine import Normalised, WideEdges, tiles, wide_edges


class Joined(WideEdges):
    """Edges with the rows of both their nodes: the nodes are multiplied first, and sums start from rows of these products."""

    def __init__(self) -> None:
        super().__init__(512)
        self.first = nn.Linear(3 * 512, 512)

    def forward(self, edges, one, other, source, target):
        hidden = torch.relu(self.first(torch.cat([edges, one[source], other[target]], 1)))
        return edges + self.norm(self.layers(hidden))


def polls(text: str) -> int:
    """How often the kernel of a tile program waits for a barrier."""
    module = ir.Module.parse(text)
    emitted = replace_program(program_functions(module.operation)[0], KernelOptions())
    assert emitted.op is not None
    return str(module).count("mbarrier.try_wait.parity")


def polls_without(monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    """The same if nobody waited for what sums start from."""
    with monkeypatch.context() as patch:
        patch.setattr(chain_wide.Consumer, "_wait_for_others", lambda *_: None)
        return polls(text)


def test_sums_that_start_from_products_of_other_tasks_wait_first(context, monkeypatch) -> None:
    values = [torch.zeros(count, 512, dtype=torch.bfloat16) for count in (61_440, 10_242, 10_242)]
    args = (*values, *(torch.zeros(61_440, dtype=torch.int64) for _ in range(2)))
    model = Joined().to(torch.bfloat16)
    text = planned(model, *args, schedule="temporal").ir("tiles")
    assert polls(text) > polls_without(monkeypatch, text)


def test_sums_that_start_from_rows_of_an_input_do_not(context, monkeypatch) -> None:
    model, args = wide_edges(20_000, 512)
    text = tiles(model, *args)
    assert polls(text) == polls_without(monkeypatch, text) > 0


def test_sums_that_start_from_a_bias_do_not(context, monkeypatch) -> None:
    text = tiles(Normalised(512), torch.randn(20_000, 512))
    assert polls(text) == polls_without(monkeypatch, text) > 0
