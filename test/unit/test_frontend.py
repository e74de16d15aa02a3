"""The frontend: what becomes of weights, inputs, outputs and types."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils._pytree import treespec_dumps, treespec_loads
from torch_mlir import ir

from kitsune_mlir.frontend import import_exported, import_model, traced_model
from test.oracles.upstream import check, run, text


class Everything(nn.Module):
    """Tied weights, an unused one, buffers of both kinds, a plain tensor, a literal; nested inputs and outputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.randn(3))
        self.register_buffer("scratch", torch.randn(3), persistent=False)
        self.plain = torch.randn(3)

    def forward(self, x, more, factor=3, flag=True):
        literal = torch.tensor([1.0, 2.0, 3.0])
        hidden = self.b(self.a(x)) * factor
        first = {"hidden": hidden, "input": x, "weight": self.a.weight, "number": 5, "none": None, "literal": literal}
        return first, [more["q"] + self.plain + self.table + self.scratch, x.shape[0], flag]


@pytest.fixture(scope="module")
def everything():
    torch.manual_seed(0)
    args, kwargs = (torch.randn(2, 4), {"q": torch.randn(3)}), {"flag": False}
    return check(Everything(), args, kwargs)


def test_arguments_are_weights_then_inputs(everything):
    assert [(a.name, a.kind) for a in everything.arguments] == [
        ("a.weight", "parameter"),
        ("a.bias", "parameter"),
        ("b.bias", "parameter"),
        ("table", "buffer"),
        ("scratch", "buffer"),
        ("lifted_tensor_0", "constant"),
        ("plain", "constant"),
        ("x", "input"),
        ("more_q", "input"),
    ]
    assert [a.position for a in everything.inputs] == [0, 1]
    assert all(a.value is not None and a.value.shape == a.shape for a in everything.weights)


def test_numbers_among_the_inputs_are_fixed(everything):
    assert [(f.position, f.value) for f in everything.fixed_inputs] == [(2, False)]


def test_results_say_what_they_are(everything):
    kinds = [(r.kind, r.argument, r.value) for r in everything.results]
    assert kinds == [
        ("tensor", None, None),
        ("alias", "x", None),
        ("alias", "a.weight", None),
        ("python", None, 5),
        ("python", None, None),
        ("tensor", None, None),
        ("tensor", None, None),
        ("python", None, 2),
        ("python", None, False),
    ]
    assert [r.index for r in everything.results if r.kind == "tensor"] == [0, 1, 2]


def test_specs_survive_serialisation(everything):
    for spec in (everything.in_spec, everything.out_spec):
        assert treespec_loads(treespec_dumps(spec)) == spec


def test_function_matches_the_arguments(everything):
    function = everything.module.body.operations[0]
    assert function.name.value == "main"
    types = [ir.RankedTensorType(t) for t in function.type.inputs]
    assert [tuple(t.shape) for t in types] == [a.shape for a in everything.arguments]
    assert [str(t.element_type) for t in types] == [a.dtype for a in everything.arguments]
    assert [d["kitsune.name"].value for d in function.arg_attrs] == [a.name for a in everything.arguments]


def test_weights_are_the_models_own_memory():
    model = nn.Linear(3, 4)
    weights = import_model(model, (torch.randn(2, 3),)).weights
    assert weights[0].value.data_ptr() == model.weight.data_ptr()


def test_weights_tied_by_memory_alone_are_one_argument():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(3, 3))
            self.b = nn.Parameter(self.a.data)
            self.c = nn.Parameter(self.a.data.T)  # the same memory, read differently: not tied

        def forward(self, x):
            return x @ self.a + x @ self.b + x @ self.c

    imported = check(Tied(), (torch.randn(2, 3),))
    assert [a.name for a in imported.weights] == ["a", "c"]


def test_input_with_a_parameters_name():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * self.x, x, self.x

    imported = check(Clash(), (torch.randn(3),))
    assert [a.name for a in imported.arguments] == ["x", "x_0"]


def test_large_weights_stay_out_of_the_text():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.empty(25_000, 1024))

        def forward(self, i):
            return self.table[i]

    imported = import_model(Large(), (torch.arange(5),))
    assert sum(a.value.numel() * 4 for a in imported.weights) > 100e6
    assert len(text(imported, locations=True)) < 1_000_000
    assert "dense_resource" not in text(imported)


def test_a_callers_context_is_used():
    context = ir.Context()
    assert import_model(torch.relu, (torch.randn(3),), context=context).module.context is context


def test_buffer_as_index():
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Parameter(torch.randn(3, 7, 4))
            self.register_buffer("t", torch.arange(3))

        def forward(self, index):
            return self.embedding[self.t[None], index]

    check(Tables(), (torch.randint(0, 7, (5, 3)),))


def test_buffer_mutation():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            self.cache[2] = x
            self.count += 1
            return self.cache.sum(0)

    model = Counter()
    imported = import_model(model, (torch.ones(3),))
    out, written = run(imported, (torch.ones(3),))
    assert torch.equal(model.cache, torch.zeros(4, 3)), "importing must not run the mutation"
    expected = model(torch.ones(3))
    assert torch.equal(out, expected)
    assert torch.equal(written["cache"], model.cache)
    assert torch.equal(written["count"], model.count)


def test_input_mutation():
    imported = import_model(lambda x: x.add_(1) * 2, (torch.ones(3),))
    out, written = run(imported, (torch.ones(3),))
    assert torch.equal(out, torch.full((3,), 4.0))
    assert torch.equal(written["args_0"], torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: (x, x + 1, x),
        lambda x: torch.ones(3) * 2,
        lambda x: (3, None, "text"),
        lambda x: (x + 1,) * 2,
    ],
    ids=["input", "input-and-value", "constant", "python", "twice-the-same"],
)
def test_unusual_outputs(function):
    check(function, (torch.randn(3),))


def test_objects_that_export_does_not_take_are_bound():
    imported = check(lambda x, dtype: x.to(dtype) + 1, (torch.ones(3), torch.float16))
    assert [(f.position, f.value) for f in imported.fixed_inputs] == [(1, torch.float16)]


def test_exported_program():
    model = nn.Linear(3, 4)
    program = torch.export.export(model, (torch.randn(2, 3),))
    assert [a.name for a in import_model(program).arguments] == ["weight", "bias", "input"]


# dtypes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_float_types(dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 17), nn.GELU(), nn.LayerNorm(17), nn.Linear(17, 9), nn.Softmax(-1)).to(dtype)
    imported = check(model, (torch.randn(5, 33, dtype=dtype),), tolerance=tolerance)
    if dtype is not torch.float64:
        assert "f64" not in text(imported)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integer_types(dtype):
    x = torch.tensor([1, -5, 7], dtype=dtype)
    check(lambda x: (x * 3, x // 2, x % 3, x > 0, x.sum(), x.float()), (x,))


def test_bool():
    check(
        lambda x, y: (x & y, ~x, torch.where(x, 1.0, 2.0), x.any()),
        (torch.tensor([True, False]), torch.tensor([True, True])),
    )


def test_narrow_types_compute_in_f32_and_accumulate_in_f32():
    x = torch.full((3, 4096), 1.01, dtype=torch.bfloat16)
    imported = check(
        lambda x: (x.sum(-1), x.mean(-1), F.gelu(x), torch.sigmoid(x), x.var(-1), F.relu(x), x * 0.1 + 1),
        (x,),
        tolerance=1e-2,
    )
    assert not re.search(r"(arith|math)\.(?!extf|truncf|constant|select)\w+ .*: bf16$", text(imported), re.M)


def test_relu_is_a_maximum():
    imported = check(torch.relu, (torch.tensor([-1.0, 0.0, -0.0, 2.0, float("nan"), float("inf")]),))
    assert "arith.maximumf" in text(imported) and "arith.select" not in text(imported)


def test_maxima_carry_no_index():
    imported = check(lambda x: torch.softmax(x, -1), (torch.randn(3, 5),))
    assert "linalg.index" not in text(imported)


# AOTAutograd


def test_traced_graph():
    imports = []

    def compiler(graph, example_inputs):
        imports.append(import_exported(traced_model(graph, {"arg0_1", "arg1_1"})))
        return make_boxed_func(graph.forward)

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.compile(model, backend=aot_autograd(fw_compiler=compiler), dynamic=False)(x)
    (imported,) = imports
    values = [replace(a, value=p.detach()) for a, p in zip(imported.weights, model.parameters(), strict=True)]
    imported = replace(imported, arguments=(*values, *imported.inputs))
    torch.testing.assert_close(run(imported, (x,))[0][0], model(x).detach())
    assert [(a.name, a.kind) for a in imported.arguments] == [
        ("arg0_1", "parameter"),
        ("arg1_1", "parameter"),
        ("arg2_1", "input"),
    ]


# Operators of our own, as PyTorch runs them where a graph is not compiled


@pytest.mark.parametrize("reduce", ["set", "sum", "prod", "amax", "amin"])
def test_scatter_rows_in_pytorch(reduce):
    x, source = torch.randn(7, 3), torch.randn(5, 3)
    index = torch.randperm(7)[:5] if reduce == "set" else torch.randint(7, (5,))
    want = x.clone()
    how = {"sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum, "set": lambda a, b: b}[reduce]
    for row, place in enumerate(index):
        want[place] = how(want[place], source[row])
    got = torch.ops.kitsune.scatter_rows(x, index.int(), source, reduce)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind, both", [(nn.LSTM, True), (nn.GRU, False), (nn.RNN, True)])
def test_recurrent_layers_in_pytorch(kind, both):
    """The decomposition, run as it is, against the layer."""
    from kitsune_mlir.frontend.recurrent import RECURRENT

    layer = kind(4, 6, batch_first=both, bidirectional=both)
    x, state = torch.randn(3, 7, 4), torch.zeros(1 + both, 3 if both else 7, 6)
    states = (state, state) if kind is nn.LSTM else state
    name = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "rnn_tanh"}[kind]
    with torch.no_grad():
        how = RECURRENT[getattr(torch.ops.aten, name).input]
        got = how(x, states, list(layer.parameters()), True, 1, 0.0, False, both, both)
        want, last = layer(x)
    torch.testing.assert_close(got[0], want)
    torch.testing.assert_close(got[1], last[0] if kind is nn.LSTM else last)


@pytest.mark.parametrize("kind", ["max", "min"])
def test_running_extremes_in_pytorch(kind):
    x = torch.randn(3, 9)
    want = [getattr(x[:, : n + 1], f"a{kind}")(1) for n in range(9)]
    torch.testing.assert_close(torch.ops.kitsune.running(x, 1, kind), torch.stack(want, 1))
