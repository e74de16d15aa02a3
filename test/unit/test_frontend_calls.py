"""Decomposition call by call gives what decomposition of the whole program gives, and each kind of call is traced once."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import kitsune_mlir
from bench.whole_models import layers
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend import calls, export, import_model
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.functional import make_functional
from test.oracles.upstream import check


def text(model, args) -> str:
    """The imported module; weights that a decomposition made are numbered in their own ways."""
    with torch.no_grad():
        assembly = import_model(model, args).module.operation.get_asm(enable_debug_info=False)
    return re.sub(r'kitsune.name = "\w+"', "", assembly)


def whole(monkeypatch) -> None:
    monkeypatch.setattr(export, "decompose_calls", lambda program, table: False)
    monkeypatch.setattr(export, "make_functional", lambda graph: None)


@pytest.fixture
def traced(monkeypatch) -> list[int]:
    """How many kinds of calls each program had."""
    counts: list[int] = []
    trace = calls._trace
    monkeypatch.setattr(calls, "_trace", lambda kinds, *given: (counts.append(len(kinds)), trace(kinds, *given)))
    return counts


def repeated(function, times: int = 4):
    """A model that does the same several times."""

    def run(x, *others):
        for _ in range(times):
            x = function(x, *others)
        return x

    return run


class Blocks(nn.Module):
    """What torchvision's residual blocks do in place."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            out = F.relu(norm(convolution(x)), inplace=True)
            out += x
            x = F.hardtanh(out, inplace=True)
        return x


ROWS = torch.randn(3, 8)
CASES = {
    "equal layers": (layers(3, 32, 2, 8)[0], (torch.randn(2, 8, 32),)),
    "in place": (Blocks().eval(), (torch.randn(2, 4, 5, 5),)),
    "in place by a number": (
        repeated(lambda x: F.softmax((x * x + 1).pow_(-0.5).add_(x, alpha=2).clamp_(min=0.1), -1)),
        (ROWS,),
    ),
    "several results": (repeated(lambda x: torch.cat([part.softmax(-1) for part in x.split(4, -1)], -1)), (ROWS,)),
    "moments": (repeated(lambda x: (x - torch.var_mean(x, -1, keepdim=True)[1]) + torch.std_mean(x)[0]), (ROWS,)),
    "one operand twice": (repeated(lambda x, y: F.linear(x, x) @ x + F.linear(x, y[:3]) @ y[:3]), (ROWS, torch.randn(5, 8))),
    "an operand as it is": (repeated(lambda x: F.gelu(F.dropout(x, 0.5, False).contiguous())), (ROWS,)),
    "other strides": (repeated(lambda x: x.t().reshape(3, 8).softmax(-1).view(3, 8)), (ROWS,)),
    "numbers that differ": (
        lambda x: [F.elu(x, slope) for slope in (0.0, -0.0, 1, 1.0, 0.1) for _ in range(3)],
        (ROWS,),
    ),
    "no operand": (repeated(lambda x: x + torch.arange(8).float().softmax(0)), (ROWS,)),
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", CASES)
def test_call_by_call_is_as_the_whole(name, traced, monkeypatch):
    model, args = CASES[name]
    found = text(model, args)
    assert traced, "decomposed as a whole"
    whole(monkeypatch)
    assert found == text(model, args)


def test_equal_layers_are_traced_once(traced):
    for depth in (3, 6):
        model, args = layers(depth, 32, 2, 8)
        text(model, args)
    assert traced[0] == traced[1] < 20


@pytest.mark.parametrize("name", ["in place", "in place by a number", "several results", "numbers that differ"])
def test_right(name):
    check(*CASES[name])


def test_an_error_names_the_line_of_the_model():
    def model(x):
        for _ in range(4):
            x = torch.nn.functional.elu(x)
        return x

    def fails(*_):
        raise NotImplementedError("not this one")

    table = {**export.decomposition_table(), torch.ops.aten.elu.default: fails}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(FrontendError, match="not this one") as caught:
        patch.setattr(export, "decomposition_table", lambda: table)
        import_model(model, (ROWS,))
    assert caught.value.operator == "aten.elu.default" and "test_frontend_calls.py" in str(caught.value.location)


def changed(x):
    """An input changed in place, and what is made of it."""
    for _ in range(4):
        x.mul_(0.5)
    return x.softmax(-1) + x.softmax(-1)


def seen_by_a_view(x):
    """A view made before the change sees it."""
    y = x + 1
    view = y[1:]
    y.mul_(2)
    return view.softmax(-1) + y[1:].softmax(-1), y


def narrowed(x):
    """A product in f32 that is rounded to the operand's type."""
    y = (x + 1).bfloat16()
    y.mul_(x)
    return y


class Normed(nn.Module):
    """Statistics that an operator changes whose schema does not say so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x):
        return F.batch_norm(x.softmax(-1), self.get_buffer("mean"), self.get_buffer("variance"), training=True)


def test_statistics_that_an_operator_changes_are_kept():
    model, x = Normed(), torch.randn(4, 8, 5)
    same = copy.deepcopy(model)
    fast = kitsune_mlir.compile(same, (x,), target="host")
    for given in (x, x * 3 + 1):
        torch.testing.assert_close(fast(given), model(given))
    for name, value in model.named_buffers():
        torch.testing.assert_close(same.get_buffer(name), value)


@pytest.mark.parametrize("model", [changed, seen_by_a_view, narrowed])
def test_what_others_see_is_not_made_functional(model):
    program = torch.export.export(export._Function(model), (ROWS.clone(),), strict=False)
    before = [node.target for node in program.graph.nodes]
    make_functional(program.graph)
    assert [node.target for node in program.graph.nodes] == before
    check(model, (ROWS.clone(),))


def test_uses_before_and_after_a_change():
    def model(x):
        y = x + 1
        before = y * 3
        y.mul_(2)
        y.add_(before)
        return before, y, y.view(-1).relu_()

    check(model, (ROWS.clone(),))


class Unread(nn.Module):
    """Has results that nobody reads, random numbers and a change among them."""

    def forward(self, x):
        x.sin().cos()
        torch.rand_like(x)
        kept = x + 1
        kept.mul_(2)
        kept.exp()
        return kept, x.relu()


def test_dead_code_is_what_torch_says_it_is():
    graphs = [torch.export.export(Unread(), (torch.randn(3),)).graph for _ in range(2)]
    before = len(graphs[0].nodes)
    drop_dead(graphs[0])
    graphs[1].eliminate_dead_code()
    names = [[node.name for node in graph.nodes] for graph in graphs]
    assert names[0] == names[1] and len(names[0]) < before
    assert {"rand_like", "mul_"} <= set(names[0])


def test_dead_code_of_graphs_inside_goes_too():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: (y.sin(), y.cos())[1], lambda y: y + 1, (x,))

    graphs = [make_fx(branch)(torch.randn(3)) for _ in range(2)]
    inside = [[len(each.graph.nodes) for each in graph.children() if isinstance(each, GraphModule)] for graph in graphs]
    drop_dead(graphs[0].graph)
    graphs[1].graph.eliminate_dead_code()
    after = [[len(each.graph.nodes) for each in graph.children() if isinstance(each, GraphModule)] for graph in graphs]
    assert after[0] == after[1] and sum(after[0]) < sum(inside[0])
