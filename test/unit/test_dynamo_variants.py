"""Variants of a program for fewer rows, which GPUs have: compiled with it, and picked by the call's sizes."""

from __future__ import annotations

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.dynamo import buckets, shapes
from test.programs.watched import Watched, same

R = torch.randn
W = R(7, 5)


@pytest.fixture(autouse=True)
def varied(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(shapes, "Buckets", lambda *given: buckets.Buckets(*given[:-1], True))


def test_a_call_takes_the_smallest_that_holds_it():
    torch._dynamo.reset()
    backend = Watched()
    compiled = torch.compile(lambda x: torch.softmax(x @ W, -1), backend=backend, dynamic=True)
    compiled(R(50, 7))
    used = []
    for n in (1000, 3, 9, 33, 129, 600, 4000, 4096, 2):
        x = R(n, 7)
        same(compiled(x), torch.softmax(x @ W, -1))
        (graph,) = backend.graphs
        used.append(graph._fits[n, 7, 5].sizes)
    held = [sizes[graph.known.names[0]] for sizes in used]
    assert all(n <= size for n, size in zip((1000, 3, 9, 33, 129, 600, 4000, 4096, 2), held, strict=True))
    assert held[1] == held[-1] == 8 and held[2] == 16 and held[3] <= 128 and held[4] <= 512
    assert len(backend.made) == len({*backend.made})  # nothing twice
    # Variants are no programs of their own as far as the most that are compiled goes.
    assert len(graph.known.larger) > shapes.MOST_PROGRAMS and not graph._is_full()


def test_a_graph_network_has_them_from_its_first_call_on():
    """Nodes and edges change if anything does; columns of indices, each of which is another table's, do not."""
    torch._dynamo.reset()
    backend = Watched()

    def model(nodes, edges, tables):
        source, target = edges
        sent = torch.tanh(nodes[source] @ W)
        return torch.zeros(len(nodes), 5).index_add(0, target, sent) + nodes[tables[:, 0]] @ W - nodes[tables[:, 1]] @ W

    compiled = torch.compile(model, backend=backend, dynamic=True)
    for count in (1000, 8, 9, 300, 999, 3):
        x = R(count, 7), torch.randint(0, count, (2, 3 * count + count // 2)), torch.randint(0, count, (count, 3))
        same(compiled(*x), model(*x))
    (graph,) = backend.graphs
    assert not graph.known.exact and len(graph.known.larger) - graph._variants == 2
    assert {sizes[2:] for sizes in graph.known.larger} == {(7, 3)}  # features and columns
    assert len(graph.known.larger) > 8


def test_they_are_saved_with_it(tmp_path):
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    program = kitsune_mlir.compile(model, (R(9, 8),), dynamic={0: {0: torch.export.Dim("n", max=64)}})
    assert len(program.programs) > 2
    program.save(tmp_path / "model.kit")
    again = kitsune_mlir.load(tmp_path / "model.kit")
    assert len(again.programs) == len(program.programs)
    for n in (1, 7, 8, 9, 33, 64):
        x = R(n, 8)
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=1e-5)
        assert torch.equal(again(x), program(x))
