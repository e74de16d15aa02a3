"""The commands of docs/simulate.md run as they stand there, and so does its program."""

import re
import runpy
import shlex
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

import kitsune_mlir
from kitsune_mlir.tools.kitsune import main

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()]
    assert len(lines) >= 5
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "kitsune"
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, f"{line}: {done.output}"
    half, whole = (
        CliRunner().invoke(main, ["simulate", "model.kit", *more]).output for more in (["--machine", "half.toml"], [])
    )
    assert "us on half" in half and "us on h200" in whole
    (program,) = re.findall(r"In Python:\n\n((?:    .*\n)+)", PAGE)
    model, args = runpy.run_path("model.py")["make"]()
    exec(textwrap.dedent(program), {"kitsune_mlir": kitsune_mlir, "model": model, "args": args})
    for page in ("a100.html", "model.html"):
        text = (tmp_path / page).read_text()
        assert text.startswith("<!DOCTYPE html>") and "<svg" in text and "http" not in text and "predicted for" in text
