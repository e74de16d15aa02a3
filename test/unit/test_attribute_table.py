"""Every attribute that the compiler writes is in the dialect's table, and what the table does not have is refused."""

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.host.program import FACTS
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attribute_table import ATTRIBUTES, TYPES, declared, misplaced
from kitsune_mlir.dialects.kitsune import Kitsune
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passmanager.manager import PassPipelineError, run_pipeline
from test.unit.test_layering import MODULES, PACKAGE

NAMES = {spec.name for spec in ATTRIBUTES}
UPSTREAM = {
    *(
        "indexing_maps",
        "iterator_types",
        "dim",
        "reassociation",
        "static_output_shape",
        "static_sizes",
        "static_low",
        "static_high",
    ),
    *(
        "function_type",
        "arg_attrs",
        "res_attrs",
        "sym_name",
        "sym_visibility",
        "restrict",
        "writable",
        "fastmath",
        "ordering",
        "syncscope",
        "asm_string",
        "ptxCode",
        "name",
    ),
    *("operandSegmentSizes", "passthrough", "targets"),
}
"""Attributes of upstream operations that are written."""
COPIED = {f"{PACKAGE}.{name}" for name in ("codegen.host.body", "codegen.gpu.compile", "passes.normalization.scalar_parts")}
"""Modules that put symbols' new names where the old ones are, or copy what another operation has."""


def written(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.AST]]:
    """The names in `op.attributes[NAME] = ...` and `set_attribute(function, number, NAME, ...)`, each with its statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and _last(target.value).endswith("attributes"):
                    yield target.slice, node
        elif isinstance(node, ast.Call) and _last(node.func) == "set_attribute":
            yield node.args[2], node


def _last(node: ast.AST) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def values_of(name: ast.expr, module: str, tree: ast.AST, site: ast.AST) -> set[str]:
    """The strings that an expression can be: a literal, a constant of the module, or what a loop over literals gives it."""
    if isinstance(name, ast.Constant):
        return {name.value}
    assert isinstance(name, ast.Name), f"{module}:{site.lineno}: {ast.unparse(name)}"  # type: ignore[attr-defined]
    constant = getattr(importlib.import_module(module), name.id, None)
    if isinstance(constant, str):
        return {constant}
    found: set[str] = set()
    for loop in [node for node in ast.walk(tree) if isinstance(node, ast.For) and site in set(ast.walk(node))]:
        if name.id in {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}:
            found |= {
                each.value for each in ast.walk(loop.iter) if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
    return found


def test_every_attribute_that_is_written_is_declared():
    unknown, sites = [], 0
    for module, path in MODULES.items():
        text = path.read_text()
        if "attributes[" not in text and "set_attribute(" not in text:
            continue
        tree = ast.parse(text)
        for name, site in written(tree):
            if isinstance(name, ast.JoinedStr):
                assert module == f"{PACKAGE}.codegen.host.program" and ast.unparse(name) == "f'kitsune.{key}'"
                names = {f"kitsune.{fact}" for fact in FACTS}
            elif module.endswith("argument_orders") or module in COPIED:
                continue
            else:
                names = values_of(name, module, tree, site)
            sites += 1
            if not names or not names <= NAMES | UPSTREAM:
                unknown.append(f"{module}:{site.lineno}: {ast.unparse(name)}: {names - NAMES}")  # type: ignore[attr-defined]
    assert not unknown
    assert sites > 40


def test_every_name_of_the_dialect_is_an_operation_or_declared():
    with new_context():
        operations = {cls.OPERATION_NAME for cls in Kitsune.operations}
    strangers = []
    for module, path in MODULES.items():
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "kitsune." in source.replace("kitsune.py", "") else ():
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            dialect, _, name = text.partition(".")
            if dialect == "kitsune" and name.isidentifier() and text not in NAMES | operations:
                strangers.append(f"{module}:{node.lineno}: {text}")
    assert not strangers


def test_every_declared_attribute_is_written_and_read_somewhere():
    text = {path: path.read_text() for path in MODULES.values() if path.name != "attribute_table.py"}
    constants = vars(importlib.import_module(f"{PACKAGE}.dialects.attribute_table"))
    for spec in ATTRIBUTES:
        words = [f'"{spec.name}"', *(name for name, value in constants.items() if value == spec.name)]
        words += [f'"{spec.name.removeprefix("kitsune.")}"'] if spec.name.removeprefix("kitsune.") in FACTS else []
        users = [path for path, source in text.items() if any(word in source for word in words)]
        assert users, spec.name
    assert {spec.type for spec in ATTRIBUTES} <= set(TYPES)


def test_an_operation_has_one_declaration_of_a_name():
    for op in {op for spec in ATTRIBUTES for op in spec.on}:
        names = [spec.name for spec in ATTRIBUTES if op in spec.on]
        assert len(names) == len(set(names)) == len(declared(op))


def test_a_pass_that_writes_what_is_not_declared_fails_at_the_operation():
    @dataclass(frozen=True)
    class Marks(Pass):
        name: ClassVar[str] = "kitsune-marks"

        def run(self, module: ir.Operation) -> None:
            module.regions[0].blocks[0].operations[0].operation.attributes["kitsune.secret"] = ir.UnitAttr.get()

    with new_context():
        module = ir.Module.parse("func.func @f() { return }")
        with pytest.raises(
            PassPipelineError, match="'func.func' op has attribute 'kitsune.secret', which is none of the dialect's"
        ):
            run_pipeline(module, [Marks()], reproducer_dir=False)
        assert [message for _, message in misplaced(module.operation)]


def test_pages_name_the_table():
    page = (Path(__file__).parents[2] / "docs" / "dialect.md").read_text()
    assert not [name for name in NAMES if f"`{name}`" not in page]
