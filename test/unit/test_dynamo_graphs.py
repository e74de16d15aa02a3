"""torch.compile(backend="kitsune"): gradients, random numbers, weights that change, sizes that change, and what PyTorch runs.

Everything is compared with eager on fresh inputs; how many programs and islands there are is part of what is tested.
"""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from kitsune_mlir.dynamo import backend
from kitsune_mlir.dynamo.devices import made_in_place

R = torch.randn
SMALL = {"min_part": 1}
"""Parts are compiled that are no faster than PyTorch."""


def whole(reports):
    """Every graph is one program, and none has islands."""
    return all(len(report.programs) == 1 and not report.islands and not report.gave_up for report in reports)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.inner(self.norm(x)).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return x + self.outer(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))


class Scattering(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(R(4, 5))

    def forward(self, x, index):
        return torch.zeros(6, 5, dtype=x.dtype).index_add(0, index, x @ self.weight)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(7, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)), lambda: (R(5, 7),)),
    "attention": (Attention, lambda: (R(2, 7, 16),)),
    "images": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: (R(2, 3, 12, 12),),
    ),
    "upsampled": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2), nn.GroupNorm(2, 4), nn.SiLU()),
        lambda: (R(2, 3, 6, 6),),
    ),
    "scatter": (Scattering, lambda: (R(9, 4), torch.randint(6, (9,)))),
    "embedding": (lambda: nn.Sequential(nn.Embedding(20, 5), nn.Linear(5, 3)), lambda: (torch.randint(20, (4, 3)),)),
}


@pytest.mark.rotated(2)
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, reports):
    """Three steps of training, each from the weights that the one before left."""
    make, inputs = MODELS[name]
    ours = make()
    theirs = copy.deepcopy(ours).double()
    compiled = torch.compile(ours, backend="kitsune")
    for _ in range(3):
        args = inputs()
        wide = [a.double() if a.is_floating_point() else a for a in args]
        got, want = compiled(*args), theirs(*wide)
        tangent = torch.randn_like(got)
        got.backward(tangent)
        want.backward(tangent.double())
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)
        for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(x.grad.double(), y.grad, atol=1e-3, rtol=1e-3)
        for x, y in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(x.double(), y.double(), atol=1e-4, rtol=1e-4)
        with torch.no_grad():
            for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
                y -= 0.1 * y.grad
                x -= 0.1 * x.grad
                x.grad = y.grad = None
    assert [report.kind for report in reports] == ["forward", "backward"] and whole(reports), list(map(str, reports))


def same_draws(function, make, reports, grad=False):
    """Compares with eager from one state of PyTorch's generator; twice, so that its state afterwards is compared too."""
    compiled = torch.compile(function, backend="kitsune", options=SMALL)
    with torch.set_grad_enabled(grad):
        args = make()
        torch.manual_seed(3)
        got = [compiled(*args), compiled(*args)]
        torch.manual_seed(3)
        want = [function(*args), function(*args)]
    for g, w in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)
    return [len(report.programs) for report in reports]


@pytest.mark.parametrize("grad", [False, True])
def test_dropout_is_eager_s(grad, reports):
    model = nn.Sequential(nn.Linear(7, 16), nn.Dropout(0.3), nn.Linear(16, 3), nn.Dropout(0.5)).train()
    assert same_draws(model, lambda: (R(129, 7),), reports, grad)[0] == 1  # numbers are drawn in front of it


def test_random_numbers_are_eager_s(reports):
    def draws(x):
        noisy = x + torch.rand_like(x) * 2
        kept = torch.bernoulli(torch.sigmoid(noisy))
        return noisy, kept, torch.randn(3) + kept.sum(), torch.randint(9, (4,))

    assert same_draws(draws, lambda: (R(3, 4),), reports) == [2]  # one before `bernoulli`, one behind it


def test_an_operator_that_cannot_be_compiled_is_an_island(reports, caplog):
    def function(x, w):
        y = torch.relu(x @ w)
        q = torch.linalg.qr(y + torch.eye(6))[0]
        return torch.tanh(q @ w), y.t()

    compiled = torch.compile(function, backend="kitsune", options=SMALL)
    args = (R(6, 6), R(6, 6))
    with torch.no_grad(), caplog.at_level(logging.INFO, "kitsune_mlir.dynamo"):
        torch.testing.assert_close(compiled(*args), function(*args), atol=1e-4, rtol=1e-4)
    (report,) = reports
    assert len(report.programs) == 2 and [island.operator for island in report.islands] == ["aten.linalg_qr.default"]
    assert "test_dynamo_graphs.py" in (report.islands[0].location or "")
    assert "2 programs" in caplog.text and "aten.linalg_qr.default" in caplog.text


@torch.library.custom_op("kitsune_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("kitsune_test::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x.add_(1)


def bumps_its_own(x):
    y = x * 2
    bump(y)
    return y + 1


def bumps_its_input(x):
    bump(x)
    return x + 1


@pytest.mark.parametrize(
    "function, programs",
    [
        (lambda x: torch.relu(twice(torch.relu(x) + 1)), 2),
        (bumps_its_own, 2),
        (bumps_its_input, 1),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)) * 3, 2),
        (lambda x: torch.fft.rfft(x * 2).abs() + 1, 2),
        (lambda x: (torch.complex(x, x * 2) * 1j).real + x, 2),
    ],
)
def test_what_others_define_stays_as_it_is(function, programs, reports):
    compiled = torch.compile(function, backend="kitsune", options=SMALL)
    with torch.no_grad():
        for _ in range(2):
            own = R(4, 8)
            theirs = own.clone()
            torch.testing.assert_close(compiled(own), function(theirs), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(own, theirs)
    assert [len(report.programs) for report in reports] == [programs], list(map(str, reports))


def test_a_bug_in_the_backend_leaves_the_model_to_pytorch(monkeypatch, reports):
    from kitsune_mlir.dynamo import compile

    def fails(*given):
        raise KeyError("lost")

    monkeypatch.setattr(compile, "partition", fails)
    x = R(3, requires_grad=True)
    with pytest.warns(UserWarning, match="forward graph of .* runs in PyTorch: KeyError: 'lost'"):
        y = torch.compile(lambda x: torch.relu(x) * 2, backend="kitsune")(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * (x > 0))


def with_qr(x, w):
    return torch.linalg.qr(torch.relu(x @ w))[0] @ w


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_integers_are_refused_where_eager_refuses_them(rank):
    pool = getattr(F, f"adaptive_max_pool{rank}d")
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.compile(lambda x: pool(x.argmax(1), 5), backend="kitsune")(R([1] * (rank + 2)))


def test_what_fails_inside_an_operator_that_the_frontend_takes_apart(reports, monkeypatch):
    """The error names what comes of it, which is no node of the graph."""
    from kitsune_mlir.errors import FrontendError
    from kitsune_mlir.frontend.aten import AtenProgram

    decomposed = AtenProgram.decomposed

    def fails(self):
        if any(node.target is torch.ops.aten.select_scatter.default for node in self.graph.nodes):
            decomposed(self)
            raise FrontendError("no lowering", operator="aten.where.self")
        return decomposed(self)

    monkeypatch.setattr(AtenProgram, "decomposed", fails)

    def function(x, y):
        return torch.tanh(torch.select_scatter(torch.relu(x), y * 2, 0, 1))

    args = (R(3, 4), R(4))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend="kitsune", options=SMALL)(*args), function(*args))
    (report,) = reports
    assert [island.operator for island in report.islands] == ["aten.select_scatter.default"] and len(report.programs) == 2


def alternating(many: int):
    """Parts of so many operators, and islands between them."""

    def function(x):
        for _ in range(4):
            for _ in range(many):
                x = torch.tanh(x) + 1
            x = torch.neg(x)
        return torch.relu(x) * 2

    return function


@pytest.mark.rotated(3)
@pytest.mark.parametrize("size, many, options, programs", [
    (6, 1, {}, 0), (6, 1, SMALL, 5), (6, 2, {}, 4), (6, 2, {"min_part": 5}, 0), (300, 1, {}, 5), (300, 1, {"min_part": 3}, 0),
])  # fmt: skip
def test_small_parts_between_islands_run_in_pytorch(size, many, options, programs, reports):
    function, x = alternating(many), R(size, size)
    given = {"run_in_torch": ["aten.neg.default"], **options}
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend="kitsune", options=given)(x), function(x))
    (report,) = reports
    assert len(report.programs) == programs and not report.gave_up, str(report)
    by_reason = [island.reason for island in report.islands if "part of" in island.reason]
    assert len(by_reason) == 8 * many + 2 - 2 * many * programs if programs < 5 else not by_reason
    assert all("predicted" in reason if not options else "min_part" in reason for reason in by_reason)
    assert sum("run_in_torch" in island.reason for island in report.islands) == 4


def test_a_graph_without_programs_is_called_as_dynamo_gave_it():
    """Not as it was taken apart: a norm is one call."""
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.linalg.qr(F.layer_norm(x, (4,)))[1], backend="kitsune", options={"min_part": 99})
    with torch.no_grad(), torch.profiler.profile() as profile:
        function(R(4, 4))
    assert "aten::native_layer_norm" in {event.name for event in profile.events()}


def test_views_that_are_no_other_look_cost_nothing():
    """A linear layer's product of flattened rows has its shape already."""
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), R(4, 5)
    function = torch.compile(model, backend="kitsune")
    with torch.no_grad():
        first = function(x)
        with torch.profiler.profile() as profile:
            torch.testing.assert_close(function(x), first)
    torch.testing.assert_close(first, model(x).detach())
    called = {event.name for event in profile.events() if event.name.startswith("aten::")}
    assert not called & {"aten::view", "aten::addmm", "aten::linear"}


def test_require_full_raises(reports):
    compiled = torch.compile(with_qr, backend="kitsune", options={"require_full": True})
    with torch.no_grad(), pytest.raises(Exception, match=r"wants all of a graph in programs(.|\n)*aten.linalg_qr.default"):
        compiled(R(6, 6), R(6, 6))
    full = torch.compile(lambda x: torch.relu(x) + 1, backend="kitsune", options={"require_full": True})
    with torch.no_grad():
        full(R(3))


@pytest.mark.parametrize(
    "given, programs, islands",
    [
        ({"run_in_torch": ["aten.relu.default"], **SMALL}, 2, 2),
        ({"run_in_torch": ["aten.relu.default"]}, 0, 4),
        ({"min_part": 2}, 1, 2),
        ({"min_part": 99}, 0, 4),
    ],
)
def test_options_of_graphs(given, programs, islands, reports):
    args = (R(6, 6), R(6, 6))
    with torch.no_grad():
        got = torch.compile(with_qr, backend="kitsune", options=given)(*args)
        torch.testing.assert_close(got, with_qr(*args), atol=1e-4, rtol=1e-4)
    (report,) = reports
    assert (len(report.programs), len(report.islands)) == (programs, islands), str(report)


def test_explain_says_what_became_of_a_model():
    def model(x, w):
        y = with_qr(x, w)
        torch._dynamo.graph_break()
        return torch.tanh(y) + 1

    with torch.no_grad():
        found = kitsune_mlir.explain(model, (R(6, 6), R(6, 6)), options=SMALL)
    assert [len(graph.programs) for graph in found.graphs] == [2, 1] and len(found.breaks) == 1
    text = str(found)
    assert "graph break (1 x)" in text and "aten.linalg_qr.default" in text and "test_dynamo_graphs.py" in text
    assert "1 stages in 1 launch" in text


def test_the_backend_is_found_by_name():
    assert torch._dynamo.lookup_backend("kitsune") is backend.kitsune


def test_numbers_are_made_on_the_device():
    """What a graph moves there without having been given it."""
    graph = torch.fx.Graph()
    given, number = graph.placeholder("given"), graph.call_function(torch.ops.aten.full.default, ([], 5))
    moved = [graph.call_function(torch.ops.prims.device_put.default, (value, "cuda")) for value in (given, number)]
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, tuple(moved)))
    made_in_place(graph)
    assert [node.target for node in moved] == [torch.ops.prims.device_put.default, torch.ops.aten.clone.default]
    assert moved[1].args == (number,)
