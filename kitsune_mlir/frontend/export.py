"""From a `torch.nn.Module` to an `ImportedModel`."""

from __future__ import annotations

import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch_mlir import ir

from kitsune_mlir.errors import DynamicShapeError, FrontendError, KitsuneError
from kitsune_mlir.frontend import prepare
from kitsune_mlir.frontend.batch_norm import fold_batch_norms
from kitsune_mlir.frontend.decompositions import decomposition_table
from kitsune_mlir.frontend.imported import Argument, FixedInput, ImportedModel, Result, dtype_name
from kitsune_mlir.frontend.lower import import_graph, lower_to_linalg
from kitsune_mlir.frontend.settle import settle
from kitsune_mlir.frontend.source import origin_of_text, origin_of_traceback

__all__ = ["import_model"]

_WEIGHT_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


class _Function(torch.nn.Module):
    """Lets a plain function be exported."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def import_model(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    context: ir.Context | None = None,
    fold_norms: bool = True,
) -> ImportedModel:
    """Imports a model for the shapes and dtypes of the given inputs.

    Args:
        model: a module (in the mode it is in: call `eval()` first for inference), a function of tensors, or a program
            that `torch.export.export` made; for the latter `args` and `kwargs` are not needed.
        args: positional inputs: tensors, numbers, None, and tuples, lists and dicts of them.
        kwargs: inputs by name.
        context: MLIR context to build in; a new one if None. The torch dialects are registered in it.
        fold_norms: fold batch norms in evaluation mode into the convolutions before them.

    Returns:
        The model as one static-shaped function whose weights are arguments. Weights are not copied.

    Raises:
        DynamicShapeError: a shape or a number depends on data, or a dimension is dynamic; names the value.
        FrontendError: the model cannot be traced, or an operator has no lowering; names it and the source line.
    """
    seconds: dict[str, float] = {}
    with _quiet(), _timed(seconds, "export"):
        program = model if isinstance(model, ExportedProgram) else _export(model, tuple(args), dict(kwargs or {}))
        prepare.check_static(program.graph)
    with _quiet(), _timed(seconds, "decompose"):
        if fold_norms:
            fold_batch_norms(program)
        try:
            program = program.run_decompositions(decomposition_table())
        except Exception as error:
            raise _tracing_error("torch cannot decompose the model", error) from None
        main = _Main(program)
    with _timed(seconds, "import"):
        module = import_graph(main.graph, context or ir.Context())
    with _timed(seconds, "lower"):
        lower_to_linalg(module)
        settle(module)
        _name_arguments(module, main.arguments)
    spec = program.call_spec
    return ImportedModel(module, main.arguments, main.results, main.fixed_inputs, spec.in_spec, spec.out_spec, seconds)


def _export(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    try:
        return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        raise _tracing_error("torch.export cannot trace the model", error) from None


def _tracing_error(what: str, error: Exception) -> KitsuneError:
    message = str(error).strip() or type(error).__name__
    # torch appends the node that it was at, and where that came from.
    message, _, context = message.partition("\nWhile executing")
    operator = re.search(r"target=torch\.ops\.([\w.]+)", context)
    location = origin_of_text(context) or origin_of_traceback(error.__traceback__)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, GuardOnDataDependentSymNode):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        value = str(getattr(cause, "cond", "") or message.splitlines()[0])
        return DynamicShapeError(
            f"the model branches on, or takes a size from, the contents of a tensor ({value}), which is known only at"
            " run time. Shapes and control flow must be static",
            value=value,
            location=location,
        )
    return FrontendError(
        f"{what}: {type(error).__name__}: {message.strip()}",
        operator=operator.group(1) if operator else None,
        location=location,
    )


class _Main:
    """The graph of an exported program made ready for the importer, with what its arguments and results mean.

    Attributes:
        graph: placeholders are exactly `arguments`, outputs exactly the computed tensors.
    """

    def __init__(self, program: ExportedProgram):
        signature = program.graph_signature
        module = program.graph_module
        self.graph = module.graph
        self._names: dict[str, str] = {}
        self._kinds: dict[str, Any] = {}
        weights: dict[str, torch.Tensor] = {}
        self._positions: dict[str, int] = {}
        fixed: list[FixedInput] = []

        position = 0
        for spec in signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    fixed.append(FixedInput(position, spec.arg.value))
                else:
                    self._positions[spec.arg.name] = position
                position += 1
            elif spec.kind in _WEIGHT_KINDS:
                held = program.state_dict if spec.target in program.state_dict else program.constants
                weights[spec.arg.name] = held[spec.target].detach()
                self._names[spec.arg.name] = spec.target
                self._kinds[spec.arg.name] = _WEIGHT_KINDS[spec.kind]
            else:
                raise FrontendError(f"input '{spec.arg.name}' is no tensor but a {spec.kind.name.lower()}")
        self.fixed_inputs = tuple(fixed)

        prepare.remove_bookkeeping(self.graph)
        prepare.check_static(self.graph)
        prepare.name_twins(self.graph)
        prepare.tidy_dimensions(self.graph)
        prepare.fold_index_lists(module)
        prepare.lift_attributes(module, weights)
        targets = {s.target for s in signature.output_specs if s.kind is OutputKind.BUFFER_MUTATION}
        mutated = {name for name, target in self._names.items() if target in targets}
        prepare.merge_tied(self.graph, weights, mutated)

        self.results = self._split_outputs(signature.output_specs)
        self.arguments = self._arguments(weights)

    def _split_outputs(self, specs: Sequence[Any]) -> tuple[Result, ...]:
        """Leaves in the graph's output only the values that it computes, each once."""
        output = next(n for n in self.graph.nodes if n.op == "output")
        computed: list[fx.Node] = []
        leaves: list[Result] = []
        changes: list[Result] = []
        for spec, node in zip(specs, output.args[0], strict=True):
            mutates = None if spec.kind is OutputKind.USER_OUTPUT else self._names.get(spec.target, spec.target)
            if not isinstance(node, fx.Node):
                result = Result("python", value=node)
            elif node.name in self._positions and not isinstance(node.meta.get("val"), torch.Tensor):
                result = Result("python", value=node.meta.get("val"))
            else:
                value = node.meta["val"]
                shape, dtype = tuple(value.shape), dtype_name(value.dtype)
                if node.op == "placeholder":
                    name = self._names.get(node.name, node.name)
                    result = Result("alias", shape, dtype, argument=name, mutates=mutates)
                else:
                    if node not in computed:
                        computed.append(node)
                    result = Result("tensor", shape, dtype, index=computed.index(node), mutates=mutates)
            (leaves if mutates is None else changes).append(result)
        output.args = (tuple(computed),)
        self._returned = {r.argument for r in leaves + changes if r.kind == "alias"}
        return tuple(leaves + changes)

    def _arguments(self, weights: dict[str, torch.Tensor]) -> tuple[Argument, ...]:
        """Erases placeholders that nothing needs and describes the others."""
        found: list[Argument] = []
        for node in [n for n in self.graph.nodes if n.op == "placeholder"]:
            name = self._names.get(node.name, node.name)
            if node.name in weights:
                weight = weights[node.name]
                if not node.users and name not in self._returned:
                    self.graph.erase_node(node)
                    continue
                kind = self._kinds.get(node.name, "constant")
                found.append(Argument(name, kind, tuple(weight.shape), dtype_name(weight.dtype), value=weight))
            elif node.name in self._positions:
                value = node.meta["val"]
                position = self._positions[node.name]
                found.append(Argument(name, "input", tuple(value.shape), dtype_name(value.dtype), position=position))
            else:
                self.graph.erase_node(node)
        return tuple(found)


def _name_arguments(module: ir.Module, arguments: Sequence[Argument]) -> None:
    function = module.body.operations[0]
    with module.context:
        named = [ir.DictAttr.get({"kitsune.name": ir.StringAttr.get(a.name)}) for a in arguments]
        function.arg_attrs = ir.ArrayAttr.get(named)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch's logging and warnings about the tracing itself off the terminal: errors carry what matters."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
