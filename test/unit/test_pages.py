"""What README.md and the pages in docs/ say: their commands run, their files exist, their names are defined by the code.

docs/dialect.md and docs/passes.md are generated (`test_docs.py`); the commands of docs/simulate.md have a test of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import runpy
import shlex
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.tools import kitsune_opt
from kitsune_mlir.tools.kitsune import main
from kitsune_mlir.tools.make_docs import ROOT
from test.oracles.definitions import files, is_defined

GENERATED = ("dialect.md", "passes.md", "coverage.md")
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED)]
FILE = re.compile(r"[\w/-]+\.(py|md|mlir|json)")
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
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def test_listings_are_no_spans(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`a`\n\n   ```python\n   b\n   ```\n\n   `c` and\n```\nd\n```\n`e`\n")
    assert spans(page) == ["a", "c", "e"]


def folders(page: Path) -> list[Path]:
    """Where the files lie that a page names: the repository, folders that it names or names files of, and those above."""
    roots = [ROOT, ROOT / "kitsune_mlir"]
    named = [root / found for found in spans(page) if found.endswith("/") for root in roots]
    named += [(ROOT / found).parent for found in spans(page) if found in files()]
    return [*roots, *dict.fromkeys(base for folder in named if folder.is_dir() for base in (folder, folder.parent))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text, bases = page.read_text(), folders(page)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    drawn = [name for line in text.splitlines() if re.search("[│▼├└]", line) for name in re.findall(r"[\w/]+\.py", line)]
    for name in [*spans(page), *drawn, *re.findall(r"\bdocs/[\w-]+\.md", text)]:
        if FILE.fullmatch(name) or re.fullmatch(r"(\w+/)+", name):
            assert any((base / name).exists() for base in bases) or name.endswith("-DEVICE.json"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_a_page_are_defined_by_the_code(page: Path) -> None:
    for name in spans(page):
        if re.fullmatch(r"(\w+/(?=.*\.))*[A-Za-z_]\w*(\.\w+)*(\(\))?", name) and not FILE.fullmatch(name):
            assert is_defined(name.removesuffix("()").replace("/", ".")), name


class Parsed(Exception):
    """A command line was taken."""


def parse(module: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a module with a command line as far as its parser; AssertionError if that refuses it."""
    assert "parse_" in files()[path_of(module)].read_text() or "program_main" in files()[path_of(module)].read_text(), module
    with monkeypatch.context() as patch, warnings.catch_warnings():
        for name in ("parse_args", "parse_intermixed_args"):

            def taken(self: argparse.ArgumentParser, *given: object, method: str = name) -> None:
                ORIGINAL[method](self, *given)
                raise Parsed

            patch.setattr(argparse.ArgumentParser, name, taken)
        patch.setattr(sys, "argv", [module, *words])
        warnings.simplefilter("ignore", RuntimeWarning)  # of modules that are imported already
        try:
            runpy.run_module(module, run_name="__main__")
        except Parsed:
            return
        except SystemExit as refused:
            raise AssertionError(f"{module} {' '.join(words)}: {refused}") from refused
    raise AssertionError(f"{module} has not looked at its command line")


ORIGINAL = {name: getattr(argparse.ArgumentParser, name) for name in ("parse_args", "parse_intermixed_args")}


def path_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "bench" / "README.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_command_lines_that_a_page_gives_are_taken(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join([*spans(page), *re.findall(r"^    (python .*)", page.read_text(), re.MULTILINE)])
    for module, rest in set(re.findall(r"python -m ((?:bench|test|kitsune_mlir)\.[\w.]*\w)(.*)", text)):
        assert path_of(module) in files(), module
        words = shlex.split(re.sub(r"[\[\]]|\.\.\.", " ", rest), comments=True)
        if words:
            parse(module, words, monkeypatch)
    assert not re.findall(r"python (?:bench|test|kitsune_mlir)/\S*", page.read_text()), "modules are run by name"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_exist(page: Path) -> None:
    opt = {option for action in kitsune_opt.parser()._actions for option in action.option_strings} | {f"--{p}" for p in PASSES}
    own = {name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} for name, command in main.commands.items()}
    scripts = {found for path in files().values() if path.suffix == ".py" for found in ADDED.findall(path.read_text())}
    for text in spans(page):
        program, *words = text.split() or [""]
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        if program == "kitsune" and words:
            assert words[0] in own and options <= own[words[0]], text
        elif program == "kitsune-opt":
            assert options <= opt, text
        elif re.fullmatch(r"--[\w-]+", text):
            assert text in opt | scripts or any(text in one for one in own.values()), text


ADDED = re.compile(r"""add_argument\(\s*["'](--[\w-]+)""")


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
    (tmp_path / "tiles.mlir").write_text((ROOT / "test/lit/passes/kitsune-to-gpu.mlir").read_text())
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


@pytest.mark.parametrize(
    "check, wrong",
    [
        (test_files_that_a_page_names_exist, "`no_such_file.py`"),
        (test_files_that_a_page_names_exist, "`kernel/kernel.py`"),  # there is one, but in a folder that the page does not name
        (test_files_that_a_page_names_exist, "      ▼ no_such_file.py"),
        (test_names_in_a_page_are_defined_by_the_code, "`no_such_name()`"),
        (test_names_in_a_page_are_defined_by_the_code, "`passes/modes/times.no_such_name`"),
        (test_names_in_a_page_are_defined_by_the_code, "`Plan.no_such_name`"),
        (test_names_in_a_page_are_defined_by_the_code, "`deliberately`"),  # a word of some comment
        (test_names_in_a_page_are_defined_by_the_code, "`torch.no_such_name`"),
        (test_names_in_a_page_are_defined_by_the_code, "`linalg.no_such_op`"),
        (test_command_lines_that_a_page_gives_are_taken, "`python -m bench.suite run DIR --no-such-option`"),
        (test_command_lines_that_a_page_gives_are_taken, "`python -m bench.suite dance DIR`"),
        (test_options_that_a_page_names_exist, "`kitsune run --repeats`"),
        (test_options_that_a_page_names_exist, "`kitsune-opt --kitsune-dance`"),
        (test_options_that_a_page_names_exist, "`--no-such-option`"),
    ],
)
def test_a_page_that_is_wrong_is_found(check, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(wrong)
    with pytest.raises(AssertionError, match=re.escape(wrong.strip("`▼ ").removesuffix("()").removeprefix("python -m "))):
        check(page, *([monkeypatch] if check is test_command_lines_that_a_page_gives_are_taken else []))
