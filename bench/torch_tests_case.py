"""One of PyTorch's tests of a backend, run with this one: the backend put in place of others, files loaded, tests judged."""

from __future__ import annotations

import copy
import fnmatch
import importlib
import importlib.util
import resource
import sys
import time
import types
import unittest
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.compile import compile_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
from kitsune_mlir.dynamo.torch_api import compiling
from kitsune_mlir.machine.target import find_target

__all__ = ["imported_first", "names_of", "outcome_of"]

NAMES = ("inductor", "aot_eager", "aot_eager_decomp_partition", "aot_ts", "ts")
"""Backends in whose place this one is put."""
MEMORY = 12 << 30
"""Bytes that one test may take."""

_graphs: list[GraphReport] = []
_near: list[str] = []  # what was beyond a test's tolerance, and right
_asked = options_of_backend(None, None)


def _kitsune(gm: Any, inputs: Sequence[Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """The backend, whatever options of Inductor come with the call."""
    return compiled_graph(gm, inputs, *_asked, keep=_graphs.append)


def _functional(gm: Any, _: Sequence[Any]) -> Callable[..., Any]:
    """A compiler of AOTAutograd's graphs, in place of those that return them as they are."""

    def compile_static(graph: Any, sizes: str = "", _: bool = True) -> Callable[..., Any]:
        report = GraphReport("forward", 0, sizes=sizes)
        _graphs.append(report)
        with compiling():
            return compile_graph(graph, set(), find_target("host"), _asked[1], report)

    with compiling():
        gm = copy.deepcopy(gm)  # tests look at it afterwards
    return Specialized(gm, compile_static) if is_symbolic(gm) else compile_static(gm)


def _substitute() -> None:
    """Put this backend in place of others, before PyTorch's tests are loaded."""
    import functorch.compile
    import torch._functorch.compilers
    import torch._inductor.compile_fx
    from torch._dynamo.backends import registry

    registry.list_backends()  # which loads them
    for name in NAMES:
        tagged = registry.lookup_backend(name)
        entry = types.FunctionType(_kitsune.__code__, globals(), name)
        entry._tags = getattr(tagged, "_tags", ())  # type: ignore[attr-defined]
        registry._COMPILER_FNS[name] = entry
    torch._inductor.compile_fx.compile_fx = _kitsune  # type: ignore[assignment]
    functorch.compile.nop = torch._functorch.compilers.nop = functorch.compile.make_boxed_compiler(_functional)


def imported_first(paths: Iterable[Path] = ()) -> None:
    """Import what every test would import in its own process, which takes longer than most tests; starts no threads.

    So are asked, once for all tests, which vector instructions there are (Inductor compiles and runs something for that), and
    where the functions of the tests' files begin (Dynamo reads all their lines).
    """
    for name in ("kitsune_mlir.pipeline", "kitsune_mlir.targets", "torch._inductor.compile_fx", "torch._inductor.test_case"):
        importlib.import_module(name)
    importlib.import_module("torch._inductor.cpu_vec_isa").valid_vec_isa_list()
    for path in paths:
        importlib.import_module("torch._dynamo.funcname_cache").get_funcname(str(path), 1)


def _load(path: Path) -> types.ModuleType:
    """A file of PyTorch's tests as a module."""
    sys.path[:0] = [str(path.parent), str(path.parents[1])]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of(path: Path, classes: Iterable[str]) -> list[str]:
    """Names of the tests in a file, `file.Class.test`, of classes whose names fit a pattern; it is loaded."""
    suites: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(_load(path))]
    found = []
    while suites:
        one = suites.pop()
        if not isinstance(one, unittest.TestCase):
            suites += one
        elif any(fnmatch.fnmatch(type(one).__name__, pattern) for pattern in classes):
            found.append(f"{path.stem}.{type(one).__name__}.{one._testMethodName}")
    return found


def _is_as_near(model: Callable[..., Any], inputs: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether what is compiled lies at most twice as far from the results in float64 as eager's own results do."""

    def results(function: Callable[..., Any], kind: torch.dtype) -> list[torch.Tensor]:
        def own(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            value = value.detach().clone()
            return value.to(kind) if value.dtype == torch.float32 else value

        torch.manual_seed(0)
        return [leaf for leaf in tree_leaves(function(*tree_map(own, inputs), **tree_map(own, kwargs))) if leaf is not None]

    torch._dynamo.reset()
    compiled = results(torch.compile(model, backend=_kitsune), torch.float32)
    for given, eager, exact in zip(compiled, results(model, torch.float32), results(model, torch.float64), strict=True):
        if (given.shape, given.dtype) != (eager.shape, eager.dtype):
            return False
        if not torch.equal(given, eager) and not (given - exact).abs().max() <= 2 * (eager - exact).abs().max():
            return False
    return True


def _with_float64(check: Callable[..., Any]) -> Callable[..., Any]:
    """A check of a model by PyTorch's tests, but that another order of sums is not wrong."""

    def checked(self: Any, model: Any, example_inputs: Any, kwargs: Any = None, **options: Any) -> None:
        before = tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, (example_inputs, kwargs or {}))
        try:
            check(self, model, example_inputs, kwargs, **options)
        except AssertionError as error:
            if " are not close!" not in str(error) or not _is_as_near(model, *before):
                raise
            _near.append(str(error))

    return checked


def _but_for_order(check: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison by PyTorch's tests, but that of numbers which are to be the same bit by bit, another order of sums is not
    wrong: they are compared as those of other tests are."""

    def checked(self: Any, given: Any, wanted: Any, *args: Any, **options: Any) -> None:
        try:
            check(self, given, wanted, *args, **options)
        except AssertionError as error:
            if not (options.get("atol") == options.get("rtol") == 0 and getattr(given, "is_floating_point", bool)()):
                raise
            check(self, given, wanted, *args, **{**options, "atol": None, "rtol": None})
            _near.append(str(error))

    return checked


def outcome_of(path: Path, name: str, own: bool = True) -> dict[str, Any]:
    """Run a test of a file, with this project's backend or with PyTorch's; this process should be left then."""
    if own:
        _substitute()
    module = _load(path)
    if own and hasattr(module, "extract_graph"):
        keep = module.extract_graph
        module.extract_graph = lambda gm, inputs, graph_cell: _functional(keep(gm, inputs, graph_cell), inputs)
    _, kind, method = name.split(".")
    if own and hasattr(getattr(module, kind), "common"):
        getattr(module, kind).common = _with_float64(getattr(module, kind).common)
    if own:
        getattr(module, kind).assertEqual = _but_for_order(getattr(module, kind).assertEqual)
    test = getattr(module, kind)(method)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.manual_seed(0)
    result = unittest.TestResult()
    start = time.perf_counter()
    unittest.TestSuite([test]).run(result)
    outcome, reason = "passed", "as near as sums in another order, " * bool(_near) + " ".join(_near)
    if result.skipped:
        outcome, reason = "skipped", result.skipped[0][1]
    elif result.unexpectedSuccesses:
        outcome, reason = "passed", "PyTorch expects it to fail"
    elif problems := result.failures + result.errors:
        reason = problems[0][1]
        expected_error = " not raised" in reason  # where this backend leaves a graph to PyTorch, which gives the result
        outcome = "wrong" if "\nAssertionError" in reason and not expected_error else "failed"
    return {
        "outcome": outcome,
        "reason": reason[-1500:],
        "programs": sum(len(graph.programs) for graph in _graphs),
        "islands": sorted({f"{one.operator}: {one.reason}" for graph in _graphs for one in graph.islands}),
        "gave_up": [graph.gave_up for graph in _graphs if graph.gave_up],
        "seconds": round(time.perf_counter() - start, 1),
    }
