"""`compile` for sizes that change: values as PyTorch's in float64, few programs, errors that name what is wrong."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import kitsune_mlir
from kitsune_mlir.dynamo import shapes
from kitsune_mlir.errors import ArgumentError, FrontendError

pytestmark = pytest.mark.usefixtures("drawn_today")
R = torch.randn


class Layer(nn.Module):
    """Returns a result, a view of its input and a number, and counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(16, 24), nn.LayerNorm(24)
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x, scale):
        self.total.add_(x.sum(0))
        return {"y": self.norm(torch.relu(self.inner(x))) * scale, "flat": x.view(-1), "rows": x.shape[0]}


class Graph(nn.Module):
    """Messages along edges are added at nodes."""

    def __init__(self):
        super().__init__()
        self.message = nn.Linear(8, 8)

    def forward(self, x, *, edges, weights):
        sent = self.message(x[edges[0]]) * weights[:, None]
        return torch.relu(x + torch.zeros_like(x).index_add(0, edges[1], sent))


@pytest.fixture(scope="module")
def layer():
    model = Layer().eval()
    return model, kitsune_mlir.compile(model, (R(9, 16), 2.0), dynamic={"x": {0: Dim("n", max=512)}})


def test_sizes_in_range(layer):
    model, program = layer
    for n in (1, 7, 129, 512, random.randint(2, 512)):
        wide, x = copy.deepcopy(model).double(), R(n, 16)
        want, got = wide(x.double(), 2.0), program(x, 2.0)
        assert got["rows"] == n and got["y"].stride() == want["y"].stride()
        assert got["flat"].data_ptr() == x.data_ptr() and got["flat"].shape == (16 * n,)
        torch.testing.assert_close(got["y"].double(), want["y"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model.total.double(), wide.total, atol=1e-4, rtol=1e-5)
    assert len(program.programs) <= 3
    assert "n: 1 to 512" in program.explain() and "1 to 512" in repr(program)


@pytest.mark.parametrize(
    ("x", "scale", "words"),
    [
        (lambda: R(513, 16), 2.0, r"input 'x' has 513 elements in dimension 0 \('n'\); the program is for 1 to 512"),
        (lambda: R(0, 16), 2.0, r"input 'x' has 0 elements in dimension 0 \('n'\); the program is for 1 to 512"),
        (lambda: R(5, 15), 2.0, "input 'x' has 15 elements in dimension 1, compiled for 16"),
        (lambda: R(5, 4, 4), 2.0, "input 'x' has 3 dimensions, compiled for 2"),
        (lambda: R(5, 16).double(), 2.0, "input 'x' is torch.float64, compiled for torch.float32"),
        (lambda: R(5, 16), 3.0, "argument 'scale' is 3.0; the program was compiled for 2.0 only"),
    ],
)
def test_arguments_that_do_not_fit(layer, x, scale, words):
    with pytest.raises(ArgumentError, match=words):
        layer[1](x(), scale)


def test_other_ways_to_call(layer):
    model, program = layer
    x = R(20, 32)[:, ::2].requires_grad_()
    want = copy.deepcopy(model)(x, 2.0)["y"].detach()
    place = torch.full((20, 24), float("nan"))
    got = program.run(scale=2.0, x=x, into={"y": place, "flat": None, "rows": None})
    assert got["y"] is place and not got["y"].requires_grad
    torch.testing.assert_close(place, want)
    torch.testing.assert_close(program(x.detach().numpy(), 2.0)["y"], want)
    with pytest.raises(ArgumentError, match=r"into\[0\] is torch.float32 \[3\], the result is torch.float32 \[20, 24\]"):
        program.run(x, 2.0, into={"y": R(3), "flat": None, "rows": None})
    other = Layer().eval()
    torch.testing.assert_close(program.with_weights(dict(other.state_dict()))(x, 2.0)["y"], other(x, 2.0)["y"].detach())
    torch.testing.assert_close(program(x, 2.0)["y"], want)
    with pytest.raises(ArgumentError, match="no weight 'outer'; its weights are inner.bias, inner.weight"):
        program.with_weights({"outer": R(3)})


def test_two_sizes_of_which_arguments_share_one():
    model = Graph().eval()
    nodes, edges = Dim("nodes", max=200), Dim("edges", max=800)
    sizes = {0: {0: nodes}, "edges": {1: edges}, "weights": {0: edges}}
    program = kitsune_mlir.compile(
        model, (R(5, 8),), {"edges": torch.zeros(2, 7, dtype=torch.int64), "weights": R(7)}, dynamic=sizes
    )
    for n, e in ((1, 1), (7, 129), (200, 800), (random.randint(2, 200), random.randint(2, 800))):
        x, where, weights = R(n, 8), torch.randint(n, (2, e)), R(e)
        want = copy.deepcopy(model).double()(x.double(), edges=where, weights=weights.double())
        got = program(x, weights=weights, edges=where)
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)
    assert len(program.programs) <= 3
    assert "kitsune.counted_rows" in program.ir("tiles")  # messages behind the last edge are not made
    words = "input 'weights' has 4 elements in dimension 0, and with edges as other dimensions have it these are 3"
    with pytest.raises(ArgumentError, match=words):
        program(R(5, 8), edges=torch.zeros(2, 3, dtype=torch.int64), weights=R(4))


class Cached(nn.Module):
    """Attention of tokens to those of a cache."""

    def forward(self, x, cache):
        return F.scaled_dot_product_attention(x, cache, cache)


def test_samples_tokens_and_keys():
    model = Cached()
    samples, tokens, keys = Dim("samples", max=6), Dim("tokens", max=130), Dim("keys", max=150)
    sizes = {"x": {0: samples, 1: tokens}, "cache": {0: samples, 1: keys}}
    program = kitsune_mlir.compile(model, (R(2, 5, 8), R(2, 9, 8)), dynamic=sizes)
    for b, n, m in ((1, 1, 1), (1, 7, 129), (6, 129, 7), (6, 130, 150), (random.randint(1, 6), random.randint(1, 130), 2)):
        x, cache = R(b, n, 8), R(b, m, 8)
        torch.testing.assert_close(program(x, cache).double(), model(x.double(), cache.double()), atol=1e-5, rtol=1e-5)
    assert len(program.programs) <= 3
    with pytest.raises(ArgumentError, match=r"'x' has 131 elements in dimension 1 \('tokens'\); the program is for 1 to 130"):
        program(R(2, 131, 8), R(2, 3, 8))
    with pytest.raises(ArgumentError, match=r"'x' has 0 elements in dimension 0 \('samples'\); the program is for 1 to 6"):
        program(R(0, 3, 8), R(0, 3, 8))


def test_programs_of_torch_export(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU()).eval()
    exported = torch.export.export(model, (R(6, 4),), dynamic_shapes=({0: Dim("n", min=3, max=20)},))
    torch.export.save(exported, tmp_path / "m.pt2")
    program = kitsune_mlir.compile(tmp_path / "m.pt2", options={"threads": 1})
    with pytest.raises(ArgumentError, match=r"'input' has 2 elements in dimension 0 \('input.shape\[0\]'\); .* for 3 to 20"):
        program(R(2, 4))
    torch.testing.assert_close(program(x := R(11, 4)), model(x).detach())
    exported = torch.export.export(model, (R(6, 4),), dynamic_shapes=({0: 2 * Dim("half", max=20)},))
    program = kitsune_mlir.compile(exported)
    for n in (4, 14, 40):
        x = R(n, 4)
        torch.testing.assert_close(program(x), model(x).detach())
    with pytest.raises(ArgumentError, match=r"'input' has 42 elements in dimension 0 \('input.shape\[0\]'\); .* for 4 to 40"):
        program(R(42, 4))
    with pytest.raises(ArgumentError, match="has 5 elements in dimension 0, and with"):
        program(R(5, 4))
    with pytest.raises(ArgumentError, match="what was exported says itself"):
        kitsune_mlir.compile(exported, dynamic={"input": {0: Dim("n")}})


def test_rows_that_are_not_independent(monkeypatch):
    monkeypatch.setattr(shapes, "MOST_PROGRAMS", 2)

    def function(a, b):
        return torch.sort(torch.relu(a) @ b, 0)[0]

    program = kitsune_mlir.compile(function, (R(5, 4), R(4, 3)), dynamic=[{0: Dim("rows", max=40)}])
    assert len(program.programs) == 1 and "depends on all rows" in program.explain()
    for n in (5, 1, 7, 9, 5):  # the program of the first size is forgotten, and found or compiled again
        a, b = R(n, 4), R(4, 3)
        want = torch.sort(torch.relu(a.double()) @ b.double(), 0)[0]
        torch.testing.assert_close(program(a, b).double(), want, atol=1e-5, rtol=1e-5)
        assert len(program.programs) <= 2


def test_what_cannot_be_compiled():
    n = Dim("n", max=8)
    with pytest.raises(ArgumentError, match="'dynamic' has sizes of 'z'; arguments are x"):
        kitsune_mlir.compile(lambda x: x + 1, (R(3),), dynamic={"z": {0: n}})
    with pytest.raises(ArgumentError, match="dimension 0 of example argument 'x' has 1 elements; size 'n' needs"):
        kitsune_mlir.compile(lambda x: x + 1, (R(1),), dynamic={"x": {0: n}})
    with pytest.raises(FrontendError, match="aten.linalg_qr"):
        kitsune_mlir.compile(lambda x: torch.linalg.qr(x)[1], (R(3, 3),), dynamic={"x": {0: n}})
    with pytest.raises(FrontendError, match="n"):  # the model fixes the size
        kitsune_mlir.compile(lambda x: x + torch.ones(3), (R(3),), dynamic={"x": {0: n}})
