"""torch.compile(backend="kitsune") at 200 random sizes: few programs, and everything as eager's."""

import copy
import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kitsune_mlir
from test.rotation import in_turn

pytestmark = pytest.mark.usefixtures("drawn_today")
R = torch.randn


class Layer(nn.Module):
    """One of a transformer."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.inner(self.norms[0](x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.outer(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.wide(self.norms[1](x))


class Recommender(nn.Module):
    """DLRM."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.bottom, self.top = nn.Linear(13, 8), nn.Linear(14, 1)
        rows, columns = torch.triu_indices(4, 4, 1)
        self.pairs: torch.Tensor
        self.register_buffer("pairs", rows * 4 + columns)

    def forward(self, dense, indices):
        x = torch.relu(self.bottom(dense))
        every = torch.stack([x, *(table(indices[:, n]) for n, table in enumerate(self.tables))], 1)
        products = (every @ every.transpose(1, 2)).flatten(1)[:, self.pairs]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class Graph(nn.Module):
    """A step of message passing."""

    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x, edges):
        source, target = edges
        sent = torch.relu(self.message(torch.cat([x[source], x[target]], 1)))
        total = torch.zeros_like(x).index_add(0, target, sent)
        return torch.relu(self.update(torch.cat([x, total], 1)))


def mlp():
    return nn.Sequential(nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3), nn.Softmax(-1))


CASES = {
    "mlp": (mlp, lambda n: (R(n, 7),), [(0, 0)], 4096),
    "transformer": (Layer, lambda n: (R(n, 9, 16),), [(0, 0)], 400),
    "transformer, tokens too": (Layer, lambda n: (R(2 + n % 40, 2 + n // 10, 16),), [(0, 0), (0, 1)], 700),
    "dlrm": (Recommender, lambda n: (R(n, 13), torch.randint(50, (n, 3, 4))), [(0, 0), (1, 0)], 1000),
    "graph": (Graph, lambda n: (R(n, 8), torch.randint(n, (2, random.randint(2, 4 * n)))), [(0, 0), (1, 1)], 1000),
}


@pytest.mark.parametrize("name, dtype", in_turn([*itertools.product(CASES, [torch.float32, torch.bfloat16])], 2))
def test_random_sizes(name, dtype):
    make, inputs, dims, most = CASES[name]
    model = make().to(dtype)
    wide = copy.deepcopy(model).double()
    torch._dynamo.reset()
    graphs = []
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend

    asked = options_of_backend(None, {"require_full": True})
    compiled = torch.compile(model, backend=lambda gm, given: compiled_graph(gm, given, *asked, keep=graphs.append))
    count = 200 if dtype == torch.float32 else 20
    known = [2, 7, 129, 1000 if most >= 1000 else most]
    with torch.no_grad():
        for n in [*known, *(random.randint(2, most) for _ in range(count - len(known)))]:
            args = [a.to(dtype) if a.is_floating_point() else a for a in inputs(n)]
            if n == 2:
                for number, dim in dims:
                    torch._dynamo.mark_dynamic(args[number], dim)
            got, eager = compiled(*args), model(*args)
            assert got.shape == eager.shape and got.stride() == eager.stride() and got.dtype == dtype
            want = wide(*[a.double() if a.is_floating_point() else a for a in args])
            error, own = (got.double() - want).abs().max(), (eager.double() - want).abs().max()
            assert error <= 2 * own + (1e-6 if dtype == torch.float32 else 1e-2), (n, error, own)
    assert len(graphs) <= 3 + (name != "mlp"), [graph.sizes for graph in graphs]
    assert all(len(graph.programs) == 1 for graph in graphs)


def test_explain_says_which_way_sizes_went():
    def function(x):
        return torch.sort(torch.relu(x), 0)[0]

    torch._dynamo.reset()
    x = R(9, 5)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        text = str(kitsune_mlir.explain(function, (x,)))
    assert "x.size()[0] = 9 only" in text and "aten.sort" in text and "test_dynamo_sizes.py" in text
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(y := R(9, 5), 0, min=2, max=60)
    with torch.no_grad():
        assert "for x.size()[0] ≤ 60" in str(kitsune_mlir.explain(lambda x: torch.relu(x), (y,)))


def test_islands_do_not_see_what_lies_behind_valid_rows():
    """Some processors' products of an odd number of 16-bit elements read the next row: logarithms of zeros, in padding."""
    torch._dynamo.reset()
    weight = R(7, 5).bfloat16()

    def function(x):
        return torch.relu(torch.log(x.abs()) @ weight) + 1

    options = {"run_in_torch": ["aten.mm.default"], "min_part": 1, "buckets": (64,)}
    compiled = torch.compile(function, backend="kitsune", options=options, dynamic=True)
    for n in (3, 64, 9):
        x = R(n, 7).bfloat16()
        want = torch.relu(torch.log(x.double().abs()) @ weight.double()) + 1
        torch.testing.assert_close(compiled(x).double(), want, atol=0.3, rtol=2e-2)
