"""Graphs whose sizes change, on tensors that are larger: everything as eager's, whatever stands behind valid rows.

What is compiled here is PyTorch's own graph of the larger size, so that many functions and sizes can be tried.
"""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo import counted
from kitsune_mlir.dynamo.above_autograd import composites_replaced
from test.programs.watched import Watched, same, sizes

pytestmark = pytest.mark.usefixtures("drawn_today")
R = torch.randn


W, TABLE = R(7, 5), R(20, 7)
FUNCTIONS = {
    "mlp": lambda x: F.layer_norm(torch.relu(x @ W), (5,)),
    "columns_first": lambda x: torch.tanh(x.t()),
    "flat": lambda x: torch.tanh(x).reshape(-1),
    "several": lambda x: (x + 1, x.sum(1), torch.relu(x).t(), x.shape[0] * 2),
    "mean": lambda x: x - x.mean(0),
    "sums": lambda x: (x.sum(0), x.sum(), x.amax(0), x.amin(), x.prod(0), (x > 0).any(0), (x > 0).all(), x.mean()),
    "places": lambda x: (x.argmax(0), x.max(0), x.min(1)),
    "var": lambda x: (x.var(0), torch.std_mean(x)),
    "attention": lambda x: torch.softmax(x @ x.t(), -1) @ x,
    "normed": lambda x: F.batch_norm(x, None, None, training=True),
    "gram": lambda x: x.t() @ x,
    "cumulated": lambda x: torch.cumsum(x, 0),
    "one_row": lambda x: x * x[1],
    "last_row": lambda x: (x * x[-1], x[-1:] + 1, x[-2:] * 2),
    "all_but_some": lambda x: (x[1:] * 2, x[:-1] * 3),
    "scaled": lambda x: (x / x.shape[0], x * (1 / (x.shape[0] + 1)), x.long() // x.shape[0], torch.full((3,), x.shape[0])),
    "joined": lambda x: torch.cat([x, TABLE, x * 2]),
    "in_front": lambda x: torch.cat([TABLE, x]).sum(0),
    "flipped": lambda x: x.flip(0),
    "sorted": lambda x: torch.sort(x, 0)[0],
    "spread": lambda x: x[::2] + 1,
    "lookup": lambda x: TABLE[(torch.nan_to_num(x[:, 0]).abs() * 3).long().clamp(max=19)],
    "positions": lambda x: x + TABLE[torch.arange(x.shape[0]) % 20],
    "some_positions": lambda x: x[:, None] + TABLE[: x.shape[0], :][None, :2],
    "from_the_end": lambda x: x[torch.tensor([0, -1, 1, -2])],
    "put": lambda x: torch.zeros(20, 7).index_add(0, torch.arange(x.shape[0]) % 20, x),
    "copied": lambda x: torch.zeros(x.shape[0] + 3, 7).index_copy(0, torch.arange(x.shape[0]) + 1, x),
    "put_inside": lambda x: torch.zeros(3, x.shape[0] + 4, 7).index_copy(1, torch.arange(x.shape[0]) + 2, x.expand(3, -1, -1)),
    "set_inside": lambda x: torch.zeros(x.shape[0], 9).scatter(1, x.argsort(1), x),
    "added_inside": lambda x: torch.zeros(9, 7).scatter_add(0, (torch.nan_to_num(x).abs() * 2).long().clamp(max=8), x),
    "most": lambda x: torch.zeros(9, 7).scatter_reduce(0, (torch.nan_to_num(x).abs()).long().clamp(max=8), x, "amax"),
    "put_by_two": lambda x: torch.zeros(5, 9).index_put(
        (torch.arange(x.shape[0]) % 5, torch.arange(x.shape[0]) % 9), torch.nan_to_num(x[:, 0]), accumulate=True
    ),
    "triangle": lambda x: torch.tril(x @ x.t()),
    "views": lambda x: (x.view(-1), x[:, 1], x.t()),
    "views_of_one": lambda x: (lambda y: (y, y.view(-1), y[:, 2]))(x * 2),
    "unequal": lambda x: x.unsqueeze(0) - x.unsqueeze(1),
    "repeated": lambda x: x.repeat(3, 1) + 1,
    "each_repeated": lambda x: x.repeat_interleave(3, 0) + 1,
    "grouped": lambda x: x[:, :6].reshape(-1, 3).sum(1),
    "made": lambda x: torch.eye(x.shape[0]) @ torch.ones(x.shape[0], 2),
    "padded": lambda x: F.pad(x, (1, 2)),
    "padded_rows": lambda x: F.pad(x, (0, 0, 1, 2)),
    "stacked": lambda x: torch.stack([x, x * 2], 1),
    "stacked_outside": lambda x: torch.stack([x, x * 2]).reshape(-1, 7),
}


@pytest.mark.rotated(9)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    torch._dynamo.reset()
    backend = Watched()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in sizes(6, least=4):
        x = R(n, 7)
        x[0, 0] = float("nan") if n % 3 == 0 else x[0, 0]
        with torch.no_grad():
            same(compiled(x), function(x))
    if name in ("flipped", "sorted"):
        assert any("only" in made for made in backend.made) or any("x.size()[0] =" in made for made in backend.made)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros(20, x.shape[1]).index_add(0, torch.arange(x.shape[0]) % 20, x),
        lambda x: torch.ones(9, x.shape[1]).scatter_add(0, (x.abs() * 2).long().clamp(max=8), x),
        lambda x: torch.zeros(x.shape[1], 9).index_add(1, torch.arange(x.shape[0]) % 9, x.t()),
    ],
)
def test_rows_that_count_for_nothing_go_to_different_places(function, monkeypatch):
    """Where code adds all rows: atomics of those that are not valid would wait for each other in one place."""
    torch._dynamo.reset()
    spread = []

    def watched(index, dim, valid, size):
        spread.append(dim)
        return place(index, dim, valid, size)

    place = counted._spread
    assert place(torch.tensor([5, 4, 0, 0, 0, 0]), 0, torch.arange(6) < 2, 3).tolist() == [5, 4, 2, 0, 1, 2]
    assert place(torch.zeros(2, 3, dtype=torch.int32), 1, torch.arange(3) < 1, 9).tolist() == [[0, 1, 2]] * 2
    monkeypatch.setattr(counted, "_counted_rows", lambda *given: None)
    monkeypatch.setattr(counted, "_spread", watched)
    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    for n in sizes(3, least=4):
        same(compiled(x := R(n, 12)), function(x))
    assert spread


@pytest.mark.parametrize("name", ["mlp", "mean", "sums", "attention", "gram", "scaled", "normed"])
def test_bf16(name):
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(lambda x, *_: function(x), backend=Watched(), dynamic=True)
    global W
    wide, before = W.double(), W
    for n in sizes(3, least=4, most=400):
        x = R(n, 7).bfloat16()
        W = before.bfloat16()
        got, eager = tree_leaves(compiled(x)), tree_leaves(function(x))
        W = wide
        want = tree_leaves(function(x.double()))
        W = before
        for g, e, w in zip(got, eager, want, strict=True):
            if g.dtype == torch.bfloat16:
                error, own = (g.double() - w).abs().max(), (e.double() - w).abs().max()
                assert error <= 2 * own + 1e-2 * w.abs().max(), (name, n, error, own)
            assert g.dtype == e.dtype and g.shape == e.shape


def test_scores_of_attention_are_masked_once():
    """What a softmax makes of them is zero behind the last valid key, as keys and values are that were joined."""
    torch._dynamo.reset()
    backend, kept = Watched(), []
    backend._kept = lambda graph, *_: kept.append(graph) or graph.forward

    def function(q, k, v, new):
        k, v = torch.cat([k, new], 2), torch.cat([v, 1 / new], 2)
        return F.scaled_dot_product_attention(q, k, v), k, v

    compiled = torch.compile(function, backend=backend)
    with torch.no_grad(), composites_replaced(training=False):
        for n in (7, 9, 2, 30):
            k, v = R(1, 2, n, 8), R(1, 2, n, 8)
            torch._dynamo.mark_dynamic(k, 2), torch._dynamo.mark_dynamic(v, 2)
            args = R(1, 2, 1, 8), k, v, R(1, 2, 1, 8)
            same(compiled(*args), function(*args))
    (graph,) = kept
    shapes_of = [n.meta["val"].shape for n in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.where.self)]
    assert [len(shape) for shape in shapes_of].count(3) == 0, shapes_of  # factors of products
    assert [shape[-2] for shape in shapes_of].count(1) == 1, shapes_of  # scores
    # torch-mlir has no lowering for it where tensors are on a GPU.
    assert not graph.graph.find_nodes(op="call_function", target=torch.ops.aten.scalar_tensor.default)


def test_softmaxes_of_the_same_scores_along_two_dimensions():
    """As where two images are matched: what one has masked is not what the other one needs."""
    torch._dynamo.reset()

    def softmax(x, dim):
        weights = torch.exp(x - x.amax(dim, keepdim=True))
        return weights / weights.sum(dim, keepdim=True)

    def function(a, b):
        scores = a @ b.T
        rows, columns = softmax(scores, 1), softmax(scores, 0)
        return (rows * columns).sum(1), columns.sum(1), rows @ b, columns.T @ a

    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    with torch.no_grad():
        for n, m in ((7, 9), (9, 30), (30, 5), (2, 64)):
            args = R(n, 8), R(m, 8)
            same(compiled(*args), function(*args))


def test_pytorchs_own_attention_has_each_length_for_itself():
    """It may draw random numbers, and what it does to rows is not known."""
    torch._dynamo.reset()
    backend = Watched()
    compiled = torch.compile(F.scaled_dot_product_attention, backend=backend)
    with torch.no_grad():
        for n in (7, 9, 2):
            k, v = R(1, 2, n, 8), R(1, 2, n, 8)
            torch._dynamo.mark_dynamic(k, 2), torch._dynamo.mark_dynamic(v, 2)
            args = R(1, 2, 1, 8), k, v
            same(compiled(*args), F.scaled_dot_product_attention(*args))


def test_strides_of_dimensions_of_one_element_are_eagers():
    """Dynamo compiles again where a cache of one head came back with others."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, new: torch.cat([x, new], 2), backend=Watched(), dynamic=True)
    with torch.no_grad():
        for n in (7, 9, 3):
            x, new = R(1, 1, n, 8), R(1, 1, 2, 8)
            assert compiled(x, new).stride() == torch.cat([x, new], 2).stride()


def test_sizes_of_inner_dimensions():
    def function(x, y):
        return torch.relu(x) + y.t(), torch.softmax(x, -1), x.sum(1), x.reshape(-1)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    for n in sizes(6):
        x, y = R(5, n + 1), R(n + 1, 5)
        same(compiled(x, y), function(x, y))


def test_products_of_two_symbols():
    def function(x):
        b, t, c = x.shape
        y = torch.tanh(x.reshape(b * t, c)) @ torch.ones(c, 3)
        return y, y.view(b, t, 3), y.view(b, t, 3).mean(1), y.sum(0), y.view(b, t, 3).transpose(0, 1).reshape(b * t, 3) + 1

    torch._dynamo.reset()
    backend = Watched()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in sizes(8):
        x = R(n, random.randint(2, 40), 6)
        same(compiled(x), function(x))
    assert len(backend.made) <= 8, backend.made  # four sizes of one symbol by two of the other


def test_nodes_and_edges():
    def function(x, edges, weights):
        source, target = edges
        message = torch.relu(x[source]) * weights.unsqueeze(1)
        total = torch.zeros_like(x).index_add(0, target, message)
        most = torch.full_like(x, -9.0).scatter_reduce(0, target.unsqueeze(1).expand_as(message), message, "amax")
        degree = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(weights))
        return total / degree.clamp(min=1).unsqueeze(1), most

    torch._dynamo.reset()
    backend = Watched()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in sizes(12):
        edges = random.randint(2, 600)
        args = R(n, 8), torch.randint(n, (2, edges)), R(edges)
        same(compiled(*args), function(*args))
    assert len(backend.made) <= 3 * 2, backend.made  # of nodes: one, which is a graph of its own, 64, 512; of edges: 512, 4096


def test_gradients():
    torch._dynamo.reset()
    backend = Watched()
    model = nn.Sequential(nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    compiled = torch.compile(lambda x: (model(x) ** 2).mean(), backend=backend, dynamic=True)
    for n in sizes(8):
        x, y = (R(n, 7).requires_grad_(),) * 2
        compiled(x).backward()
        got = [x.grad, *(p.grad for p in model.parameters())]
        x.grad = None
        model.zero_grad()
        (model(y) ** 2).mean().backward()
        same(got, [y.grad, *(p.grad for p in model.parameters())])
        model.zero_grad()
    assert not any("only" in made for made in backend.made), backend.made


def test_writes_to_inputs_and_aliases():
    def function(x, total, count):
        x.mul_(2)
        total.add_(x.sum(0))
        count += x.shape[0]
        return x.view(-1), x + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    totals = [[torch.zeros(7), torch.zeros([], dtype=torch.int64)] for _ in range(2)]
    for n in sizes(5):
        x = R(n, 7)
        y = x.clone()
        got, want = compiled(x, *totals[0]), function(y, *totals[1])
        same((got, x, totals[0]), (want, y, totals[1]))
        got[0][0] = 5.0
        assert x[0, 0] == 5.0


def test_outputs_that_alias_each_other():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (lambda y: (y, y.t()))(x * 2), backend=Watched(), dynamic=True)
    for n in (5, 9):
        one, other = compiled(R(n, 7))
        one[1, 2] = 7.0
        assert other[2, 1] == 7.0
        before = one.clone()
        compiled(R(n, 7))
        assert torch.equal(one, before)  # what was handed out is the caller's


def test_inputs_of_other_strides():
    def function(x):
        return torch.relu(x).sum(1), x + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    for n in sizes(4):
        for x in (R(n, 7), R(7, n).t(), R(n, 20)[:, 3:10], R(2 * n, 7)[::2], R(1, 7).expand(n, 7)):
            same(compiled(x), function(x))


def test_integers():
    def function(x, k):
        return x * k + k, x[:, :k], torch.arange(k) * 2

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=Watched(), dynamic=True)
    for n in sizes(4):
        for k in (2, 3, 5):
            x = R(n, 7)
            same(compiled(x, k), function(x, k))
