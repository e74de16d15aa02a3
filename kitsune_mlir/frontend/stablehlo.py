"""StableHLO modules as text, such as JAX writes."""

from __future__ import annotations

import os
import time

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.imported import Argument, ImportedModel
from kitsune_mlir.frontend.linalg_function import check_shapes, first_operation, imported_function, tensor_type
from kitsune_mlir.frontend.lower import run_reporting
from kitsune_mlir.frontend.source import origin_of_location

__all__ = ["import_stablehlo"]

_ONE_FUNCTION = "builtin.module(inline,symbol-dce)"
_TO_LINALG = "builtin.module(stablehlo-legalize-to-linalg,stablehlo-convert-to-signless,func.func(canonicalize,cse))"


def import_stablehlo(path: str | os.PathLike[str], *, context: ir.Context | None = None) -> ImportedModel:
    """Imports a file with one module of StableHLO: its function `main`, or its only public one, with static shapes.

    Raises:
        DynamicShapeError: a shape is not known.
        FrontendError: the text is no StableHLO, or an operation has no lowering; names it.
        OSError: the file cannot be opened.
    """
    start, context = time.perf_counter(), context or ir.Context()
    _stablehlo.register_dialect(context)
    with open(path, "rb"):  # what the system says of it
        pass
    try:
        module = ir.Module.parseFile(os.fspath(path), context)
    except ir.MLIRError as error:
        first = next((str(one) for one in error.error_diagnostics), str(error)).splitlines()[0]
        raise FrontendError(f"{path}: not a module of StableHLO: {first[:300]}") from None
    public = [op for op in module.body.operations if _is_public(op)]
    mains = [op for op in public if _name(op) == "main"] or public
    if len(mains) != 1:
        raise FrontendError(f"{path}: a module has a function 'main', or one public function, not {len(public)}")
    for op in public:
        if op != mains[0]:
            with module.context:
                op.attributes["sym_visibility"] = ir.StringAttr.get("private")
    run_reporting(_ONE_FUNCTION, module)
    check_shapes(module)
    taken = ir.FunctionType(ir.TypeAttr(mains[0].attributes["function_type"]).value)
    inputs = [Argument(f"arg{n}", "input", *tensor_type(kind), position=n) for n, kind in enumerate(taken.inputs)]
    results = [tensor_type(kind) for kind in taken.results]
    run_reporting(_TO_LINALG, module)
    _check_lowered(module)
    return imported_function(module, inputs, results, {"import": time.perf_counter() - start})


def _check_lowered(module: ir.Module) -> None:
    """Raises `FrontendError` for the first operation that is left as it was."""
    op = first_operation(module, lambda op: op.name.startswith(("stablehlo.", "func.call")))
    if op is not None:
        where = origin_of_location(op.location)[1]
        raise FrontendError(f"operation '{op.name}' has no lowering to linalg", operator=op.name, location=where)


def _name(op: ir.OpView) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _is_public(op: ir.OpView) -> bool:
    visible = op.attributes["sym_visibility"] if "sym_visibility" in op.attributes else None
    return op.operation.name == "func.func" and (visible is None or ir.StringAttr(visible).value == "public")
