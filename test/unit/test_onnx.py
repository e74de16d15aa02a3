"""ONNX models: what they give is what PyTorch gives, weights keep their names, and what cannot be read is an error in words."""

import copy
import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, DynamicShapeError, FrontendError
from test.numerics.compare import beside_eager
from test.programs.file_models import MODELS, fresh
from test.rotation import in_turn
from test.unit.test_sources import runs, section

needs_onnx = pytest.mark.skipif(importlib.util.find_spec("onnx") is None, reason="needs the package onnx")


def write(model: torch.nn.Module, args: tuple[Any, ...], path: Path, **options: Any) -> None:
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, str(path), dynamo=True, verbose=False, **options)


@needs_onnx
@pytest.mark.parametrize("name", in_turn([*MODELS], 2))
def test_models_give_what_they_give_in_pytorch(name: str, tmp_path: Path) -> None:
    model, example, args = fresh(name)
    write(model, example, tmp_path / "m.onnx", external_data=False)
    program = kitsune_mlir.compile(tmp_path / "m.onnx", target="host")
    given = copy.deepcopy(args)
    got = program(*given)
    assert not beside_eager(model, args, [got] if isinstance(got, torch.Tensor) else got)
    assert all(torch.equal(a, b) for a, b in zip(args, given, strict=True))
    assert len(program.signature.inputs) == len(args)


@needs_onnx
def test_weights_keep_their_names_and_packages_hold_them(tmp_path: Path) -> None:
    """The data may lie beside the file."""
    model, example, args = fresh("mlp")
    for external in (False, True):
        write(model, example, tmp_path / "m.onnx", external_data=external, input_names=["rows"])
        program = kitsune_mlir.compile(tmp_path / "m.onnx", target="host")
        assert [w.kind for w in program.signature.weights] == ["parameter"] * 4 and program.signature.parameters == ("rows",)
        assert {*program.weights} == {*model.state_dict()}
        other = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
        program.save(tmp_path / "m.kit", weights=False)
        again = kitsune_mlir.load(tmp_path / "m.kit", other)
        changed = copy.deepcopy(model)
        changed.load_state_dict(other)
        assert not beside_eager(changed, args, [again(rows=args[0])])


@needs_onnx
def test_a_gpu_s_code(tmp_path: Path) -> None:
    model, example, _ = fresh("images")
    write(model, example, tmp_path / "m.onnx", external_data=False)
    program = kitsune_mlir.compile(tmp_path / "m.onnx", target="h200")
    direct = kitsune_mlir.compile(model, example, target="h200")
    assert len(program.summary["stages"]) == len(direct.summary["stages"]) and not program.summary["slow"]


@needs_onnx
def test_the_section_on_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, example, _ = fresh("mlp")
    write(model, example, tmp_path / "m.onnx", input_names=["x"], dynamic_shapes=({0: torch.export.Dim("rows")},))
    x = torch.randn(3, 7)
    found = runs(section("ONNX"), tmp_path, monkeypatch, torch=torch, kitsune_mlir=kitsune_mlir, x=x)
    torch.testing.assert_close(found["y"], model(x))


def made(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], tables: dict[str, Any], opset: int = 20) -> Any:
    """A model of nodes; inputs and outputs are shapes (of f32) by name."""
    import onnx
    from onnx import helper, numpy_helper

    def values(shapes: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    numbers = [numpy_helper.from_array(torch.as_tensor(table).numpy(), name) for name, table in tables.items()]
    graph = helper.make_graph(
        [helper.make_node(*node[:3], **node[3]) for node in nodes], "g", values(inputs), values(outputs), numbers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def saved(model: Any, path: Path) -> Path:
    import onnx

    onnx.save(model, str(path))
    return path


@needs_onnx
def test_settings_are_compiled_in_and_weights_are_not(tmp_path: Path) -> None:
    """Bounds of a clip and scales of a resize are numbers of the code; old files declare weights as inputs too."""
    scales, weight, bias = torch.tensor([1.0, 1, 2, 2]), torch.randn(4, 3, 1, 1), torch.randn(4)
    nodes = [
        ("Conv", ["x", "w", "b"], ["c"], {}),
        ("Resize", ["c", "", "scales"], ["r"], {"mode": "nearest"}),
        ("Clip", ["r", "low", "high"], ["y"], {}),
    ]
    tables = {"w": weight, "b": bias, "scales": scales, "low": torch.tensor(-0.5), "high": torch.tensor(0.25)}
    inputs = {"x": [2, 3, 5, 7], "w": [4, 3, 1, 1], "scales": [4]}
    path = saved(made(nodes, inputs, {"y": [2, 4, 10, 14]}, tables), tmp_path / "m.onnx")
    program, x = kitsune_mlir.compile(path, target="host"), torch.randn(2, 3, 5, 7)
    want = torch.nn.functional.interpolate(torch.nn.functional.conv2d(x, weight, bias), scale_factor=2).clamp(-0.5, 0.25)
    torch.testing.assert_close(program(x), want)
    assert {*program.weights} == {"w", "b"} and program.signature.parameters == ("x",)


@needs_onnx
def test_open_dimensions_are_those_of_the_examples(tmp_path: Path) -> None:
    weight = torch.randn(7, 3)
    model = made(
        [("MatMul", ["x", "w"], ["y"], {}), ("Add", ["y", "z"], ["s"], {})],
        {"x": ["rows", 7], "z": [None, 3]},
        {"s": [None, 3]},
        {"w": weight},
    )
    path = saved(model, tmp_path / "m.onnx")
    with pytest.raises(DynamicShapeError, match=r"input 'x' has the shape \[rows, 7\]: pass examples"):
        kitsune_mlir.compile(path, target="host")
    with pytest.raises(DynamicShapeError, match=r"input 'z' has the shape \[\?, 3\]: pass examples"):
        kitsune_mlir.compile(path, (torch.randn(5, 7),), target="host")
    for args, kwargs in (((torch.randn(5, 7), torch.randn(1, 3)), {}), ((torch.randn(5, 7),), {"z": torch.randn(5, 3)})):
        program = kitsune_mlir.compile(path, args, kwargs, target="host")
        x, z = torch.randn(5, 7), torch.randn_like([*args, *kwargs.values()][1])
        torch.testing.assert_close(program(x, z), x @ weight + z)
    for args, kwargs, words in (
        ((torch.randn(5, 8), torch.randn(5, 3)), {}, r"input 'x' is f32 \['rows', 7\], and the example f32 \[5, 8\]"),
        ((torch.randn(5, 7).double(), torch.randn(5, 3)), {}, r"and the example f64 \[5, 7\]"),
        ((3, torch.randn(5, 3)), {}, "and the example 3"),
        ((torch.randn(5, 7),), {"v": 3}, "an example is given for input v; the model's inputs are x, z"),
        ((torch.randn(5, 7),) * 3, {}, "an example is given for input number 2; the model's inputs are x, z"),
    ):
        with pytest.raises(ArgumentError, match=words):
            kitsune_mlir.compile(path, args, kwargs, target="host")


@needs_onnx
def test_what_cannot_be_imported(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(FileNotFoundError):
        kitsune_mlir.compile(path, target="host")
    whole = saved(made([("Relu", ["x"], ["y"], {})], {"x": [3]}, {"y": [3]}, {}), path).read_bytes()
    cases = [(b"hello", "not a valid ONNX model"), (whole[:20], "not a valid ONNX model"), (b"", "not a valid ONNX model")]
    for data, words in cases:
        path.write_bytes(data)
        with pytest.raises(FrontendError, match=f"m.onnx: {words}"):
            kitsune_mlir.compile(path, target="host")
    saved(made([("NonZero", ["x"], ["y"], {})], {"x": [3]}, {"y": [1, "n"]}, {}), path)
    with pytest.raises(FrontendError, match="NonZero|known only at run time"):
        kitsune_mlir.compile(path, target="host")
    steps = torch.randn(1, 24, 5), torch.randn(1, 24, 6)
    recurrent = [("LSTM", ["x", "w", "r"], ["y"], {"hidden_size": 6})]
    saved(made(recurrent, {"x": [65, 2, 5]}, {"y": [65, 1, 2, 6]}, {"w": steps[0], "r": steps[1]}), path)
    with pytest.raises(FrontendError, match="operator 'onnx.LSTM' is a loop of 65 turns; at most 64 are written out"):
        kitsune_mlir.compile(path, target="host")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(FrontendError, match=r"ONNX models need the package onnx: pip install 'kitsune-mlir\[onnx\]'"):
        kitsune_mlir.compile(tmp_path / "m.onnx", target="host")
