"""The generated pages say what the code says, and so do docstrings."""

import ast
import re
from pathlib import Path

import pytest

from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.tools import make_docs
from kitsune_mlir.tools.make_docs import ROOT, dialect_page, example_of, main, pages, passes_page
from test.oracles.definitions import files


def test_the_pages_are_up_to_date():
    for path, text in pages().items():
        assert path.is_file() and path.read_text() == text, f"{path.relative_to(ROOT)} is not up to date: run 'make docs'"


def test_every_op_attribute_and_type_is_documented():
    page = dialect_page()
    for name in ["pipeline", "stage", "yield", "make_semaphore", "wait", "post", "task"]:
        assert f"### `kitsune.{name}`\n\n`kitsune.{name}" in page
    for name in ["#kitsune.buffer", "#kitsune.sync", "!kitsune.semaphore", "!kitsune.queue"]:
        assert f"### `{name}`\n\n`{name}" in page
    wait = page[page.index("### `kitsune.wait`") : page.index("### `kitsune.post`")]
    assert "- Operands: `sem` (`!kitsune.semaphore`), `lo`, `hi`\n" in wait and "\n| `count` | Posts of a slot" in wait


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_shows_its_lit_test(name: str):
    example = example_of(ROOT / "test" / "lit" / "passes" / f"{name}.mlir")
    assert example, f"test/lit/passes/{name}.mlir is missing"
    assert "// RUN: kitsune-opt" in example and ("CHECK" in example or "expected-error" in example) and name in example


def test_the_example_is_the_first_block(tmp_path: Path):
    (tmp_path / "kitsune-normalize.mlir").write_text("// RUN: x\n// CHECK: y\n\n// -----\n\nmore\n")
    page = passes_page(tmp_path)
    assert "```mlir\n// RUN: x\n// CHECK: y\n```" in page and "more\n```" not in page
    assert "| `target` | string | `host` |" in page


def test_check_reports_stale_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(make_docs, "ROOT", tmp_path)
    assert main(["--check"]) == 1
    assert "docs/dialect.md is not up to date: run 'make docs'" in capsys.readouterr().err
    assert main([]) == 0 and main(["--check"]) == 0
    (tmp_path / "docs" / "dialect.md").write_text("old")
    assert main(["--check"]) == 1


def described(docstring: str, section: str) -> list[str]:
    """The names that "Args" or "Attributes" of a docstring describe."""
    found = re.search(rf"^{section}:\n((?: .*\n?|\n)+)", docstring, re.MULTILINE)
    lines = re.findall(r"^    (\S.*)", found[1], re.MULTILINE) if found else []
    return [name.strip("* ") for line in lines for name in line.partition(":")[0].split(",")]


def names_of(node: ast.AST) -> set[str]:
    """Parameters of a function; what a class has: fields, attributes of its methods, and parameters of its `__init__`."""
    inside = list(ast.walk(node)) if isinstance(node, ast.ClassDef) else [node]
    made = [one for one in inside if isinstance(one, ast.FunctionDef) and (one is node or one.name == "__init__")]
    names = {parameter.arg for one in made for parameter in ast.walk(one.args) if isinstance(parameter, ast.arg)}
    names |= {one.attr for one in inside if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    names |= {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return names | {one.name for one in inside if isinstance(one, ast.FunctionDef)}


def test_docstrings_describe_what_is_there() -> None:
    wrong = []
    for name, path in files().items():
        source = path.read_text() if name.endswith(".py") else ""
        for node in ast.walk(ast.parse(source)) if re.search(r"^ +(Args|Attributes):$", source, re.MULTILINE) else ():
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                told = [*described(text, "Args"), *described(text, "Attributes")]
                wrong += [f"{name}: {node.name} has no '{one}'" for one in told if one not in names_of(node)]
    assert not wrong, "\n".join(wrong)


def test_a_docstring_that_is_wrong_is_found() -> None:
    text = "Do.\n\nArgs:\n    a, b: two.\n        More.\n    c: one.\n\nReturns:\n    d: none."
    assert described(text, "Args") == ["a", "b", "c"]
    (function,) = ast.parse("def f(a, *, b): c = 1").body
    assert names_of(function) == {"a", "b", "f"}
