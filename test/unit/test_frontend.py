"""The frontend: what becomes of weights, inputs, outputs and errors, and that the arithmetic is torch's."""

from __future__ import annotations

import inspect
import os
import re

import pytest
import torch
import torch.nn.functional as F
from reference_backend import run
from torch import nn
from torch.utils._pytree import tree_leaves, treespec_dumps, treespec_loads
from torch_mlir import ir

from kitsune_mlir.errors import DynamicShapeError, FrontendError
from kitsune_mlir.frontend import import_graph_module, import_model


def text(imported, locations=False):
    return imported.module.operation.get_asm(enable_debug_info=locations)


def check(model, args, kwargs=None, tolerance=1e-5):
    """Imports, runs and compares with torch; returns the import."""
    imported = import_model(model, args, kwargs)
    actual, _ = run(imported, args, kwargs)
    expected = model(*args, **(kwargs or {}))
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert a == e
    assert imported.module.operation.verify()
    assert "torch." not in re.sub(r'"[^"]*"', "", text(imported)), "an operation of the torch dialect is left"
    return imported


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


# operators


CASES = {
    "convolutions": (
        nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(4, 4, 3, dilation=2)),
        (torch.randn(2, 4, 9, 9),),
    ),
    "pooling": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, 1)),
        (torch.randn(2, 4, 7, 9),),
    ),
    "batch-norm-training": (nn.BatchNorm2d(4), (torch.randn(2, 4, 3, 3),)),
    "group-norm": (nn.GroupNorm(2, 4), (torch.randn(2, 4, 3, 3),)),
    "rms-norm": (nn.RMSNorm(6), (torch.randn(2, 6),)),
    "activations": (
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.elu(x), F.hardswish(x)),
        (torch.randn(3, 5),),
    ),
    "embedding": (nn.Embedding(10, 4, padding_idx=0), (torch.randint(0, 10, (3, 5)),)),
    "scatter-and-gather": (
        lambda x, i, v: (x.scatter(-1, i, v), x.scatter_add(-1, i, v), x.gather(-1, i)),
        (torch.randn(4, 8), torch.tensor([[0, 1], [7, 2], [3, 4], [5, 6]]), torch.randn(4, 2)),
    ),
    "index-add": (
        lambda x, i, v: x.index_add(0, i, v, alpha=2),
        (torch.randn(5, 3), torch.tensor([1, 1, 4]), torch.randn(3, 3)),
    ),
    "negative-indices": (
        lambda x, i, v: (x[i], torch.index_put(x, (i,), v), torch.index_put(x, (i,), v, accumulate=True)),
        (torch.randn(5, 3), torch.tensor([-1, 2, -5]), torch.randn(3, 3)),
    ),
    "cat-split-stack": (
        lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y]), x.split(2, 0)[1], x.chunk(2, 1)),
        (torch.randn(4, 8), torch.randn(4, 8)),
    ),
    "top-k": (
        lambda x: (torch.topk(x, 3), torch.topk(x, 2, dim=0, largest=False)),
        (torch.randperm(32).reshape(4, 8).float(),),
    ),
    "top-k-special": (
        lambda x: torch.topk(x, 3).values,
        (torch.tensor([[float("-inf")] * 3 + [1.0], [2.0, float("inf"), float("nan"), 1.0]]),),
    ),
    "triangles": (lambda x: (torch.tril(x), torch.triu(x, 1)), (torch.randn(8, 8),)),
    "as-strided": (lambda x: torch.as_strided(x, (3, 2), (1, 4)), (torch.randn(4, 8),)),
    "lstm": (nn.LSTM(4, 8, batch_first=True).eval(), (torch.randn(2, 3, 4),)),
    "multihead-attention": (nn.MultiheadAttention(16, 4, batch_first=True).eval(), (torch.randn(2, 5, 16),) * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    model, args = CASES[name]
    check(model, args)


def test_index_lists_are_constants_not_arithmetic():
    def pairs(x):
        rows, columns = torch.tril_indices(6, 6, -1)
        return x[:, rows, columns]

    imported = check(pairs, (torch.randn(3, 6, 6),))
    assert [a.kind for a in imported.arguments] == ["constant", "constant", "input"]
    assert "math." not in text(imported)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "nothing"])
@pytest.mark.parametrize("shared_heads", [1, 2])
def test_attention(mask, shared_heads):
    torch.manual_seed(0)
    masks = {"bool": torch.rand(5, 7) > 0.5, "float": torch.randn(2, 1, 5, 7), "nothing": torch.zeros(5, 7).bool()}
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 4 // shared_heads, 7, 8)

    def attend(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=mask == "causal", enable_gqa=shared_heads > 1)

    imported = check(attend, (query, key, torch.randn(2, 4 // shared_heads, 7, 6), masks.get(mask)))
    assert text(imported).count("linalg.batch_matmul") == 2


def test_attention_keeps_narrow_operands_of_both_products():
    q = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    imported = check(lambda q: F.scaled_dot_product_attention(q, q, q), (q,), tolerance=2e-2)
    # the probabilities are rounded before the second product: three bf16 operands in, one rounding between
    assert text(imported).count("arith.truncf") == 2


def test_batch_norm_is_folded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1, bias=False), nn.BatchNorm2d(2))
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 5, 5)
    model.eval()
    imported = check(model, (x,), tolerance=1e-4)
    assert [a.name for a in imported.weights] == [
        "0.folded_weight", "0.folded_bias", "3.folded_weight", "3.folded_bias",
    ]  # fmt: skip
    assert "math.rsqrt" not in text(imported)
    plain = import_model(model, (x,), fold_norms=False)
    assert "math.rsqrt" in text(plain) and "0.weight" in [a.name for a in plain.weights]


# source locations


class Located(nn.Module):
    def forward(self, x):
        y = x @ x
        return torch.tanh(y)


def test_locations_reach_linalg():
    imported = import_model(Located(), (torch.randn(3, 3),))
    start = inspect.getsourcelines(Located.forward)[1]
    found: dict[str, str] = {}

    def visit(op):
        found[op.name] = str(op.location)
        return ir.WalkResult.ADVANCE

    imported.module.operation.walk(visit)
    assert f'"{__file__}":{start + 1}' in found["linalg.matmul"]
    assert "aten.mm" in found["linalg.matmul"]
    assert f'"{__file__}":{start + 2}' in found["math.tanh"]


# errors


def line_of(function, offset):
    return f"{__file__}:{inspect.getsourcelines(function)[1] + offset}"


def test_unknown_operator_is_named_with_its_line(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def model(x):
        y = x + 1
        return torch.linalg.svd(y)[0]

    with pytest.raises(FrontendError, match="aten._linalg_svd") as caught:
        import_model(model, (torch.randn(4, 4),))
    assert caught.value.operator == "aten._linalg_svd.default"
    assert caught.value.location == line_of(model, 2)
    assert str(caught.value).startswith(line_of(model, 2))
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path) == []


def test_error_inside_a_module_names_the_users_line_not_torchs():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.special.i0(x)

    model = nn.Sequential(nn.Linear(3, 3), Inner())
    with pytest.raises(FrontendError, match="aten.i0") as caught:
        import_model(model, (torch.randn(2, 3),))
    assert caught.value.location == line_of(Inner.forward, 1)


def test_custom_operator_is_named():
    @torch.library.custom_op("kitsune_test::mystery", mutates_args=())
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    mystery.register_fake(torch.empty_like)
    with pytest.raises(FrontendError, match="kitsune_test.mystery"):
        import_model(lambda x: mystery(x) + 1, (torch.randn(3),))


def data_dependent_mask(x):
    return x[x > 0]


def data_dependent_number(x):
    return x * x.sum().item()


def data_dependent_branch(x):
    return x if x.sum() > 0 else -x


def data_dependent_size(x):
    return torch.nonzero(x)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (data_dependent_mask, "index"),
        (data_dependent_number, "item"),
        (data_dependent_branch, "Eq(u0, 1)"),
        (data_dependent_size, "nonzero"),
    ],
)
def test_data_dependence_names_the_value(function, value, capfd):
    with pytest.raises(DynamicShapeError) as caught:
        import_model(function, (torch.randn(4, 4),))
    assert caught.value.value == value
    assert value in str(caught.value)
    assert caught.value.location == line_of(function, 1)
    assert capfd.readouterr() == ("", "")


def test_dynamic_dimension_is_named():
    program = torch.export.export(
        nn.Linear(3, 4), (torch.randn(2, 3),), dynamic_shapes={"input": {0: torch.export.Dim("rows")}}
    )
    with pytest.raises(DynamicShapeError, match="'input'") as caught:
        import_model(program)
    assert caught.value.value == "input"


def test_random_operator_is_refused():
    with pytest.raises(FrontendError, match="draws random numbers.*eval"):
        import_model(nn.Dropout(0.5), (torch.randn(3),))


def test_wrong_inputs_keep_torchs_message():
    with pytest.raises(FrontendError, match="cannot trace") as caught:
        import_model(Located(), (torch.randn(3, 4),))
    assert caught.value.location == line_of(Located.forward, 1)


# Dynamo


def test_graph_module_from_dynamo():
    imports = []

    def backend(graph_module, example_inputs):
        imported = import_graph_module(graph_module, example_inputs)
        imports.append(imported)
        return lambda *inputs: run(imported, inputs)[0]

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(2, 3)
    with torch.no_grad():
        actual = torch.compile(model, backend=backend)(x)
        torch.testing.assert_close(actual, model(x))
    assert [a.kind for a in imports[0].arguments] == ["input"] * 3
    assert [a.position for a in imports[0].arguments] == [0, 1, 2]


def test_symbolic_size_from_dynamo_is_refused():
    def backend(graph_module, example_inputs):
        with pytest.raises(DynamicShapeError, match="dynamic=False"):
            import_graph_module(graph_module, example_inputs)
        return graph_module

    compiled = torch.compile(lambda x: x + x.shape[0], backend=backend, dynamic=True)
    compiled(torch.randn(5, 3))


def test_graph_module_with_attributes():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.weight

    traced = torch.fx.symbolic_trace(Plain())
    x = torch.randn(2, 3)
    imported = import_graph_module(traced, [x])
    assert [a.kind for a in imported.arguments] == ["parameter", "input"]
    torch.testing.assert_close(run(imported, (x,))[0], traced(x))
