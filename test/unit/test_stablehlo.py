"""StableHLO modules: what they compute, their constants as weights, and what cannot be read as an error in words."""

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch_mlir import fx

import kitsune_mlir
from kitsune_mlir.errors import DynamicShapeError, FrontendError
from kitsune_mlir.runtime.signature import torch_dtype
from test.numerics.compare import beside_eager
from test.programs.file_models import MODELS, fresh
from test.rotation import in_turn
from test.unit.test_sources import runs, section

CALLED = """
module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<3x7xf32> {mhlo.layout_mode = "default"}, %arg1: tensor<2xui8>)
      -> (tensor<3x2xf32> {jax.result_info = "result"}, tensor<2xui8>) {
    %w = stablehlo.constant dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0], [11.0, 12.0], [13.0, 14.0]]>
        : tensor<7x2xf32>
    %0 = stablehlo.dot_general %arg0, %w, contracting_dims = [1] x [0] : (tensor<3x7xf32>, tensor<7x2xf32>) -> tensor<3x2xf32>
    %1 = call @relu(%0) : (tensor<3x2xf32>) -> tensor<3x2xf32>
    return %1, %arg1 : tensor<3x2xf32>, tensor<2xui8>
  }
  func.func private @relu(%arg0: tensor<3x2xf32>) -> tensor<3x2xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x2xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<3x2xf32>
    return %1 : tensor<3x2xf32>
  }
}
"""


def write(name: str, path: Path) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """What torch-mlir makes of a model; its weights are constants there."""
    model, example, args = fresh(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path.write_text(str(fx.export_and_import(model, *example, output_type="stablehlo", func_name="main")))
    return model, args


@pytest.mark.parametrize("name", in_turn([*MODELS], 3))
def test_models_give_what_they_give_in_pytorch(name: str, tmp_path: Path) -> None:
    model, args = write(name, tmp_path / "m.mlir")
    program = kitsune_mlir.compile(tmp_path / "m.mlir", target="host")
    got = program(*args)
    assert not beside_eager(model, args, [got] if isinstance(got, torch.Tensor) else got)
    assert {weight.kind for weight in program.signature.weights} <= {"constant"}


def test_the_section_on_stablehlo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x,) = write("mlp", tmp_path / "m.stablehlo.mlir")
    found = runs(section("StableHLO"), tmp_path, monkeypatch, kitsune_mlir=kitsune_mlir, x=x)
    torch.testing.assert_close(found["y"], model(x))


def test_functions_that_are_called_and_arguments_handed_back(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(CALLED)
    for target in ("host", "h200"):
        program = kitsune_mlir.compile(tmp_path / "m.mlir", target=target)
        program.save(tmp_path / "m.kit")
    program = kitsune_mlir.compile(tmp_path / "m.mlir", target="host")
    x, n = torch.randn(3, 7), torch.tensor([3, 250], dtype=torch.uint8)
    y, same = program(x, n)
    torch.testing.assert_close(y, (x @ torch.arange(1.0, 15).reshape(7, 2)).relu())
    assert torch.equal(same, n) and same.dtype == torch.uint8


WHILE = """
func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
  %i = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%a = %i, %b = %x) : tensor<i32>, tensor<3xf32>
    cond { %c = stablehlo.compare LT, %a, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %c : tensor<i1> }
    do { %one = stablehlo.constant dense<1> : tensor<i32>
         %c = stablehlo.add %a, %one : tensor<i32>
         %d = stablehlo.add %b, %b : tensor<3xf32>
         stablehlo.return %c, %d : tensor<i32>, tensor<3xf32> }
  return %0#1 : tensor<3xf32>
}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "m.mlir: not a module of StableHLO: "),
        (CALLED[: len(CALLED) // 2], "m.mlir: not a module of StableHLO: "),
        ("func.func private @f() { return }", "a module has a function 'main', or one public function, not 0"),
        (
            "func.func @f() { return }\nfunc.func @g() { return }",
            "a module has a function 'main', or one public function, not 2",
        ),
        (WHILE, "m.mlir:4: operation 'stablehlo.while' has no lowering to linalg"),
        (
            "func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> {\n%0 = stablehlo.custom_call @lapack(%x) : (tensor<3xf32>) ->"
            " tensor<3xf32>\nreturn %0 : tensor<3xf32> }",
            "m.mlir:2: operation 'stablehlo.custom_call' has no lowering to linalg",
        ),
    ],
)
def test_what_cannot_be_imported(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(text)
    with pytest.raises(FrontendError) as caught:
        kitsune_mlir.compile(tmp_path / "m.mlir", target="host")
    assert words in str(caught.value)


def test_open_dimensions(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(
        "func.func @main(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {\n%0 = stablehlo.add %x, %x : tensor<?x3xf32>\n"
        "return %0 : tensor<?x3xf32> }"
    )
    with pytest.raises(DynamicShapeError, match=r"a value of type tensor<\?x3xf32> has a shape that is known only at run time"):
        kitsune_mlir.compile(tmp_path / "m.mlir", target="host")
    with pytest.raises(FileNotFoundError):
        kitsune_mlir.compile(tmp_path / "none.mlir", target="host")


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", ["i1", "i8", "ui8", "i32", "i64", "f64", "f32", "f16", "bf16"])
def test_constants_of_every_type(kind: str, many: bool, tmp_path: Path) -> None:
    """Short ones are written as numbers, long ones as bits."""
    values = ["true", "false"] if kind == "i1" else ["-1.5", "3.0"] if "f" in kind else ["2", "77"]
    if kind in ("f32", "bf16"):
        values.append({"f32": "0x7FC00000", "bf16": "0x7FC0"}[kind])
    numbers = values * (100 if many else 1)
    tensor, mask = f"tensor<{len(numbers)}x{kind}>", f"tensor<{len(numbers)}xi1>"
    (tmp_path / "m.mlir").write_text(
        f"func.func @main(%x: {tensor}, %p: tensor<i1>) -> {tensor} {{\n"
        f"%c = stablehlo.constant dense<[{', '.join(numbers)}]> : {tensor}\n"
        f"%b = stablehlo.broadcast_in_dim %p, dims = [] : (tensor<i1>) -> {mask}\n"
        f"%1 = stablehlo.select %b, %x, %c : {mask}, {tensor}\nreturn %1 : {tensor} }}"
    )
    program = kitsune_mlir.compile(tmp_path / "m.mlir", target="host")
    dtype = torch_dtype(kind)
    known = {"true": 1.0, "false": 0.0, "0x7FC00000": math.nan, "0x7FC0": math.nan}
    want = torch.tensor([known[one] if one in known else float(one) for one in numbers])
    got = program(torch.zeros(len(numbers), dtype=dtype), torch.tensor(False))
    assert got.dtype == dtype and torch.equal(got.double().nan_to_num(99.0), want.double().nan_to_num(99.0))
