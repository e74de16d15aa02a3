"""What a code generator did not expect is a CompileError that names task, engine and source, and leaves a reproducer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.host import body
from kitsune_mlir.errors import CompileError
from kitsune_mlir.tools.kitsune_opt import tool


class Doubled(torch.nn.Module):
    """[rows, columns] -> the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: any shape."""
        return torch.tanh(x) * 2


def broken(*_: object, **__: object) -> None:
    raise KeyError("a value that nobody made")


def failure(target: str, folder: Path) -> CompileError:
    with pytest.raises(CompileError) as caught:
        options = {"reproducer_dir": str(folder), "matmul_precision": "high", "convolution_precision": "highest"}
        kitsune_mlir.compile(Doubled(), (torch.randn(33, 7),), target=target, options=options)
    error = caught.value
    assert "KeyError: 'a value that nobody made'" in str(error) and "test_code_failures.py" in str(error)
    assert error.reproducer is not None and Path(error.reproducer).parent == folder
    assert "kitsune.task" in Path(error.reproducer).read_text()
    return error


def replayed(error: CompileError, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What `kitsune-opt FILE --run-reproducer` returns and says."""
    return tool([str(error.reproducer), "--run-reproducer"]), capfd.readouterr().err


@pytest.mark.parametrize(("method", "doing"), [("plan", "planning"), ("emit", "writing code of")])
def test_an_engine_fails(method: str, doing: str, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(SimtEngine, method, broken)
    error = failure("sm_90a", tmp_path)
    assert re.search(rf"engine 'simt', {doing} task '\w+', failed", str(error))
    assert "kitsune-to-gpu{matmul-precision=high ptxas-seconds=60.0}" in Path(error.reproducer or "").read_text()
    status, said = replayed(error, capfd)
    assert status != 0 and "a value that nobody made" in said
    monkeypatch.undo()
    assert replayed(error, capfd) == (0, "")


def test_the_host_fails(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(body, "vectorize", broken)
    error = failure("host", tmp_path)
    assert re.search(r"the host's code generator, task '\w+', failed", str(error))
    status, said = replayed(error, capfd)
    assert status != 0 and "a value that nobody made" in said


def test_what_comes_before_the_engines_fails(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kitsune_mlir.codegen.gpu.kernel.planned.make_schedule", broken)
    with pytest.raises(CompileError, match="the code generator failed: KeyError"):
        kitsune_mlir.compile(Doubled(), (torch.randn(3, 7),), target="sm_90a", options={"reproducer_dir": str(tmp_path)})
