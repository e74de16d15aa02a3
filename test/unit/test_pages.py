"""What README.md and the pages in docs/ say: their commands run, their files exist, their names are in the code.

docs/dialect.md and docs/passes.md are generated (`test_docs.py`); the commands of docs/simulate.md have a test of their own.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kitsune_mlir.tools import kitsune_opt
from kitsune_mlir.tools.kitsune import main
from kitsune_mlir.tools.make_docs import ROOT

GENERATED = ("dialect.md", "passes.md", "coverage.md")
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED)]
FOLDERS = ("kitsune_mlir", "dialects", "passes", "tools", "bench", "test")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
CODE = "\n".join(path.read_text() for path in FILES if path.suffix in (".py", ".mlir") and path != Path(__file__))
WORDS = set(re.findall(r"\w+", CODE + (ROOT / "Makefile").read_text()))
MODEL = """
import torch

class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(64, 32), torch.nn.ReLU())

def make_model():
    return Model(), (torch.randn(4, 64),)
"""
IR = """
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>, %z: tensor<64x16xf32>) -> tensor<64x16xf32> {
  %p = linalg.matmul ins(%x, %w : tensor<64x32xf32>, tensor<32x16xf32>) outs(%z : tensor<64x16xf32>) -> tensor<64x16xf32>
  return %p : tensor<64x16xf32>
}
"""


def spans(page: Path) -> list[str]:
    """What a page has in backticks inside of lines."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    names = {path.name for path in FILES}
    for name in [*spans(page), *re.findall(r"\bdocs/[\w-]+\.md", text)]:
        if re.fullmatch(r"[\w/-]+\.(py|md|mlir)|(\w+/)+", name):
            assert name in names or any((base / name).exists() for base in (ROOT, ROOT / "kitsune_mlir")), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_a_page_are_names_in_the_code(page: Path) -> None:
    stems = {path.stem for path in FILES}
    for name in spans(page):
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*(\(\))?", name):
            unknown = [part for part in re.findall(r"\w+", name) if part not in WORDS | stems]
            assert not unknown, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_runs_have_the_options_it_gives(page: Path) -> None:
    commands = re.findall(r"python (?:-m )?((?:bench|test|kitsune_mlir)[./][\w./]+)([^`\n]*)", page.read_text())
    for module, rest in commands:
        path = ROOT / (module if module.endswith(".py") else module.replace(".", "/") + ".py")
        assert path.exists(), module
        for option in re.findall(r"--[\w-]+", rest):
            assert option in path.read_text() or option.lstrip("-") in path.read_text(), f"{module} {option}"


def test_what_a_page_makes_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^    |`)make ([\w-]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, f"{page.name}: {set(named) - targets}"


def test_the_readme_s_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "path" / "to" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    (tmp_path / "in.mlir").write_text(IR)
    lines = re.findall(r"^    (kitsune(?:-opt)? .+)$", PAGES[0].read_text(), re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "kitsune":
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, f"{line}: {done.output}"
        else:
            with open("out.mlir", "w") as out, contextlib.redirect_stdout(out):
                assert kitsune_opt.tool(arguments) == 0, line
            assert (tmp_path / "out.mlir").read_text(), line


def test_the_readme_s_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path / "cache"))
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(), re.DOTALL)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).eval(), torch.randn(4, 64)
    names = {"torch": torch, "model": model, "x": x}
    with torch.no_grad():
        exec(textwrap.dedent(snippet), names)
        wanted = model(x)
        for program in (names["program"], names["fast"], names["best"]):
            torch.testing.assert_close(program(x), wanted)
    torch.testing.assert_close(names["y"], wanted)


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See `no_such_file.py` and `no_such_name()`, or `python -m bench.suite run DIR --no-such-option`.")
    for check in (
        test_files_that_a_page_names_exist,
        test_names_in_a_page_are_names_in_the_code,
        test_modules_that_a_page_runs_have_the_options_it_gives,
    ):
        with pytest.raises(AssertionError, match="no[-_]such"):
            check(page)
