"""From a `torch.nn.Module` to an `ImportedModel`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils._pytree import tree_leaves
from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import COUNTED, MUTATES, VALID_ROWS
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.aten import AtenProgram, TracedProgram, aten_program
from kitsune_mlir.frontend.batch_norm import fold_batch_norms
from kitsune_mlir.frontend.embedding_bags import name_equal_bags
from kitsune_mlir.frontend.export import decompose, export, parameter_names
from kitsune_mlir.frontend.imported import Argument, ImportedModel, Result
from kitsune_mlir.frontend.lower import import_graph, lower_to_linalg
from kitsune_mlir.frontend.prepare import check_static
from kitsune_mlir.frontend.settle import settle
from kitsune_mlir.frontend.signature import MainGraph
from kitsune_mlir.frontend.slices import put_slices, put_traced_slices
from kitsune_mlir.frontend.strided_inputs import read_where_they_lie
from kitsune_mlir.runtime.strided import Strided

__all__ = [
    "ExportedModel",
    "describe_arguments",
    "export_model",
    "import_exported",
    "import_model",
    "is_channels_last",
    "traced_model",
]


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
    return import_exported(export_model(model, args, kwargs, fold_norms=fold_norms), context=context)


@dataclass(frozen=True)
class ExportedModel:
    """A model as one graph of PyTorch's operators.

    Attributes:
        program: the graph, with its weights.
        fixed: inputs that are bound into it, by position among the leaves of `(args, kwargs)`.
        returned: the nodes that the model returns.
        handed_back: of those by number, that are inputs which the model changed: the name of the input's node.
        leaves: of `(args, kwargs)`.
        parameters: names of the positional arguments.
        seconds: how long `export` took.
        strided: inputs that are taken as a part of a dense tensor, as `read_where_they_lie` gives them.
    """

    program: TracedProgram
    fixed: Mapping[int, Any]
    returned: Sequence[str]
    handed_back: Mapping[int, str]
    leaves: Sequence[Any]
    parameters: tuple[str, ...]
    seconds: Mapping[str, float]
    strided: Mapping[str, tuple[tuple[int, ...], Strided]] = field(default_factory=dict)


def export_model(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    fold_norms: bool = True,
) -> ExportedModel:
    """The first part of `import_model`, with its arguments and errors; `import_exported` is the second."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "export"):
        program, fixed = export(model, tuple(args), dict(kwargs or {}))
        check_static(program.graph)
        returned, handed_back = _returned(program)
        if fold_norms:
            fold_batch_norms(program)
        put_slices(program)
        strided = read_where_they_lie(program)
    leaves = tree_leaves((tuple(args), dict(kwargs or {})))
    return ExportedModel(program, fixed, returned, handed_back, leaves, parameter_names(model, len(args)), seconds, strided)


def traced_model(graph: fx.GraphModule, weights: Set[str] = frozenset()) -> ExportedModel:
    """A graph that AOTAutograd has traced, in the place of `export_model`.

    Args:
        graph: see `aten.aten_program`, which changes it.
        weights: names of placeholders that stay the same tensors from call to call.

    Raises:
        DynamicShapeError: a shape is no constant.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "export"):
        check_static(graph.graph)
        program = aten_program(graph, weights)
        fold_batch_norms(program)
        put_traced_slices(program)
        returned, _ = _returned(program)
        strided = read_where_they_lie(program)
    inputs = [node for node in graph.graph.find_nodes(op="placeholder") if node.name not in weights]
    values = [node.meta.get("val") for node in inputs]
    return ExportedModel(program, {}, returned, {}, values, tuple(node.name for node in inputs), seconds, strided)


def import_exported(exported: ExportedModel, *, context: ir.Context | None = None) -> ImportedModel:
    """The second part of `import_model`, with its errors; what it is given is used up."""
    seconds = dict(exported.seconds)
    with _timed(seconds, "decompose"):
        name_equal_bags(exported.program.graph)
        traced = exported.program
        program = traced.decomposed() if isinstance(traced, AtenProgram) else decompose(traced)
        main = MainGraph(program, exported.fixed, exported.strided)
    with _timed(seconds, "import"):
        module = import_graph(main.graph, context or ir.Context())
    with _timed(seconds, "lower"):
        lower_to_linalg(module)
        places = settle(module)
        describe_arguments(module, main.arguments, exported.leaves)
        _number_counts(module, main.arguments)
        results = _placed(main.results, places, exported.returned)
        results = _handed_back(results, {n: main.name_of(node) for n, node in exported.handed_back.items()})
        _describe_results(module, main.arguments, results)
    in_spec, out_spec = program.call_spec
    if in_spec is None or out_spec is None:
        raise FrontendError("the exported program does not say how its inputs and outputs are nested")
    tensors = module, main.arguments, main.sources, results, main.fixed_inputs
    return ImportedModel(*tensors, in_spec, out_spec, seconds, exported.parameters)


def _returned(program: TracedProgram) -> tuple[list[str], dict[int, str]]:
    """The nodes that the model returns, before any of them are found to be equal; those that are changed inputs, by number."""
    output = next(iter(program.graph.find_nodes(op="output")))
    pairs = zip(program.graph_signature.output_specs, output.args[0], strict=True)
    nodes = [value for spec, value in pairs if spec.kind is OutputKind.USER_OUTPUT]
    inputs = {number: _changed(node) for number, node in enumerate(nodes) if isinstance(node, fx.Node)}
    return [str(node) for node in nodes], {n: node.name for n, node in inputs.items() if node.op == "placeholder"}


def _changed(node: fx.Node) -> fx.Node:
    """What a chain of operators that change their first operand and return it begins with."""
    while isinstance(node.target, torch._ops.OpOverload) and node.args and isinstance(node.args[0], fx.Node):
        schema = node.target._schema
        changed = schema.arguments[0].alias_info if schema.arguments else None
        returned = schema.returns[0].alias_info if len(schema.returns) == 1 else None
        if changed is None or returned is None or not changed.is_write or changed.before_set != returned.before_set:
            break
        node = node.args[0]
    return node


def _placed(results: Sequence[Result], places: Sequence[int], returned: Sequence[str]) -> tuple[Result, ...]:
    """Results by the numbers that they have in the module: of two tensors that are equal there is one.

    Raises:
        FrontendError: two of them have the same bits and other types: bytes with and without a sign.
    """
    types: dict[int, str] = {}
    first: dict[int, str] = {}  # place -> the model's tensor that is returned from there
    leaves, placed = iter(returned), []
    for result in results:
        name = next(leaves) if result.mutates is None else None
        if result.index is None:
            placed.append(result)
            continue
        place = places[result.index]
        if types.setdefault(place, result.dtype) != result.dtype:
            raise FrontendError(f"two results are one value, as {types[place]} and as {result.dtype}, which is not supported")
        copied = name is not None and first.setdefault(place, name) != name
        placed.append(replace(result, index=place, copied=copied))
    return tuple(placed)


def _handed_back(results: Sequence[Result], names: Mapping[int, str]) -> tuple[Result, ...]:
    """Results that are arguments themselves where the model returns what it has changed; `names` by number of the leaf."""
    changed = {result.mutates for result in results if result.mutates}
    found = []
    for number, result in enumerate(results):
        if result.kind == "tensor" and result.mutates is None and names.get(number) in changed:
            result = Result("alias", result.shape, result.dtype, argument=names[number])
        found.append(result)
    return tuple(found)


def _describe_results(module: ir.Module, arguments: Sequence[Argument], results: Sequence[Result]) -> None:
    """Say of results which argument's new value they are, if they are nothing else, and which of their rows are wanted."""
    numbers = {argument.name: number for number, argument in enumerate(arguments)}
    uses = Counter(result.index for result in results)
    function = module.body.operations[0]
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    said: list[dict[str, ir.Attribute]] = [{} for _ in range(count)]
    with module.context:
        for result in results:
            if result.index is None or uses[result.index] != 1:
                continue
            if result.mutates:
                said[result.index][MUTATES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), numbers[result.mutates])
            elif result.valid_rows is not None:
                valid = [numbers[result.valid_rows[0]], result.valid_rows[1]]
                said[result.index][VALID_ROWS] = ir.DenseI64ArrayAttr.get(valid)
        if any(said):
            function.res_attrs = ir.ArrayAttr.get([ir.DictAttr.get(attributes) for attributes in said])


def _number_counts(module: ir.Module, arguments: Sequence[Argument]) -> None:
    """Say of scatters of counted rows the number of the argument that holds the count, in place of its name; and the rows."""
    numbers = {argument.name: number for number, argument in enumerate(arguments)}
    with module.context:
        for op in [op for op in walk(module.operation) if COUNTED in op.attributes]:
            number = numbers.get(ir.StringAttr(op.attributes[COUNTED]).value)
            del op.attributes[COUNTED]
            if number is not None:
                rows = ir.ShapedType(op.operands[0].type).shape[0]
                op.attributes[COUNTED] = ir.DenseI64ArrayAttr.get([number, rows])


def describe_arguments(module: ir.Module, arguments: Sequence[Argument], leaves: Sequence[Any]) -> None:
    """Say of each argument its name, what it is, and, of images given with channels innermost, their order in memory."""
    function = module.body.operations[0]
    with module.context:
        described = []
        for argument in arguments:
            said = {"kitsune.name": ir.StringAttr.get(argument.name), "kitsune.kind": ir.StringAttr.get(argument.kind)}
            given = leaves[argument.position] if argument.position is not None and argument.position < len(leaves) else None
            if isinstance(given, torch.Tensor) and is_channels_last(given):
                said["kitsune.caller_dim_order"] = ir.DenseI64ArrayAttr.get([0, 2, 3, 1])
            described.append(ir.DictAttr.get(said))
        function.arg_attrs = ir.ArrayAttr.get(described)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is an image whose channels are innermost in memory."""
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start
