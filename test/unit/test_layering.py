"""The shape of the source: imports point one way, files stay small, every pass is in the table."""

import ast
import functools
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passes.registry import PASSES, PIPELINE

ROOT = Path(__file__).parents[2]
PACKAGE = "kitsune_mlir"
# Where each top-level folder is installed.
FOLDERS = {
    "kitsune_mlir": PACKAGE,
    "dialects": f"{PACKAGE}.dialects",
    "passes": f"{PACKAGE}.passes",
    "tools": f"{PACKAGE}.tools",
}

# Layers from the top down; a module may import from its own layer and from those below. The longest prefix counts.
LAYERS = [
    {f"{PACKAGE}.tools"},
    {PACKAGE, f"{PACKAGE}.training", f"{PACKAGE}.models"},
    {f"{PACKAGE}.dynamo", f"{PACKAGE}.windows", f"{PACKAGE}.serving"},
    {f"{PACKAGE}.pipeline", f"{PACKAGE}.epochs"},
    {f"{PACKAGE}.tuning.stage_clock"},
    {f"{PACKAGE}.targets"},
    {
        f"{PACKAGE}.{name}"
        for name in ("options", "settings", "workers", "garbage", "tuning", "simulation", "cache.programs", "cache.compiled")
    },
    {f"{PACKAGE}.frontend", f"{PACKAGE}.passmanager", f"{PACKAGE}.calling_convention", f"{PACKAGE}.cheaper_plans"},
    {f"{PACKAGE}.request_kernels"},
    {f"{PACKAGE}.passmanager.{name}" for name in ("options", "instrumentation", "reproducer", "diagnostics")},
    {f"{PACKAGE}.passes"},
    {f"{PACKAGE}.machine.slow_stages"},
    {f"{PACKAGE}.machine.stage_work"},
    {f"{PACKAGE}.machine.stage_cost"},
    {f"{PACKAGE}.codegen"},
    {f"{PACKAGE}.dialects"},
    {f"{PACKAGE}.runtime", f"{PACKAGE}.sized"},
    {f"{PACKAGE}.machine", f"{PACKAGE}.passmanager.pipeline_text", f"{PACKAGE}.cache"},
    {f"{PACKAGE}.errors"},
]
# Rooms of codegen/gpu from the bottom up; a module may import from its own room and from those below.
ROOMS = [
    "emit backend",
    "sm90",
    "interface",
    "contraction",
    "engines.*",
    "engines.registry",
    "kernel",
    "lower",
    "compile",
    "epochs",
]
GPU = f"{PACKAGE}.codegen.gpu."
ALLOWED = {("engines.pairs", "engines.chain")}
"""Engines that another one is built on."""
LIMIT = 400  # lines


def sources() -> list[Path]:
    return [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in p.parts]


def module_of(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(r for r in rest if r != "__init__")])


MODULES = {module_of(p): p for p in sources()}


@functools.cache
def imports_of(module: str) -> set[str]:
    """The modules of this package that a module imports, inside functions and for type checkers too: annotations bind."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(p for p in (parent, node.module) if p)
            found.update(name if (name := f"{base}.{a.name}") in MODULES else base for a in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return {m for m in found if m.split(".")[0] == PACKAGE}


def layer_of(module: str) -> int:
    """The number of the layer whose longest prefix fits; the package itself holds only its own __init__."""
    best = max(
        (
            (len(prefix), n)
            for n, layer in enumerate(LAYERS)
            for prefix in layer
            if module == prefix or module.startswith(prefix + ".")
        ),
        default=(0, -1),
    )
    if best[0] == len(PACKAGE) and module != PACKAGE:
        return -1
    return best[1]


def test_imports_point_down():
    strangers = [m for m in MODULES if layer_of(m) < 0]
    assert not strangers, f"these belong to no layer, add them to LAYERS: {strangers}"
    up = {m: sorted(i for i in imports_of(m) if layer_of(i) < layer_of(m)) for m in MODULES}
    assert not {m: imported for m, imported in up.items() if imported}


def room_of(module: str) -> str:
    """The room of a module of codegen/gpu: its folder, or for an engine that engine's."""
    parts = module.removeprefix(GPU).split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" else parts[0]


def room_rank(room: str) -> int:
    """How high a room lies; an engine's own name is none of the list."""
    ranks = {name: n for n, rooms in enumerate(ROOMS) for name in rooms.split()}
    return ranks.get(room, ranks["engines.*"])


def test_gpu_rooms():
    modules = [m for m in MODULES if m.startswith(GPU) and m != f"{GPU}engines"]
    wrong = []
    for module in modules:
        for imported in imports_of(module) & set(modules):
            here, there = room_of(module), room_of(imported)
            if not (here == there or room_rank(there) < room_rank(here) or (here, there) in ALLOWED):
                wrong.append(f"{module} imports {imported}")
    assert not wrong


def test_only_the_top_of_the_gpu_code_knows_the_kernel():
    users = {
        m for m in MODULES if any(i.startswith(f"{GPU}kernel") for i in imports_of(m)) and not m.startswith(f"{GPU}kernel")
    }
    assert {m for m in users if m.startswith(GPU)} <= {f"{GPU}lower", f"{GPU}compile", f"{GPU}epochs"}, users


def test_the_picture_of_the_layers():
    """docs/architecture.md draws all layers, and all rooms of codegen/gpu, from the top down."""
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Layers\n")[2].partition("\n## ")[0]
    lines = [re.findall(r"([\w/*]+)(?:/|\.py)(?=\s)", line) for line in section.splitlines() if line.startswith("    ")]
    names = [[f"{PACKAGE}.{name.replace('/', '.')}" for name in line] for line in lines]
    layers = [layer_of(name) for line in names for name in line]
    assert layers == sorted(layers) and set(layers) == set(range(len(LAYERS)))
    rooms = [" ".join(name.removeprefix(GPU) for name in line) for line in names if line[0].startswith(GPU)]
    assert rooms == ROOMS[::-1]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of a graph that have more than one node, or a node that leads to itself."""
    order: list[str] = []
    seen: set[str] = set()

    def forward(node: str) -> None:
        stack = [(node, iter(sorted(graph[node])))]
        seen.add(node)
        while stack:
            at, rest = stack[-1]
            for below in rest:
                if below not in seen:
                    seen.add(below)
                    stack.append((below, iter(sorted(graph[below]))))
                    break
            else:
                order.append(stack.pop()[0])

    for node in sorted(graph):
        if node not in seen:
            forward(node)
    above: dict[str, set[str]] = {node: set() for node in graph}
    for node, found in graph.items():
        for below in found:
            above[below].add(node)
    parts: list[list[str]] = []
    left = set(graph)
    for node in reversed(order):
        if node not in left:
            continue
        part, stack = [], [node]
        left.discard(node)
        while stack:
            at = stack.pop()
            part.append(at)
            for other in above[at] & left:
                left.discard(other)
                stack.append(other)
        if len(part) > 1 or node in graph[node]:
            parts.append(sorted(part))
    return parts


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_no_circles():
    assert not circles({m: {i for i in imports_of(m) if i in MODULES} for m in MODULES})


def test_imports_are_seen():
    seen = imports_of(f"{PACKAGE}.tools.kitsune_opt")
    assert {
        f"{PACKAGE}.passmanager.manager",
        f"{PACKAGE}.dialects",
        f"{PACKAGE}.tools.expected",
    } <= seen  # absolute and relative
    assert f"{PACKAGE}.passes.registry" in imports_of(f"{PACKAGE}.passmanager.manager")
    assert layer_of(f"{PACKAGE}.passes.registry") > layer_of(f"{PACKAGE}.passmanager.manager")


def test_the_runtime_imports_no_compiler_module():
    own = (f"{PACKAGE}.runtime", f"{PACKAGE}.sized")
    allowed = (*own, f"{PACKAGE}.errors", f"{PACKAGE}.machine.target", f"{PACKAGE}.cache.replacing")
    for module in MODULES:
        if module.startswith(own):
            wrong = {m for m in imports_of(module) if not m.startswith(allowed)}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_the_runtime_loads_without_torch_and_without_the_compiler():
    modules = [m for m in MODULES if m.startswith(f"{PACKAGE}.runtime")]
    code = f"import sys; {'; '.join(f'import {m}' for m in modules)}; "
    code += "print(sorted(m for m in ('torch', 'torch_mlir', 'scipy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_files_are_small():
    long = {p.relative_to(ROOT).as_posix(): n for p in sources() if (n := p.read_text().count("\n")) > LIMIT}
    assert not long, f"more than {LIMIT} lines (one concept a file): {long}"


def test_files_say_what_they_are():
    bare = [p.as_posix() for p in sources() if (text := p.read_text()).strip() and not ast.get_docstring(ast.parse(text))]
    assert not bare


def test_every_package_is_installed(monkeypatch):
    given: dict = {}
    monkeypatch.setattr("setuptools.setup", given.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    packages = {module_of(path.parent / "__init__.py") for path in sources()} - {""}
    assert set(given["packages"]) == packages
    homes = {module_of(ROOT / folder / "__init__.py"): folder for folder in FOLDERS}
    assert given["package_dir"] == homes


def test_no_machine_paths():
    machine = re.compile(r"/(?:home|work|root|Users)/[a-z]")
    for path in sources():
        assert not machine.search(path.read_text()), path


def test_every_pass_is_in_the_table():
    for module in [m for m in MODULES if m.startswith(f"{PACKAGE}.passes.")]:
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, type) and issubclass(value, Pass) and value is not Pass and value.__module__ == module:
                assert PASSES.get(value.name) is value, f"{module}.{value.__name__} is not in passes/registry.py"


def test_the_table_and_the_pipeline_are_sound():
    assert all(name == cls.name and name.startswith("kitsune-") for name, cls in PASSES.items())
    assert set(PIPELINE) <= set(PASSES) and len(set(PIPELINE)) == len(PIPELINE)
    for name, cls in PASSES.items():
        assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), f"{name} has no help"
        assert cls(), f"{name} has an option without a default"


NAMES_MEAN_SOMETHING_ELSE = {
    "runtime.explain",
    "passes.normalize",
    "dialects.attribute_table",
    "dialects.recurrence",
    "frontend",
}
"""Modules in whose texts "generic" is linalg's, "ordered" an attribute, "recurrence" and "scatter" are operators."""


def test_nobody_knows_an_engine_by_name():
    """The registry is the only list of engines; the table of rates has what was fitted to each."""
    mine = [f"{PACKAGE}.codegen.gpu.engines", f"{PACKAGE}.machine.rates", f"{PACKAGE}.codegen.gpu.interface.traits"]
    mine += [f"{PACKAGE}.{name}" for name in NAMES_MEAN_SOMETHING_ELSE]
    known = {
        module: sorted(words)
        for module, path in MODULES.items()
        if not any(module == m or module.startswith(m + ".") for m in mine)
        and (words := {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)} & ENGINES.keys())
    }
    assert not known
