"""Packages of programs for many sizes: the same results without the compiler, and an error for whatever is wrong with one."""

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.export import Dim

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError, PackageError
from kitsune_mlir.runtime.package import sealed
from kitsune_mlir.sized.expressions import check_size, size_at
from kitsune_mlir.sized.replay import check_replay
from kitsune_mlir.tools.kitsune import main

pytestmark = pytest.mark.usefixtures("drawn_today")
R = torch.randn


class Net(nn.Module):
    """A result, a view of it, a view of the input, a number; a buffer counts."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x):
        self.total.add_(x.sum(0))
        y = torch.relu(self.inner(x))
        return y, y.t(), x.view(-1), 3 * x.shape[0]


def by_size(a, b):
    return torch.sort(torch.relu(a) @ b, 0)[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sized")
    model = Net().eval()
    program = kitsune_mlir.compile(model, (R(9, 6),), dynamic={"x": {0: Dim("n", max=300)}})
    program.save(folder / "padded.kit")
    exact = kitsune_mlir.compile(by_size, (R(5, 4), R(4, 3)), dynamic=[{0: Dim("rows")}])
    exact.save(folder / "exact.kit", ir=False)
    return model, program, folder


def test_what_is_loaded_gives_the_same(saved):
    model, program, folder = saved
    loaded = kitsune_mlir.load(folder / "padded.kit")
    for n in (1, 7, 129, 300, random.randint(2, 300)):
        x = R(n, 6)
        got, want = loaded(x), program(x)
        assert got[3] == 3 * n and got[1].data_ptr() == got[0].data_ptr() and got[2].data_ptr() == x.data_ptr()
        for one, other in zip(got[:3], want[:3], strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
    with pytest.raises(ArgumentError, match=r"301 elements in dimension 0 \('n'\); the program is for 1 to 300"):
        loaded(R(301, 6))
    assert loaded.explain() == program.explain() and loaded.ir("tiles") == program.ir("tiles")
    assert loaded.weights["total"].abs().sum() > 0  # counted on, apart from the model's


def test_other_weights(saved, tmp_path: Path):
    _, program, _ = saved
    program.save(tmp_path / "m.kit", weights=False)
    with pytest.raises(ArgumentError, match="needs a weight 'inner.weight', which it was not given"):
        kitsune_mlir.load(tmp_path / "m.kit")
    other, x = Net().eval(), R(11, 6)
    loaded = kitsune_mlir.load(tmp_path / "m.kit", dict(other.state_dict()))
    torch.testing.assert_close(loaded(x)[0], other(x)[0].detach())
    again = Path(tmp_path / "again.kit")
    loaded.save(again)
    torch.testing.assert_close(kitsune_mlir.load(again)(x)[0], other(x)[0].detach())


def test_sizes_that_have_no_program(saved):
    loaded = kitsune_mlir.load(saved[2] / "exact.kit")
    a, b = R(5, 4), R(4, 3)
    torch.testing.assert_close(loaded(a, b), by_size(a, b))
    with pytest.raises(ArgumentError, match="the package has no program for rows = 6; compile the model for it"):
        loaded(R(6, 4), b)
    assert not loaded.levels


def test_the_compiler_is_not_loaded(saved):
    code = (
        "import sys, torch, kitsune_mlir\n"
        f"program = kitsune_mlir.load({str(saved[2] / 'padded.kit')!r})\n"
        "print(program(torch.ones(7, 6))[0].shape, 'torch_mlir' in sys.modules, 'kitsune_mlir.dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([7, 8]) False False"


def test_altered_packages(saved, tmp_path: Path):
    whole = (saved[2] / "exact.kit").read_bytes()
    x, b = R(5, 4), R(4, 3)
    want, path = by_size(x, b), tmp_path / "m.kit"
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] ^= random.randint(1, 255)
        path.write_bytes(data[: random.choice([len(data), random.randrange(len(data))])])
        try:
            got = kitsune_mlir.load(path)(x, b)
        except KitsuneError:
            continue
        torch.testing.assert_close(got, want)  # what does not matter was altered: dates, attributes of members


def edited(source: Path, path: Path, edit):
    """A package whose sizes are others, with digests that fit."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    del members["manifest.sha256"], manifest["members"], manifest["format"]
    edit(manifest["sizes"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sealed(manifest, members).items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda s: s["places"][0].update(input=99), "at input 99"),
        (lambda s: s["padded"][0].update(run=7), "no steps and outputs"),
        (lambda s: s["padded"][0].update(taken=[0, 50]), r"takes inputs \[0, 50"),
        (lambda s: s["padded"][0].update(counted=["zz"]), "counts"),
        (lambda s: s["padded"][0]["results"][0].update(size=[["import", 3]]), "is no size of"),
        (lambda s: s["padded"][0]["rest"]["steps"].append(["aten.eval.default", [1]]), "which packages have not"),
        (lambda s: s["signature"]["inputs"][0].update(dtype="f99"), "f99"),
        (lambda s: s["signature"].update(in_spec="[1, {}]"), "structure"),
        (lambda s: s.update(more=1), "unknown entry 'more'"),
        (lambda s: s["parts"].append(s["parts"][0]), "it has the members programs/0.kit"),
    ],
)
def test_packages_that_contradict_themselves(saved, tmp_path: Path, edit, words):
    edited(saved[2] / "padded.kit", tmp_path / "m.kit", edit)
    with pytest.raises(PackageError, match=words):
        kitsune_mlir.load(tmp_path / "m.kit")


def test_sizes_as_data():
    size = ["+", ["*", 3, "n"], ["//", ["**", "m", 2], 4], ["max", 1, "n"]]
    check_size(size, ("n", "m"))
    assert size_at(size, {"n": 5, "m": 6}) == 15 + 9 + 5
    for wrong in ("k", ["+", "k"], ["**", "n", 99], ["//", 1], [], {"n": 1}, True, None):
        with pytest.raises(ValueError, match="is no size of"):
            check_size(wrong, ("n", "m"))
    for wrong in ({}, {"steps": [], "outputs": [{"step": 0}]}, {"steps": [["part", [1]]], "outputs": []}):
        with pytest.raises(ValueError, match="steps|reads|part"):
            check_replay(wrong, 2, 1)


def test_what_the_command_line_does_with_one(tmp_path: Path):
    """It runs at the largest sizes; what is of one size only says so, and so does the program itself."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    program = kitsune_mlir.compile(model, (R(5, 6),), target="host", dynamic={"input": {0: Dim("n", max=40)}})
    path = str(tmp_path / "m.kit")
    program.save(path)

    def told(*words: str) -> str:
        return CliRunner().invoke(main, list(words)).output

    assert "output 0: float32[40, 8]" in told("run", path, "--random")
    assert "input f32[n, 6]" in told("run", path)
    assert "a simulation is of a program for one size, and the package is for n 1 to 40" in told("simulate", path)
    assert "a timeline is of a program for one size" in told("explain", path, "--timeline", str(tmp_path / "t.html"))
    assert "has no accesses of its own" in told("explain", path, "--accesses")
    with pytest.raises(ArgumentError, match="has no timeline of its own; each of its programs has"):
        program.timeline()
    (memory,) = program.memory.values()
    assert memory == program.programs[0].memory
