"""Layers that are alike are taken apart once: the graph with one node for each does what the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.dynamo import outlined as outlined_module
from kitsune_mlir.dynamo.outlined import outlined
from kitsune_mlir.dynamo.partition import partition
from kitsune_mlir.dynamo.repeats import Repeat, repeats
from kitsune_mlir.dynamo.torch_api import traced_whole, tracing_lock
from kitsune_mlir.frontend.export import without_code


def test_where_a_sequence_repeats_itself() -> None:
    layer = "abcdefghijkl"
    assert repeats("xy" + 3 * layer + "zw", 1) == [Repeat(2, 2 + 3 * 12, 12)]
    assert repeats(3 * layer + layer[:5], 1) == [Repeat(0, 36, 12)]
    assert repeats("xy" + 2 * layer, 13) == []
    assert repeats("", 1) == repeats("abc", 1) == repeats("abcdefghijklmnop", 1) == []


def test_stretches_of_other_layers_are_found_beside_each_other() -> None:
    up, down = "abcdefghijkl", "mnopqrstuvwx"
    assert repeats(3 * up + "-" + 2 * down + "+", 1) == [Repeat(0, 36, 12), Repeat(37, 61, 12)]


def shortened(function: Callable[..., Any], *given: Tensor) -> list[int]:
    """Check that the outlined graph does what the whole one does, to outputs and inputs; how many nodes stand for each."""
    with tracing_lock:
        graph = traced_whole(function, given)
        short, held = outlined(graph)
        for one in (graph, short):
            one.recompile()
        copies = [[value.clone() for value in given] for _ in range(2)]
        with torch.no_grad():
            results = [one(*some) for one, some in zip((graph, short), copies, strict=True)]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(copies[1], copies[0], rtol=0, atol=0)
    calls = [node.args[1] for node in short.graph.find_nodes(op="call_function", target=torch.ops.kitsune.repeated.default)]
    return [calls.count(repeated.number) for repeated in held]


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlined_module, "LEAST", 10)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    y = x @ weight.t()
    y = y.relu() * 2 + y.sigmoid() / 3 - y.tanh().exp()
    return x + y


def test_layers_of_other_weights() -> None:
    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        for weight in weights:
            x = layer(x, weight)
        return [x.sum()]

    weights = [torch.randn(7, 7) for _ in range(5)]
    assert shortened(run, torch.randn(3, 7), *weights) in ([5], [4])
    assert shortened(run, torch.randn(3, 7), *weights[:1]) == []


def test_layers_of_other_constants_or_widths_are_not_alike() -> None:
    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        for n, weight in enumerate(weights):
            x = layer(x, weight) * (n + 2)
        return [x]

    assert shortened(run, torch.randn(3, 7), *[torch.randn(7, 7) for _ in range(5)]) == []


def test_what_layers_hand_to_later_ones() -> None:
    """As a backward pass takes what the forward pass has left: other results of a layer than the next one takes."""

    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        left = []
        for weight in weights:
            x = layer(x, weight)
            left.append((x.cos(), weight.t()))
        for y, turned in reversed(left):
            x = (x * y).sin() @ turned + y.exp() * 3 - y.sigmoid().tanh() / 7
        return [x]

    assert len(shortened(run, torch.randn(3, 7), *[torch.randn(7, 7) for _ in range(6)])) == 2


def test_graphs_have_no_code_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when they are cut into parts: of whole steps it is long."""
    written: list[Any] = []
    write = torch.fx.Graph.python_code
    monkeypatch.setattr(
        torch.fx.Graph, "python_code", lambda graph, *args, **how: written.append(graph) or write(graph, *args, **how)
    )

    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        for weight in weights:
            x = layer(x, weight)
        return [x]

    with tracing_lock, without_code():
        graph = traced_whole(run, [torch.randn(3, 7), *[torch.randn(7, 7) for _ in range(5)]])
        short, held = outlined(graph)
        (part,) = partition(graph, lambda node: True).parts.values()
    assert held and not any(graph in written for graph in (short.graph, part.graph))
    with torch.no_grad():
        assert part(*[torch.zeros(7, 7) for _ in range(6)])[0].shape == (7, 7)


def test_inputs_that_layers_change() -> None:
    def run(x: Tensor, *buffers: Tensor) -> list[Tensor]:
        for buffer in buffers:
            x = layer(x, buffer)
            buffer[0].add_(x.mean(0))
            x = x * buffer
        return [x]

    assert sum(shortened(run, torch.randn(7, 7), *[torch.randn(7, 7) for _ in range(5)])) >= 4


def test_a_view_of_what_is_changed_before_it_is_read_stays_a_view() -> None:
    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        turned = []
        for weight in weights:
            x = layer(x, weight)
            turned.append(weight.t())
        for weight in weights:
            weight.mul_(2)
        return [x, *(one + 1 for one in turned)]

    assert shortened(run, torch.randn(3, 7), *[torch.randn(7, 7) for _ in range(5)]) == []


def test_results_that_are_looks_at_the_same_memory_stay_so() -> None:
    def run(x: Tensor, *weights: Tensor) -> list[Tensor]:
        rows = []
        for weight in weights:
            x = layer(x, weight)
            rows.append((x, x[0]))
        for whole, row in rows:
            row.zero_()
            x = x + whole
        return [x]

    assert shortened(run, torch.randn(3, 7), *[torch.randn(7, 7) for _ in range(5)]) == []


class Layers(nn.Module):
    """Residual layers with what changes its buffers while it is trained."""

    def __init__(self, depth: int):
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(6, 12) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(12, 6) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for wide, narrow, norm in zip(self.wide, self.narrow, self.norms, strict=True):
            x = x + narrow(F.gelu(wide(norm(x))))
        return x


def test_a_step_has_the_same_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same nodes in the same order, of the same tensors; only those of one layer were taken apart."""
    graphs: list[list[Any]] = []
    counts: list[int] = []

    def compiled(graph: Any, *_: Any) -> Any:
        number = {node: n for n, node in enumerate(graph.graph.nodes)}
        graphs.append(
            [
                (node.op, str(node.target), str(torch.fx.map_arg(node.args, lambda one: f"%{number[one]}")), layout(node))
                for node in graph.graph.nodes
            ]
        )
        return graph.forward

    def layout(node: Any) -> Any:
        value = node.meta.get("val")
        return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else None

    def counted(graph: Any) -> Any:
        short, held = outlined(graph)
        counts.append(len(held))
        return short, held

    monkeypatch.setattr("kitsune_mlir.dynamo.compile.compile_graph", compiled)
    results = []
    for find in (lambda graph: (graph, []), counted):
        monkeypatch.setattr("kitsune_mlir.dynamo.outlined.outlined", find)
        torch.manual_seed(0)
        model = Layers(5)
        step = kitsune_mlir.train_step(model, F.mse_loss, torch.optim.AdamW(model.parameters()))
        losses = [step(torch.randn(9, 6), torch.randn(9, 6)) for _ in range(2)]
        results.append([*losses, *model.state_dict().values()])
    assert counts == [2]
    assert graphs[0] == graphs[1]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
