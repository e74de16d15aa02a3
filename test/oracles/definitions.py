"""What the code defines: modules, their functions, classes, attributes and parameters, and the words of the IR and of PTX."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

from kitsune_mlir.dialects import new_context
from kitsune_mlir.machine.target import TARGETS
from kitsune_mlir.tools.make_docs import ROOT

__all__ = ["files", "is_defined"]

WITH_PTX = ("kitsune_mlir/codegen/gpu/", "test/emulators/", "test/unit/test_gpu", "test/unit/test_launches")
FOLDERS = ("kitsune_mlir", "dialects", "passes", "tools", "bench", "test")


@functools.cache
def files() -> dict[str, Path]:
    """All files of the code, by their path from the repository's root."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): path for path in found if path.is_file()}


def _assigned(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _assigned(element)


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    """Functions, their parameters, classes, what is assigned in modules and classes, and attributes of `self`."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}.{node.name}"
            yield from (
                f"{prefix}.{node.name}.{a.arg}" for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            )
            stores = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
            yield from (f"{prefix}.{n.attr}" for n in stores if isinstance(n.value, ast.Name) and n.value.id == "self")
        elif isinstance(node, ast.ClassDef):
            yield f"{prefix}.{node.name}"
            yield from _definitions(node.body, f"{prefix}.{node.name}")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (f"{prefix}.{name}" for name in _assigned(target))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(node.body, prefix)


@functools.cache
def _python() -> frozenset[str]:
    """Dotted names, from any of their parts on: `executor.build` for `kitsune_mlir.codegen.gpu.kernel.executor.build`."""
    whole = set()
    for name, path in files().items():
        if path.suffix == ".py":
            module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            whole |= {module, module.rpartition(".")[0], *_definitions(ast.parse(path.read_text()).body, module)}
    return frozenset(".".join(parts[i:]) for parts in (name.split(".") for name in whole) for i in range(len(parts)))


@functools.cache
def _texts() -> tuple[frozenset[str], str]:
    """The strings of `dialects/`, which name things in the IR, and those of the GPU's code generator and its tests."""
    words, ptx = set(), []
    for name, path in files().items():
        if name.endswith(".py") and name.startswith(("dialects/", *WITH_PTX)):
            tree = ast.parse(path.read_text())
            prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
            strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
            strings = [string for string in strings if isinstance(string, str)]
            if name.startswith("dialects/"):
                words |= set(strings)
            else:
                ptx += strings
    return frozenset(words), "\n".join(ptx)


@functools.cache
def _operations() -> frozenset[str]:
    """Names of dialects, and operations that the lit tests and the dialect's page write."""
    context = new_context()
    texts = [path.read_text() for name, path in files().items() if name.endswith(".mlir")]
    texts.append((ROOT / "docs" / "dialect.md").read_text())
    written = set(re.findall(r"\b[a-z_]+\.[a-z_.]+\b", "\n".join(texts)))
    known = {name for name in written if context.is_registered_operation(name) or name.startswith("kitsune.")}
    return frozenset(known | {name.partition(".")[0] for name in known})


def _imported(name: str) -> bool:
    """Whether a dotted name is something of an installed package (torch's) or of this one's."""
    module, _, rest = name.partition(".")
    if module not in ("torch", "kitsune_mlir"):
        return False
    found = importlib.import_module(module)
    for part in rest.split("."):
        if not hasattr(found, part):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part)
    return True


def is_defined(name: str) -> bool:
    """Whether a word or a dotted name is defined: in Python, in the IR or in PTX; `thing.method` is also `Thing.method`."""
    owner, _, last = name.rpartition(".")
    words, ptx = _texts()
    return (
        name in _python()
        or (bool(owner) and f"{owner.title().replace('_', '')}.{last}" in _python())
        or name in words
        or name in _operations()
        or name in TARGETS
        or hasattr(builtins, name)
        or keyword.iskeyword(name)
        or ("." in name and re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", ptx) is not None)
        or _imported(name)
    )
