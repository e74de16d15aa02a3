"""Programs and kernels on disk: found again when they are the same, and only then; bounded; damaged ones are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir import pipeline
from kitsune_mlir.cache.store import Store, store_of
from kitsune_mlir.codegen.gpu.backend import assembling
from kitsune_mlir.errors import AssemblyTimeout, CompileError, PerformanceWarning
from kitsune_mlir.frontend import export_model
from kitsune_mlir.frontend.graph_text import graph_text


class Net(nn.Module):
    """A product, a norm and a constant."""

    def __init__(self, width: int = 24, shift: float = 0.5):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.shift = shift

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        table = torch.tensor([self.shift, 1.0, 2.0])
        return {"y": self.norm(self.linear(x)) + table[0], "x": x}


def compiled(model, *args, folder: Path, **options) -> kitsune_mlir.Program:
    target = options.pop("target", "host")
    with torch.no_grad():
        return kitsune_mlir.compile(model, args, target=target, options={"cache": True, "cache_dir": str(folder), **options})


@pytest.fixture
def once(monkeypatch):
    """How often something was compiled."""
    count, really = [], pipeline.compile_imported

    def counted(*args):
        count.append(args)
        return really(*args)

    monkeypatch.setattr(pipeline, "compile_imported", counted)
    return count


def test_tests_keep_nothing():
    assert os.environ["KITSUNE_CACHE"] == "0" and store_of(None, None) is None


def test_a_program_is_found_again(tmp_path, once):
    model, x = Net().eval(), torch.randn(5, 24)
    first = compiled(model, x, folder=tmp_path)
    second = compiled(model, x, folder=tmp_path, threads=1)
    assert len(once) == 1 and second.levels == first.levels and second.ir("tiles") == first.ir("tiles")
    assert second.explain() == first.explain() and set(second.seconds) == {"import"}
    torch.testing.assert_close(second(x), model(x))
    with torch.no_grad():
        model.linear.weight.mul_(-2)  # weights are the model's
    torch.testing.assert_close(second(x), model(x))
    again = Net().eval()  # other values of weights are other weights of the same program
    torch.testing.assert_close(compiled(again, x, folder=tmp_path)(x), again(x))
    assert len(once) == 1
    second.save(tmp_path / "m.kit")
    torch.testing.assert_close(kitsune_mlir.load(tmp_path / "m.kit")(x), model(x))


def test_what_makes_another_program(tmp_path, once):
    model, x = Net().eval(), torch.randn(5, 24)
    compiled(model, x, folder=tmp_path)
    other = Net(shift=0.25).eval()
    torch.testing.assert_close(compiled(other, x, folder=tmp_path)(x), other(x))
    assert len(once) == 2
    compiled(model, torch.randn(6, 24), folder=tmp_path)
    compiled(model.double(), x.double(), folder=tmp_path)
    compiled(model.float(), x, folder=tmp_path, passes={"kitsune-form-stages": "chains=false"})
    assert len(once) == 5
    compiled(model, x, folder=tmp_path, on_phase=lambda name: None)
    assert len(once) == 5


class Tied(nn.Module):
    def __init__(self, tied: bool):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        if tied:
            self.two.weight = self.one.weight
        else:
            self.two.weight = nn.Parameter(self.one.weight.detach().clone())

    def forward(self, x):
        return self.two(self.one(x))


def test_tied_weights_are_another_program(tmp_path, once):
    x = torch.randn(3, 8)
    for tied in (True, False, True, False):
        model = Tied(tied)
        torch.testing.assert_close(compiled(model, x, folder=tmp_path)(x), model(x).detach())
    assert len(once) == 2


class Counting(nn.Module):
    """A buffer that is written, and one that is not kept in state dicts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.rand(4), persistent=False)

    def forward(self, x):
        self.get_buffer("calls").add_(1)
        return x * self.scale + self.calls


def test_buffers_are_the_models(tmp_path, once):
    x = torch.randn(2, 4)
    for _ in range(2):
        model = Counting()
        program = compiled(model, x, folder=tmp_path)
        torch.testing.assert_close(program(x), x * model.get_buffer("scale") + 1)
        assert model.calls == 1
    assert len(once) == 1


def test_folded_norms_are_folded_again(tmp_path, once):
    x = torch.randn(1, 3, 8, 8)
    for _ in range(2):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
        with torch.no_grad():
            model.get_buffer("1.running_mean").normal_()
        torch.testing.assert_close(compiled(model, x, folder=tmp_path)(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert len(once) == 1


def test_a_structure_that_no_file_holds(tmp_path, once):
    from torch.utils import _pytree

    class Pair(tuple):
        pass

    _pytree.register_pytree_node(Pair, lambda p: (list(p), None), lambda values, _: Pair(values))

    def function(x):
        return Pair((x + 1, x * 2))

    x = torch.randn(3)
    for _ in range(2):
        found = compiled(function, x, folder=tmp_path)(x)
        assert isinstance(found, Pair) and torch.equal(found[1], x * 2)
    assert len(once) == 1


STABLEHLO = """module @m {
  func.func public @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %c = stablehlo.constant dense<[[1.0, 2.0, 3.0, 4.0]]> : tensor<1x4xf32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.SUM %x, %0 : tensor<3x4xf32>
    return %1 : tensor<3x4xf32>
  }
}
"""


def test_programs_of_stablehlo_are_found_again(tmp_path, once):
    x, c = torch.randn(3, 4), torch.tensor([1.0, 2, 3, 4])
    file = tmp_path / "m.mlir"
    for name, made in (("add", x + c), ("add", x + c), ("multiply", x * c), ("add", x + c)):
        file.write_text(STABLEHLO.replace("SUM", name))
        torch.testing.assert_close(compiled(str(file), folder=tmp_path)(x), made)
    assert len(once) == 2
    file.write_text(STABLEHLO.replace("SUM", "add").replace("4.0", "7.0"))
    torch.testing.assert_close(compiled(str(file), folder=tmp_path)(x), x + torch.tensor([1.0, 2, 3, 7]))


def test_programs_of_onnx_are_found_again(tmp_path, once):
    pytest.importorskip("onnx")
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x, file = torch.randn(3, 4), tmp_path / "m.onnx"
    for rows in (2, 5, 2):
        weight = torch.randn(4, rows)
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, rows])]
        held = [numpy_helper.from_array(weight.numpy(), "w")]
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, held)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), file)
        torch.testing.assert_close(compiled(str(file), folder=tmp_path)(x), x @ weight)  # values are the file's own
    assert len(once) == 2


def test_operators_of_others_have_no_text():
    library = torch.library.Library("kitsune_cache_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    x = torch.randn(3)
    assert graph_text(export_model(lambda x: torch.ops.kitsune_cache_test.twice(x) + 1, (x,))) is None
    text = graph_text(export_model(lambda x: torch.where(x > 0, x, x + 1), (x,)))
    assert text is not None and "aten.where.self" in text and f"{__file__}" in text


def test_remarks_are_made_again(tmp_path, once):
    model, x = Net().eval(), torch.randn(5, 24)
    compiled(model, x, folder=tmp_path)
    heard: list[list] = [[], []]
    for listener in heard:
        compiled(model, x, folder=tmp_path, on_remark=listener.append)
    assert len(once) == 2 and heard[0] == heard[1] and heard[0]  # the first time nobody listened
    compiled(model, x, folder=tmp_path)
    assert len(once) == 2


def test_warnings_are_given_again(tmp_path, once, monkeypatch):
    really = pipeline.compile_imported
    slow = {
        "task": "t",
        "engine": "e",
        "tiles": 1,
        "reason": "why",
        "microseconds": 9.0,
        "floor_microseconds": 1.0,
        "source": "",
    }

    def made(*args):
        program = really(*args)
        program.summary["slow"] = [slow]
        return program

    monkeypatch.setattr(pipeline, "compile_imported", made)
    for _ in range(2):
        with pytest.warns(PerformanceWarning, match="stage t"):
            compiled(Net().eval(), torch.randn(5, 24), folder=tmp_path)
    assert len(once) == 1


@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: d[:500] + bytes([d[500] ^ 1]) + d[501:], lambda d: b""]
)
def test_a_damaged_program_is_none(damage, tmp_path, once):
    model, x = Net().eval(), torch.randn(5, 24)
    compiled(model, x, folder=tmp_path)
    (file,) = (tmp_path / "programs").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    torch.testing.assert_close(compiled(model, x, folder=tmp_path)(x), model(x))
    assert len(once) == 2
    compiled(model, x, folder=tmp_path)
    assert len(once) == 2


def test_a_folder_that_takes_nothing(tmp_path, once):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        compiled(Net().eval(), torch.randn(5, 24), folder=tmp_path / "file")
    assert len(once) == 2


# --- kernels ----------------------------------------------------------------------------------------------------------------


def test_a_kernel_is_assembled_once(tmp_path, monkeypatch):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU()).bfloat16(), torch.randn(128, 64).bfloat16()
    first = compiled(model, x, folder=tmp_path, target="sm_90a")
    Store(tmp_path).clear("programs")

    def never(*args):
        raise AssertionError("assembled again")

    with monkeypatch.context() as patched:
        patched.setattr(assembling, "assemble_best", never)
        second = compiled(model, x, folder=tmp_path, target="sm_90a")
        assert second.artifacts == first.artifacts and second.summary["kernels"] == first.summary["kernels"]
        Store(tmp_path).clear("programs")
        for file in (tmp_path / "cubins").iterdir():
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CompileError, match="assembled again"):
            compiled(model, x, folder=tmp_path, target="sm_90a")
    assert compiled(model, x, folder=tmp_path, target="sm_90a").artifacts == first.artifacts


def test_what_took_too_long_is_not_kept(tmp_path, monkeypatch):
    def late(ptx, chip, seconds):
        raise AssemblyTimeout("kernel", seconds, seconds)

    monkeypatch.setattr(assembling, "assemble_best", late)
    with pytest.raises(AssemblyTimeout):
        compiled(nn.ReLU(), torch.randn(64), folder=tmp_path, target="sm_90a")
    assert not Store(tmp_path).entries()
