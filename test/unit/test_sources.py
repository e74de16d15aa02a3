"""Models from files: compiled as the module is, the page's lines run, and what is no such file is an error in words."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, FrontendError
from kitsune_mlir.tools.kitsune import main

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()


class Net(torch.nn.Module):
    """A convolution with a norm, a product, a buffer that changes, an argument by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv2d(3, 7, 3), torch.nn.BatchNorm2d(7), torch.nn.Linear(7, 129)
        self.norm.get_buffer("running_var").uniform_(0.5, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        rows = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"rows": rows, "out": self.out(rows) * scale}


def sections() -> list[str]:
    return re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def runs(section: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    """The section's Python and its commands, in a folder; the names that the Python leaves."""
    monkeypatch.chdir(folder)
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, names)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.strip().splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "kitsune"
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
    return names


def section(title: str) -> str:
    return next(text for text in sections() if text.startswith(title))


def test_the_section_on_exported_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(7, 129), torch.nn.GELU()).eval(), torch.randn(5, 7)
    found = runs(
        section("Programs of torch.export"), tmp_path, monkeypatch, torch=torch, kitsune_mlir=kitsune_mlir, model=model, x=x
    )
    torch.testing.assert_close(found["y"], model(x))
    torch.testing.assert_close(kitsune_mlir.load(tmp_path / "m.kit")(x), model(x))


def test_an_exported_program_is_compiled_as_its_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    x, scale = torch.randn(2, 3, 9, 11), torch.randn(129)
    torch.export.save(torch.export.export(model, (x,), {"scale": scale}), tmp_path / "m.pt2")
    for path in (tmp_path / "m.pt2", str(tmp_path / "m.pt2")):
        program = kitsune_mlir.compile(path, target="host")
        x, scale = torch.randn(2, 3, 9, 11), torch.randn(129)
        want, got = model(x, scale=scale), program(x, scale=scale)
        assert list(got) == ["rows", "out"] and program.signature.parameters == ("x",)
        for name in got:
            torch.testing.assert_close(got[name], want[name])
        assert program.weights["calls"].tolist() == [1.0]
        assert {*program.weights} == {*dict(model.state_dict())} - {"norm.num_batches_tracked"}
        with pytest.raises(ArgumentError, match="argument 'x' is missing"):
            program(scale=scale)


def test_files_that_hold_no_exported_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt2"
    with pytest.raises(FileNotFoundError):
        kitsune_mlir.compile(path)
    torch.export.save(torch.export.export(torch.nn.Linear(7, 3), (torch.randn(4, 7),)), path)
    whole = path.read_bytes()
    torch.save({"a": torch.ones(3)}, path)
    for data in (b"", b"hello", whole[: len(whole) // 2], path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(FrontendError, match="m.pt2: not a program that torch.export.save wrote, or damaged"):
            kitsune_mlir.compile(path, target="host")
    done = CliRunner().invoke(main, ["compile", str(path), "-o", str(tmp_path / "m.kit")])
    assert done.exit_code == 1 and "not a program that torch.export.save wrote" in done.output
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "words"),
    [
        ("m.kit", (), None, "m.kit: a file with a model ends in .pt2 (a program that torch.export.save wrote)"),
        (Path("m"), (), None, "m: a file with a model ends in .pt2"),
        (3, (), None, "a model is a torch.nn.Module, a function, an ExportedProgram, or the path of a file, not a int"),
        (None, (), None, "a model is a torch.nn.Module"),
        (torch.nn.ReLU(), torch.ones(3), None, "example arguments are a tuple of what the model takes, not a Tensor;"),
        (torch.nn.ReLU(), None, None, "example arguments are a tuple of what the model takes, not a NoneType"),
        (torch.nn.ReLU(), (torch.ones(3),), [3], "example keyword arguments are a mapping from names to values, not a list"),
    ],
)  # fmt: skip
def test_what_is_no_model(model: Any, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        kitsune_mlir.compile(model, args, kwargs)
    assert str(caught.value).startswith(words)
