"""Tracing: `torch.export` and its decompositions, with their errors made readable."""

from __future__ import annotations

import functools
import inspect
import io
import logging
import re
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from typing import Any

import torch
import torch.fx._lazy_graph_module
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten, tree_unflatten

from kitsune_mlir.errors import DynamicShapeError, FrontendError, KitsuneError
from kitsune_mlir.frontend.calls import decompose_calls, decompose_kernels
from kitsune_mlir.frontend.decompositions import decomposition_table
from kitsune_mlir.frontend.functional import make_functional
from kitsune_mlir.frontend.higher_order import write_out_control
from kitsune_mlir.frontend.recurrent import without_steps
from kitsune_mlir.frontend.source import origin_of_text, origin_of_traceback
from kitsune_mlir.frontend.statistics import statistics_known
from kitsune_mlir.frontend.torch_decompositions import run_decompositions
from kitsune_mlir.frontend.unchecked_losses import unchecked_losses

__all__ = ["decompose", "export", "parameter_names", "quiet", "without_code"]

# torch.export takes these as inputs; other objects (dtypes, devices, slices) are bound into the program.
_EXPORTABLE = (torch.Tensor, int, float, bool, str, type(None))


class _Function(torch.nn.Module):
    """Lets a plain function be exported."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = _as_forward(function)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class _Bound(torch.nn.Module):
    """Calls a model with some leaves of its inputs replaced by values given here."""

    def __init__(self, model: torch.nn.Module, values: Mapping[int, Any]):
        super().__init__()
        self.model = model
        self.values = values

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        for position, value in self.values.items():
            leaves[position] = value
        args, kwargs = tree_unflatten(leaves, spec)
        return self.model(*args, **kwargs)


def export(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Mapping[str, Any] | None = None,
) -> tuple[ExportedProgram, dict[int, Any]]:
    """Traces `model` on its inputs.

    Args:
        sizes: by the name of an argument, its `dynamic_shapes` as torch.export takes them; None where all sizes are fixed.

    Returns:
        The program, and the inputs that are bound into it: position among the leaves of `(args, kwargs)` → value.
        The program itself has None there.

    Raises:
        DynamicShapeError, FrontendError: it cannot be traced.
    """
    if isinstance(model, ExportedProgram):
        return model, {}
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    leaves, spec = tree_flatten((args, kwargs))
    bound = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, _EXPORTABLE)}
    if bound:
        args, kwargs = tree_unflatten([None if i in bound else leaf for i, leaf in enumerate(leaves)], spec)
        module = _Bound(module, bound)
    if sizes is not None and module is not model:
        _name_arguments(module, model)
    try:
        with quiet(), without_code(), without_steps(), statistics_known(), unchecked_losses():
            return torch.export.export(
                module, args, kwargs, dynamic_shapes=None if sizes is None else dict(sizes), strict=False
            ), bound
    except Exception as error:
        raise _tracing_error("torch.export cannot trace the model", error) from None


def _name_arguments(module: torch.nn.Module, model: torch.nn.Module | Callable[..., Any]) -> None:
    """Let a module's arguments have the names of a model's, by which torch.export takes dynamic shapes."""
    inner = module.forward
    named = functools.wraps(model.forward if isinstance(model, torch.nn.Module) else model)
    module.forward = named(lambda *args, **kwargs: inner(*args, **kwargs))  # type: ignore[method-assign]


def parameter_names(model: torch.nn.Module | Callable[..., Any] | ExportedProgram, count: int) -> tuple[str, ...]:
    """Names of the first `count` positional arguments of a model; fewer, or none, where it does not say.

    Those of a program that was exported are all that it has.
    """
    if isinstance(model, ExportedProgram):
        signature = model.module_call_graph[0].signature
        positional = model.call_spec.in_spec.children()[0].num_children if model.call_spec.in_spec is not None else 0
        return tuple((signature.forward_arg_names or [])[:positional]) if signature is not None else ()
    try:
        parameters = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values()
    except (TypeError, ValueError):  # of functions that are not written in Python
        return ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    names += [f"{rest}[{number}]" for number in range(count - len(names))] if rest is not None else []
    return tuple(names[:count])


def decompose(program: ExportedProgram) -> ExportedProgram:
    """Breaks the program's operators down to those that torch-mlir lowers; the program is used up.

    Raises:
        KitsuneError: one cannot be, for these shapes and types; names it, and its source line.
    """
    with quiet():
        write_out_control(program)
    try:
        with quiet():
            make_functional(program.graph)
            decompose_kernels(program, decomposition_table())
            if decompose_calls(program, decomposition_table()):
                return program
            # A view of a result whose strides are others once its operator is decomposed (PyTorch 2.11's attention) is a copy.
            for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
                node.target = torch.ops.aten.reshape.default
            program.graph_module.recompile()
            return run_decompositions(program, decomposition_table())
    except Exception as error:
        raise _tracing_error("torch cannot decompose the model", error) from None


def _tracing_error(what: str, error: Exception) -> KitsuneError:
    message = str(error).strip() or type(error).__name__
    # torch appends the node that it was at, and where that came from.
    message, _, context = message.partition("\nWhile executing")
    named = re.search(r"target=torch\.ops\.([\w.]+)", context)
    operator = named.group(1) if named else None
    location = origin_of_text(context) or origin_of_traceback(error.__traceback__)

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, GuardOnDataDependentSymNode):
            value = str(cause.cond)
            return DynamicShapeError(
                f"the model branches on, or takes a size from, the contents of a tensor ({value}), which are known only"
                " at run time. Shapes and control flow must be static",
                value=value,
                location=location,
            )
        if isinstance(cause, DataDependentOutputException | DynamicOutputShapeException):
            value = str(cause.func)
            return DynamicShapeError(
                f"the result of '{value}' depends on the contents of a tensor, which are known only at run time."
                " Shapes and control flow must be static",
                value=value,
                operator=value,
                location=location,
            )
        cause = cause.__cause__ or cause.__context__
    return FrontendError(f"{what}: {type(error).__name__}: {message.strip()}", operator=operator, location=location)


def _as_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function or method with the name `forward` in tracebacks: torch records the lines of no others. What has no code of
    Python's stays."""
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        return types.MethodType(_as_forward(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    named = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    named.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(named, function)


def without_code() -> AbstractContextManager[None]:
    """While it is entered, graphs of PyTorch's tracing have no Python code before somebody asks for it, as inside of Dynamo.

    torch.export writes it anew behind each of its passes.
    """
    return torch.fx._lazy_graph_module._use_lazy_graph_module(True)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps what torch says about a failed trace off the terminal: logs, warnings, a half-made graph on `stderr`.

    The error carries what matters.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
