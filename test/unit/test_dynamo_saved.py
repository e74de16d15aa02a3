"""Compiled graphs that are written down: `aot_compile`, `save_compiled_function`, `load_compiled_function`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler._cache import CacheArtifactManager

import kitsune_mlir
from kitsune_mlir.dynamo.saved import SavedFunction

R = torch.randn
torch._dynamo.config.enable_aot_compile = True  # PyTorch 2.11 has it off


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.gelu(self.norm(self.inner(x))))


def biased(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x @ w + torch.tensor([1.0, -2.0, 3.0]))
    return y, y.t()


def island(x: Tensor) -> Tensor:
    return torch.linalg.qr(torch.relu(x) + 1)[1].abs() + x.sum()


def counting(x: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    return x * count


def compiled(function, *args, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="kitsune", fullgraph=True, **options).aot_compile((args, {}))


def again(function, path: Path):
    """What a file holds, read in this process."""
    function.save_compiled_function(str(path))
    with open(path, "rb") as file:
        found = torch.compiler.load_compiled_function(file)
    assert isinstance(found._artifacts.compiled_fn, SavedFunction)
    return found


def test_a_function(tmp_path):
    x, w = R(5, 4), R(4, 3)
    first = compiled(biased, x, w)
    for run in (first, again(first, tmp_path / "f")):
        for args in ((x, w), (R(5, 4), R(4, 3))):
            y, transposed = run(*args)
            torch.testing.assert_close((y, transposed), biased(*args))
            y.zero_()
            assert not transposed.any() and transposed.stride() == biased(*args)[1].stride()


@torch.no_grad()
def test_a_module_and_its_weights(tmp_path):
    model = Net().eval()
    x = R(6, 12)
    torch._dynamo.reset()
    first = torch.compile(model, backend="kitsune", fullgraph=True).forward.aot_compile(((x,), {}))
    found = again(first, tmp_path / "f")
    torch.testing.assert_close(found(model, x), model(x))
    model.inner.weight.mul_(2)
    torch.testing.assert_close(found(model, x), model(x))
    other = Net().eval()
    torch.testing.assert_close(found(other, x), other(x))


def test_gradients(tmp_path):
    model = Net().eval()
    x = R(6, 12, requires_grad=True)
    torch._dynamo.reset()
    first = torch.compile(model, backend="kitsune", fullgraph=True).forward.aot_compile(((x,), {}))
    for run in (first, again(first, tmp_path / "f")):
        wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        found = torch.autograd.grad(run(model, x).square().sum(), [x, *model.parameters()])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_islands(tmp_path):
    x = R(5, 4)
    found = again(compiled(island, x, options={"min_part": 1}), tmp_path / "f")
    torch.testing.assert_close(found(x), island(x), rtol=1e-4, atol=1e-4)


def test_what_is_written_to(tmp_path):
    x, count = R(3), torch.zeros(3)
    found = again(compiled(counting, x, count), tmp_path / "f")
    torch.testing.assert_close(found(x, count), x)
    assert count.eq(1).all()
    both = torch.ones(4)
    assert found(both[:3], both[1:]).tolist() == [2, 4, 4]  # they share memory now: PyTorch runs it


def test_sizes_that_change(tmp_path):
    x, w = R(5, 4), R(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    first = compiled(biased, x, w)
    torch.testing.assert_close(first(x, w), biased(x, w))
    found = again(first, tmp_path / "f")
    for rows in (5, 9):
        x = R(rows, 4)
        torch.testing.assert_close(found(x, w), biased(x, w))


@pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="its aot_eager cannot write graphs down")
def test_another_backends_result_is_not_taken():
    """PyTorch keeps what is compiled so on disk; its key does not name the backend."""
    x, w = R(5, 4), R(4, 3)
    torch._dynamo.reset()
    torch.compile(biased, backend="aot_eager", fullgraph=True).aot_compile(((x, w), {}))
    threads = [compiled(biased, x, w, options={"threads": n})._artifacts.compiled_fn for n in (1, 2)]
    assert all(isinstance(one, SavedFunction) for one in threads)
    torch._dynamo.reset()
    eager = torch.compile(biased, backend="aot_eager", fullgraph=True).aot_compile(((x, w), {}))
    assert not isinstance(eager._artifacts.compiled_fn, SavedFunction)


def test_a_damaged_program_is_a_package_error(tmp_path):
    import pickle

    from kitsune_mlir.errors import PackageError

    run = compiled(biased, R(5, 4), R(4, 3))._artifacts.compiled_fn
    data = bytearray(SavedFunction.serialize_compile_artifacts(run))
    at = data.index(b"manifest.json")
    data[at + 200] ^= 1
    with pytest.raises((PackageError, pickle.UnpicklingError)):
        SavedFunction.deserialize_compile_artifacts(bytes(data))


OTHER = """
import sys, torch
from kitsune_mlir.cache.store import Store
function, artifacts, tensors = sys.argv[1:]
x, w, y, model, given = torch.load(tensors, weights_only=False)
with open(function, "rb") as file:
    found = torch.compiler.load_compiled_function(file)
torch.testing.assert_close(found(x, w)[0], y)
fast = torch.compile(model, backend="kitsune")
with open(artifacts, "rb") as file:
    info = torch.compiler.load_cache_artifacts(file.read())
assert len(info.artifacts["kitsune_programs"]) == 1 == len(Store().entries()), info
with torch.no_grad():
    torch.testing.assert_close(fast(given), model(given))
_, info = torch.compiler.save_cache_artifacts()
assert len(info.artifacts["kitsune_programs"]) == 1, info
compiler = [name for name in sys.modules if name.startswith("kitsune_mlir.passes") or name == "kitsune_mlir.pipeline"]
assert not compiler, compiler
"""


def test_another_process_needs_no_compiler(tmp_path, monkeypatch):
    """For a function that is written down, and for a graph among PyTorch's artifacts of compiling."""
    function, artifacts, tensors = (tmp_path / name for name in ("function", "artifacts", "tensors"))
    x, w = R(5, 4), R(4, 3)
    compiled(biased, x, w).save_compiled_function(str(function))
    torch._dynamo.reset()
    CacheArtifactManager.clear()
    model, given = nn.Sequential(nn.Linear(4, 8), nn.GELU()).eval(), R(3, 4)
    monkeypatch.setenv("KITSUNE_CACHE", "1")
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path / "first"))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="kitsune")(given), model(given))
    data, info = torch.compiler.save_cache_artifacts()
    assert len(info.artifacts["kitsune_programs"]) == 1, info
    artifacts.write_bytes(data)
    torch.save((x, w, biased(x, w)[0], model, given), tensors)
    environment = {**os.environ, "KITSUNE_CACHE_DIR": str(tmp_path / "second")}
    subprocess.run([sys.executable, "-c", OTHER, *map(str, (function, artifacts, tensors))], check=True, env=environment)


def test_artifacts_are_whole_packages_and_name_no_files_elsewhere(tmp_path, monkeypatch):
    from kitsune_mlir.dynamo import artifacts

    monkeypatch.setenv("KITSUNE_CACHE", "1")
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path / "cache"))
    kitsune_mlir.compile(nn.Tanh(), (R(3),), options={"cache": False}).save(tmp_path / "program.kit")
    package = (tmp_path / "program.kit").read_bytes()
    (tmp_path / "program.kit").unlink()
    artifacts._keep("../../stray", package)
    artifacts._keep("0" * 64, b"1")
    artifacts._keep("1" * 64, package[:-1])
    artifacts._keep("2" * 64, package)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.parent.name == "programs"] == ["2" * 64]
    assert not list(tmp_path.rglob("stray"))
