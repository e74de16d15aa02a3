"""Rows of graphs with symbolic sizes: where they lie, whether they are independent, and what keeps them from being padded."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from kitsune_mlir.frontend.aten import composites, traced_table
from kitsune_mlir.frontend.rows import rows_of
from kitsune_mlir.frontend.rows.axes import axis_of, expression, merged, regrouped

R = torch.randn
N, M = Dim("n", min=4, max=4096), Dim("m", min=4, max=4096)
FIRST = ({0: N},)


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def rows(function, args, dims=FIRST):
    """The rows of a function that is exported with symbolic sizes; and its graph."""
    exported = torch.export.export(Of(function), args, dynamic_shapes=(dims,))
    graph = exported.run_decompositions({**traced_table(late=True), **composites(False)}).graph
    return rows_of(graph), graph


def kinds(found):
    """What the symbols are: independent, paddable, or neither."""
    word = {(True, True): "independent", (False, True): "paddable", (False, False): "neither"}
    return [word[found.is_independent(s), found.is_paddable(s)] for s in found.symbols]


W, B = R(7, 5), R(5)
TABLE = R(20, 7)

INDEPENDENT = {
    "pointwise": lambda x: torch.relu(x) * 2 + 1,
    "product": lambda x: x @ W + B,
    "norm": lambda x: F.layer_norm(x, (7,)),
    "softmax": lambda x: torch.softmax(x, -1),
    "sum_of_columns": lambda x: x.sum(1),
    "column": lambda x: x[:, 3] + x[:, -1],
    "columns_joined": lambda x: torch.cat([x, x[:, 1:]], 1),
    "blocks": lambda x: x[:, :6].reshape(-1, 3) @ R(3, 2),
    "blocks_and_back": lambda x: torch.tanh(x[:, :6].reshape(-1, 3)).reshape(-1, 6),
    "columns_first": lambda x: torch.relu(x.t()).sum(0),
    "columns_first_flat": lambda x: torch.relu(x.t().reshape(-1)).view(7, -1).t(),
    "sorted_columns": lambda x: torch.sort(x, 1)[0],
    "cumulated_columns": lambda x: torch.cumsum(x, 1),
    "flipped_columns": lambda x: x.flip(1),
    "own_number": lambda x: x + torch.arange(x.shape[0]).unsqueeze(1),
    "ones": lambda x: torch.cat([x, torch.ones(x.shape[0], 1)], 1),
    "lookup": lambda x: TABLE[(x[:, 0].abs() * 3).long().clamp(max=19)],
    "outer": lambda x: x.unsqueeze(2) @ x.unsqueeze(1),
    "top": lambda x: torch.topk(x, 3)[0],
    "largest": lambda x: x.argmax(1),
}
PADDABLE = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x - x.mean(0),
    "mean_of_all": lambda x: x.mean(),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "attention": lambda x: torch.softmax(x @ x.t(), -1) @ x,
    "gram": lambda x: x.t() @ x,
    "cumulated": lambda x: torch.cumsum(x, 0),
    "first_row_for_all": lambda x: x + x[:1].expand(x.shape[0], 7),
    "one_row": lambda x: x * x[1],
    "last_row": lambda x: x * x[-1],
    "first_rows": lambda x: x[:2],
    "all_but_the_first": lambda x: x[1:],
    "all_but_the_last": lambda x: x[:-1],
    "scaled": lambda x: x / x.shape[0],
    "edges": lambda x: x[torch.arange(5)],
    "joined_rows": lambda x: torch.cat([x, TABLE]),
    "largest_row": lambda x: x.argmax(0),
    "variance": lambda x: torch.var(x, 0),
    "any": lambda x: (x > 0).any(0),
}
NEITHER = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "sort": lambda x: torch.sort(x, 0)[0],
    "random": lambda x: x + torch.rand(x.shape[0], 7),
    "pairs_of_rows": lambda x: torch.stack([x, x], 0).reshape(-1, 14),
    "spread": lambda x: x[::2],
    "first_of_parts": lambda x: x.t().reshape(-1)[3],
}


@pytest.mark.rotated(8)
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent(name):
    found, _ = rows(INDEPENDENT[name], (R(6, 7),))
    assert kinds(found) == ["independent"], list(map(str, found.crossings))


@pytest.mark.rotated(8)
@pytest.mark.parametrize("name", PADDABLE)
def test_rows_that_see_others_and_can_be_padded(name):
    found, _ = rows(PADDABLE[name], (R(6, 7),))
    assert kinds(found) == ["paddable"], list(map(str, found.crossings))


@pytest.mark.parametrize("name", NEITHER)
def test_what_must_not_match(name):
    found, _ = rows(NEITHER[name], (R(6, 7),))
    assert kinds(found) == ["neither"], list(map(str, found.crossings))


def test_reasons_have_operator_and_line():
    def normed(x):
        y = x * 2
        return y - y.mean(0)

    found, _ = rows(normed, (R(6, 7),))
    (crossing,) = found.crossings
    assert crossing.operator == "aten.mean.dim" and crossing.kind == "counts" and "reduces" in crossing.what
    assert crossing.location is not None and "test_rows.py" in crossing.location and crossing.location in str(crossing)


def test_where_rows_lie():
    found, graph = rows(lambda x: (x.reshape(-1, 5) @ W.t()[:5, :3], x.permute(2, 0, 1).reshape(5, -1)), (R(6, 4, 5),))
    (symbol,) = found.symbols
    nodes = {str(node.target): node for node in graph.nodes}
    (rows_axis, _) = found.axes[nodes["aten.mm.default"].name]
    assert rows_axis.block(symbol) == (1, 4) and rows_axis.is_prefix
    output = next(iter(graph.find_nodes(op="output"))).args[0]
    assert found.axes[output[1].name][1].block(symbol) == (1, 4)


def test_products_of_two_symbols():
    def tokens(x):
        return torch.tanh(x.reshape(-1, 8) @ R(8, 8)).view(x.shape) + x

    found, graph = rows(tokens, (R(6, 5, 8),), ({0: N, 1: M},))
    assert kinds(found) == ["independent", "independent"]
    merged_rows = found.axes[next(n.name for n in graph.nodes if "mm" in str(n.target))][0]
    assert len(merged_rows.factors) == 2 and merged_rows.symbols == set(found.symbols)

    def attends(x):
        return F.scaled_dot_product_attention(x, x, x)

    found, _ = rows(attends, (R(6, 5, 8),), ({0: N, 1: M},))
    assert kinds(found) == ["independent", "paddable"]


def test_nodes_and_edges():
    def message(x, edges):
        return torch.zeros_like(x).index_add(0, edges[1], torch.relu(x[edges[0]]))

    found, _ = rows(message, (R(6, 8), torch.randint(6, (2, 9))), ({0: N}, {1: M}))
    assert kinds(found) == ["paddable", "paddable"]
    assert {c.what for c in found.crossings} == {"it takes rows by an index", "it puts rows where an index says"}


def test_images():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    ).eval()
    found, _ = rows(model, (R(6, 3, 4, 4),))
    assert kinds(found) == ["independent"], list(map(str, found.crossings))


def test_samples_are_no_channels():
    """A convolution whose weights are made of rows mixes nothing that is known."""
    found, _ = rows(lambda x: F.conv1d(R(2, 7, 9), x.unsqueeze(2)), (R(6, 7),))
    assert kinds(found) == ["neither"]


def test_samples_that_a_convolution_sums_over():
    """As weights' gradients are made: of all channels, and of groups of them."""
    for groups in (1, 2):

        def gradient(x, groups=groups):
            each = x.unflatten(1, (groups, -1)).permute(2, 1, 0, 3).flatten(1, 2)
            return F.conv1d(each, torch.tanh(x).transpose(0, 1)[..., :3], groups=groups)

        found, _ = rows(gradient, (R(6, 4, 9),))
        assert kinds(found) == ["paddable"], list(map(str, found.crossings))
        assert "it sums products over rows" in {c.what for c in found.crossings}
    found, _ = rows(lambda x: F.conv1d(x.transpose(0, 1), x.transpose(0, 1).flip(1)[..., :3]), (R(6, 4, 9),))
    assert kinds(found) == ["neither"]


def test_bags():
    bag = nn.EmbeddingBag(20, 7, mode="mean")
    found, _ = rows(bag, (torch.randint(20, (6, 4)),))
    assert kinds(found) == ["independent"], list(map(str, found.crossings))
    found, _ = rows(bag, (torch.randint(20, (24,)), torch.arange(0, 24, 4)), ({0: N}, None))
    assert kinds(found) == ["neither"]


def test_factors():
    s = torch.export.export(Of(torch.relu), (R(6, 7),), dynamic_shapes=(FIRST,))
    n = expression(next(iter(s.graph.nodes)).meta["val"].shape[0])
    assert axis_of(4 * n).factors == (n, 4) and axis_of(n + 1).factors == (n + 1,)
    assert [a.factors for a in regrouped([axis_of(n), axis_of(expression(12))], [4 * n, expression(3)])] == [(n, 4), (3,)]
    assert merged([expression(2), expression(3), n]).block(str(n)) == (6, 1)
    assert not merged([expression(2), n]).is_prefix
