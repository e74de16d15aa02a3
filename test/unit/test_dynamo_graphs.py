"""torch.compile(backend="kitsune"): gradients, random numbers, weights that change, sizes that change, and what PyTorch runs.

Everything is compared with eager on fresh inputs; how many programs and islands there are is part of what is tested.
"""

import copy
import gc
import logging
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from kitsune_mlir.dynamo import backend
from kitsune_mlir.dynamo.report import GraphReport

R = torch.randn


@pytest.fixture
def reports(monkeypatch):
    """Of the graphs that were compiled."""
    found: list[GraphReport] = []
    from kitsune_mlir.dynamo import report

    class Kept(report.GraphReport):
        def __init__(self, *given):
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(report, "GraphReport", Kept)
    torch._dynamo.reset()
    return found


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
    compiled = torch.compile(function, backend="kitsune")
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

    compiled = torch.compile(function, backend="kitsune")
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
    compiled = torch.compile(function, backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            own = R(4, 8)
            theirs = own.clone()
            torch.testing.assert_close(compiled(own), function(theirs), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(own, theirs)
    assert [len(report.programs) for report in reports] == [programs], list(map(str, reports))


def test_weights_are_kept_in_step(reports):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    compiled = torch.compile(model, backend="kitsune")
    x = R(2, 3, 12, 12)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.25)
        model[0].weight.data = R(8, 3, 3, 3)  # another memory for the same parameter
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
        model[0].weight = nn.Parameter(R(8, 3, 3, 3))
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    (program,) = reports[0].programs
    assert any(weight.recipe for weight in program.signature.weights), "the norm is folded into the convolution"
    assert len(program.summary["stages"]) <= 2


def test_layers_of_one_class_share_a_program_and_not_their_weights(reports):
    layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
    layer = torch.compile(lambda layer, x: torch.relu(layer(x)), backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            x = y = R(3, 5)
            for each in layers:
                x, y = layer(each, x), torch.relu(each(y))
            torch.testing.assert_close(x, y)
    assert len(reports) == 1


def test_threads_call_with_their_own_weights(reports):
    step = torch.compile(lambda layer, x: torch.relu(layer(x)), backend="kitsune")
    layers, x, wrong = [nn.Linear(33, 33) for _ in range(4)], R(5, 33), []
    with torch.no_grad():
        for layer in layers:
            step(layer, x)
        want = [torch.relu(layer(x)) for layer in layers]

    def call(n):
        with torch.no_grad():
            wrong.extend(n for _ in range(200) if not torch.allclose(step(layers[n], x), want[n], atol=1e-5))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(reports) == 1


def test_weights_are_let_go(reports):
    step = torch.compile(lambda layer, x: layer(x), backend="kitsune")
    with torch.no_grad():
        first, x = nn.Linear(5, 5), R(3, 5)
        step(first, x)
        gone = weakref.ref(first.weight)
        second = nn.Linear(5, 5)
        torch.testing.assert_close(step(second, x), second(x))
        del first
        for layer in (nn.Linear(5, 5), second):
            torch.testing.assert_close(step(layer, x), layer(x))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(dynamic, reports):
    model = nn.Sequential(nn.Linear(4, 7), nn.Softmax(-1))
    compiled = torch.compile(model, backend="kitsune", dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 1, 129, 7, 3):
            x = R(rows, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert whole(reports) and len(reports) <= 5


def test_sizes_that_change_in_training(reports):
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh())
    compiled = torch.compile(model, backend="kitsune")
    for rows in (3, 5, 129):
        x = R(rows, 4, requires_grad=True)
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        (want,) = torch.autograd.grad(model(x).sum(), x)
        torch.testing.assert_close(got, want)
    assert whole(reports)


@pytest.mark.parametrize(
    "function, values", [(lambda x, a: x * a + 1, (1.5, 2.5, 3.5, 1.5)), (lambda x, a: x[:a] + a, (2, 5, 3, 2))]
)
def test_numbers_that_change(function, values, reports):
    compiled = torch.compile(function, backend="kitsune")
    with torch.no_grad():
        for value in values:
            x = R(9, 4)
            torch.testing.assert_close(compiled(x, value), function(x, value))
    assert all(report.programs for report in reports)


def test_more_sizes_than_are_compiled_for_run_in_pytorch(reports, monkeypatch):
    from kitsune_mlir.dynamo import shapes

    monkeypatch.setattr(shapes, "MOST_SIZES", 2)
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="kitsune", dynamic=True)
    with torch.no_grad():
        for rows in range(2, 9):
            x = R(rows, 4)
            torch.testing.assert_close(compiled(x), torch.relu(x) + 1)
    assert len(reports) == 2


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 8, 4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x, place):
        self.rows.index_copy_(1, place, self.layer(x))
        return self.rows.sum(1)


def test_a_cache_is_written_in_place(reports):
    model = Cache()
    beside, compiled = copy.deepcopy(model), torch.compile(model, backend="kitsune")
    with torch.no_grad():
        for place in range(3):
            x, at = R(2, 1, 4), torch.tensor([place])
            torch.testing.assert_close(compiled(x, at), beside(x, at))
            torch.testing.assert_close(model.rows, beside.rows)
    (program,) = reports[0].programs
    assert [output.in_place for output in program.signature.outputs if output.mutates] == [True]


WRITES = {
    "a slice": (lambda cache, x: cache[:, 2:3].copy_(x), True),
    "a slice of a slice": (lambda cache, x: cache[1:, :, 1:3].copy_(x[:1, :, 1:3]), True),
    "one": (lambda cache, x: cache[:, 3].copy_(x[:, 0]), True),
    "with steps": (lambda cache, x: cache[:, ::4].copy_(x), True),
    "a number": (lambda cache, x: cache[:, 1:4].fill_(2), None),
    "other type": (lambda cache, x: cache[:, 2:3].copy_(x.double()), True),
    "read before": (lambda cache, x: cache[:, 2:3].copy_(x + cache[:, 4:5]), None),
    "two": (lambda cache, x: (cache[:, 2:3].copy_(x), cache[:, 5:6].copy_(x * 2)), None),
    "all": (lambda cache, x: cache.copy_(x.expand(cache.shape)), None),
}


@pytest.mark.parametrize("name", WRITES)
def test_slices_of_inputs_are_written_where_they_lie(name, reports):
    write, in_place = WRITES[name]

    def function(cache, x):
        write(cache, torch.tanh(x))
        return cache.sum(1)

    compiled = torch.compile(function, backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            own, x = R(2, 8, 4), R(2, 1, 4)
            theirs = own.clone()
            torch.testing.assert_close(compiled(own, x), function(theirs, x))
            torch.testing.assert_close(own, theirs)
    (program,) = reports[0].programs
    rows = [output.in_place for output in program.signature.outputs if output.mutates]
    assert in_place is None or rows == [in_place]


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
        torch.testing.assert_close(torch.compile(function, backend="kitsune")(*args), function(*args))
    (report,) = reports
    assert [island.operator for island in report.islands] == ["aten.select_scatter.default"] and len(report.programs) == 2


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
        ({"run_in_torch": ["aten.relu.default"]}, 2, 2),
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
        found = kitsune_mlir.explain(model, (R(6, 6), R(6, 6)))
    assert [len(graph.programs) for graph in found.graphs] == [2, 1] and len(found.breaks) == 1
    text = str(found)
    assert "graph break (1 x)" in text and "aten.linalg_qr.default" in text and "test_dynamo_graphs.py" in text
    assert "1 stages in 1 launch" in text


def test_the_backend_is_found_by_name():
    assert torch._dynamo.lookup_backend("kitsune") is backend.kitsune
