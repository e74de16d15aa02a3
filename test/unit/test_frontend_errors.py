"""The frontend: source locations in the IR, and what its errors name."""

from __future__ import annotations

import inspect
import os

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import DynamicShapeError, FrontendError
from kitsune_mlir.frontend import import_model, traced_model
from kitsune_mlir.frontend.lower import lower_to_linalg


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
            return torch.special.airy_ai(x)

    model = nn.Sequential(nn.Linear(3, 3), Inner())
    with pytest.raises(FrontendError, match="aten.special_airy_ai") as caught:
        import_model(model, (torch.randn(2, 3),))
    assert caught.value.location == line_of(Inner.forward, 1)


def test_what_takes_a_constant_is_named_and_not_the_constant():
    """torch-mlir has no lowering for `as_strided_scatter`, which does not come to it from here."""
    text = """func.func @main(%x: !torch.vtensor<[2],f32>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) {
      %zeros = torch.vtensor.literal(dense<0.0> : tensor<4xf32>) : !torch.vtensor<[4],f32> loc("aten.full"("m.py":3:0))
      %n = torch.aten.neg %zeros : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
      %one = torch.constant.int 1
      %two = torch.constant.int 2
      %list = torch.prim.ListConstruct %two : (!torch.int) -> !torch.list<int>
      %r = torch.aten.as_strided_scatter %zeros, %x, %list, %list, %one : !torch.vtensor<[4],f32>, !torch.vtensor<[2],f32>,
        !torch.list<int>, !torch.list<int>, !torch.int -> !torch.vtensor<[4],f32>
      return %n, %r : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
    }"""
    with new_context() as context:
        torch_dialect.register_dialect(context)
        module = ir.Module.parse(text)
        with pytest.raises(FrontendError, match="as_strided_scatter"):
            lower_to_linalg(module)


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


def test_random_numbers_that_nothing_reads_are_left_out():
    def layer_drop(x):
        torch.rand([])  # as libraries draw for LayerDrop when they infer
        return x + 1

    assert "rand" not in str(import_model(layer_drop, (torch.randn(3),)).module)


def test_wrong_inputs_keep_torchs_message():
    with pytest.raises(FrontendError, match="cannot trace") as caught:
        import_model(Located(), (torch.randn(3, 4),))
    assert caught.value.location == line_of(Located.forward, 1)


def test_symbolic_size_of_a_traced_graph_is_refused():
    def compiler(graph, example_inputs):
        with pytest.raises(DynamicShapeError, match="known only at run time"):
            traced_model(graph)
        return make_boxed_func(graph.forward)

    compiled = torch.compile(lambda x: x + x.shape[0], backend=aot_autograd(fw_compiler=compiler), dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(5, 3))
