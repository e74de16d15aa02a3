"""Runs an imported model through upstream passes only: loops, LLVM, the ORC JIT. Slow code, but it shares none of ours."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager

from kitsune_mlir.frontend import ImportedModel, import_model
from kitsune_mlir.runtime.derived import evaluate

_PIPELINE = """builtin.module(
  func.func(refback-munge-memref-copy,tm-tensor-bufferize),
  one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map
    unknown-type-conversion=identity-layout-map copy-before-write=1},
  buffer-results-to-out-params{hoist-static-allocs=true modify-public-functions=true},
  func.func(refback-munge-memref-copy,tm-tensor-to-loops,convert-linalg-to-loops),
  expand-strided-metadata,lower-affine,canonicalize,convert-scf-to-cf,
  func.func(math-extend-to-supported-types{target-type=f32},
    arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32},arith-expand{include-bf16=true}),
  finalize-memref-to-llvm,convert-math-to-llvm,convert-math-to-libm,convert-complex-to-llvm,
  convert-arith-to-llvm,convert-index-to-llvm,convert-ub-to-llvm,convert-cf-to-llvm,
  convert-func-to-llvm{use-bare-ptr-memref-call-conv=true},canonicalize,cse,reconcile-unrealized-casts)"""

_DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i1": torch.bool,
}


def values_of(imported: ImportedModel, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """What `main` is given for the leaves of the user's inputs: those that it reads and the weights, derived ones computed."""
    held = {weight.name: weight.value for weight in (*imported.weights, *imported.sources)}
    return [
        inputs[a.position] if a.position is not None else evaluate(a.recipe, held, "cpu") if a.recipe else a.value
        for a in imported.arguments
    ]


def run(imported: ImportedModel, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> tuple[Any, dict]:
    """The model's output, and what it would write: name → tensor. Nothing is written."""
    with imported.module.context, ir.Location.unknown():
        module = ir.Module.parse(str(imported.module))
        PassManager.parse(_PIPELINE).run(module.operation)
        engine = ExecutionEngine(module, opt_level=0)
        address = engine.raw_lookup("main")
    assert address, "the JIT has no @main"

    leaves, _ = tree_flatten((tuple(args), dict(kwargs or {})))
    read = dict(zip([a.name for a in imported.arguments], values_of(imported, leaves), strict=True))
    lies = [argument.lies for argument in imported.arguments]
    inputs = [
        t.detach().contiguous().clone() if how is None else how.copied(t) for how, t in zip(lies, read.values(), strict=True)
    ]
    outputs: dict[int, torch.Tensor] = {}
    for result in imported.results:
        if result.kind == "tensor":
            outputs.setdefault(result.index, torch.empty(result.shape, dtype=_DTYPES[result.dtype]))
    buffers = inputs + [outputs[i] for i in range(len(outputs))]
    values = (ctypes.c_void_p * len(buffers))(
        *(b.data_ptr() if how is None else how.address(b) for how, b in zip(lies, inputs, strict=True)),
        *(b.data_ptr() for b in buffers[len(inputs) :]),
    )
    packed = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(values) + 8 * i for i in range(len(buffers))])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(packed)

    by_name = dict(zip(read, inputs, strict=True))
    found, written = [], {}
    for result in imported.results:
        if result.kind == "tensor":
            value: Any = outputs[result.index]
        elif result.kind == "alias":
            value = by_name[result.argument]
        else:
            value = result.value
        if result.mutates is None:
            found.append(value)
        else:
            written[result.mutates] = value
    return tree_unflatten(found, imported.out_spec), written


def text(imported: ImportedModel, locations: bool = False) -> str:
    """The module's text."""
    return imported.module.operation.get_asm(enable_debug_info=locations)


def check(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, tolerance: float = 1e-5) -> ImportedModel:
    """Imports, runs and compares with torch; returns the import."""
    imported = import_model(model, args, kwargs)
    actual, _ = run(imported, args, kwargs)
    expected = model(*args, **(kwargs or {}))
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert a == e
    assert imported.module.operation.verify()
    assert "torch." not in re.sub(r'"[^"]*"', "", text(imported)), "an operation of the torch dialect is left"
    return imported
