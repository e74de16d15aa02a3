"""A functional ATen graph to linalg on tensors, by torch-mlir, with its diagnostics turned into errors."""

from __future__ import annotations

import re

from torch import fx
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.extras.fx_importer import ContextCache, FxImporter
from torch_mlir.passmanager import PassManager

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.own_operators import lower_own_operators
from kitsune_mlir.frontend.source import node_location, origin_of_location, origin_of_node, target_name

__all__ = ["TO_LINALG", "import_graph", "lower_to_linalg", "run_reporting"]

_TO_BACKEND = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline{extra-library=})"
)
TO_LINALG = "builtin.module(torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
_OPERATOR = re.compile(r'name = "torch\.([\w.]+)"|\'torch\.(aten\.[\w.]+|prims\.[\w.]+|[\w.]+)\'')


class _Locations(ContextCache):
    """Gives each operation the location `"aten.op"(file:line)`, and remembers which node is being imported."""

    __slots__ = ["node"]

    def get_node_location(self, node: fx.Node) -> ir.Location:
        self.node = node
        return node_location(node, self._c)


def import_graph(graph: fx.Graph, context: ir.Context) -> ir.Module:
    """Imports `graph` as `func.func @main` of the torch dialect.

    Args:
        graph: functional, of ATen overloads; placeholders become the arguments in their order.
        context: the torch dialect is registered in it.

    Raises:
        FrontendError: a node has no form in the torch dialect; names its operator and source line.
    """
    torch_dialect.register_dialect(context)
    importer = FxImporter(context=context)
    importer._cc = locations = _Locations(context)
    locations.node = None
    try:
        importer.import_stateless_graph(graph, func_name="main")
    except Exception as error:  # whatever the importer trips over: assertions, KeyError, TypeError, …
        node = locations.node
        if node is None or node.op != "call_function":
            raise FrontendError(f"torch-mlir cannot read the graph: {_text(error)}") from error
        raise FrontendError(
            f"torch-mlir cannot read operator '{target_name(node)}' ({_text(error)})",
            operator=target_name(node),
            location=origin_of_node(node),
        ) from error
    return importer.module


def lower_to_linalg(module: ir.Module) -> None:
    """Lowers a module of the torch dialect, in place, to linalg on tensors.

    Raises:
        FrontendError: an operator has no lowering; names it and its source line.
    """
    lower_own_operators(module)
    own = any(op.operation.name.startswith("kitsune.") for op in module.body.operations[0].regions[0].blocks[0].operations)
    for pipeline in (_TO_BACKEND, _unchecked(module.context) if own else TO_LINALG):
        run_reporting(pipeline, module)
    if own and _left_over(module) is not None:
        raise _lowering_error([], "it is left as it was", module)


def run_reporting(pipeline: str, module: ir.Module) -> None:
    """Runs passes of torch-mlir, or of MLIR, on a model.

    Raises:
        FrontendError: one failed; names the operator and its source line.
    """
    diagnostics: list[tuple[str, str | None, str | None]] = []

    def collect(diagnostic: ir.Diagnostic) -> bool:
        if diagnostic.severity == ir.DiagnosticSeverity.ERROR:
            diagnostics.append((diagnostic.message, *origin_of_location(diagnostic.location)))
        return True

    with module.context as context:
        handler = context.attach_diagnostic_handler(collect)
        before = context.emit_error_diagnostics
        # Otherwise some passes report an error without failing, and the pass manager aborts the process.
        context.emit_error_diagnostics = True
        try:
            passes = PassManager.parse(pipeline)
            passes.enable_verifier(False)  # after each pass it takes a quarter of the time; the result is verified below
            passes.run(module.operation)
            module.operation.verify()
        except ir.MLIRError as error:
            raise _lowering_error(diagnostics, str(error), module) from None
        finally:
            context.emit_error_diagnostics = before
            handler.detach()


def _unchecked(context: ir.Context) -> str:
    """The passes to linalg without the last one, which refuses operations of dialects that torch-mlir does not know."""
    *passes, check = str(PassManager.parse(TO_LINALG, context)).split(",")
    assert check == "torch-verify-linalg-on-tensors-backend-contract)"
    return ",".join(passes) + ")"


def _lowering_error(diagnostics: list[tuple[str, str | None, str | None]], fallback: str, module: ir.Module) -> FrontendError:
    message, operator, location = diagnostics[0] if diagnostics else (fallback, None, None)
    if operator is None or "'torch.vtensor.literal'" in message:
        # torch-mlir blames a constant where it left the constant's user as it was: name that one.
        operator, location = _left_over(module) or (operator, location)
    named = _OPERATOR.search(message)
    if operator is None and named:
        operator = named.group(1) or named.group(2)
    what = f"operator '{operator}'" if operator else "the model"
    if message.startswith("failed to legalize"):  # the rest prints torch-mlir's operation
        reason = "there is no lowering for it with these types, shapes and arguments"
    else:
        reason = _first(message)
    return FrontendError(f"torch-mlir cannot lower {what} to linalg: {reason}", operator=operator, location=location)


def _left_over(module: ir.Module) -> tuple[str, str | None] | None:
    """Operator and source line of the first operation that is still one of torch's."""
    found: list[tuple[str, str | None]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.startswith(("torch.aten.", "torch.prims.", "torch.operator")):
            operator, location = origin_of_location(op.location)
            found.append((operator or op.name.removeprefix("torch."), location))
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found[0] if found else None


def _text(error: Exception) -> str:
    return _first(str(error)) or type(error).__name__


def _first(message: str) -> str:
    """The first line, cut where the printed operation begins to be long."""
    line = next(iter(message.strip().splitlines()), "")
    return line if len(line) <= 300 else line[:297] + "..."
