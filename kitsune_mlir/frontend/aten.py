"""Import of graphs that AOTAutograd has traced: functional, flat and decomposed, so that nothing of that is done again."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_structure
from torch_mlir.extras.fx_decomp_util import get_decomposition_table

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.calls import decompose_calls
from kitsune_mlir.frontend.decompositions import decomposition_table
from kitsune_mlir.frontend.export import quiet
from kitsune_mlir.frontend.foreach import fma
from kitsune_mlir.frontend.gradients.attention import trained_attention
from kitsune_mlir.frontend.recurrent import RECURRENT, TRAINED

__all__ = [
    "AtenProgram",
    "TracedProgram",
    "aten_program",
    "composites",
    "is_dense",
    "late_operators",
    "sized_table",
    "traced_table",
]

aten = torch.ops.aten


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor's elements fill memory without gaps or overlaps."""
    step = 1
    for n, apart in sorted(zip(size, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if n != 1:
            if apart != step:
                return False
            step *= n
    return True


_WITH_STRIDES = {aten.empty_strided.default, aten.new_empty_strided.default}
"""What is copied into their results has their strides."""


def late_operators() -> Set[Any]:
    """Operators that this frontend has to see whole: norms that fold into convolutions, bags of embeddings of equal size, and
    slices that are put into tensors, perhaps into inputs where they lie."""
    return {
        aten.slice_scatter.default,
        aten.select_scatter.default,
        aten._native_batch_norm_legit_no_training.default,
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
        torch.ops.kitsune.equal_bags.default,
    }


@functools.cache
def traced_table(late: bool) -> dict[Any, Callable[..., Any]]:
    """The table to trace with: the decomposition table, without late operators where these are to be left whole.

    What draws random numbers is left whole always: only the operator itself draws those that eager does.
    """
    # Optimizers are captured with an operator that Inductor defines; since PyTorch 2.13.
    importlib.import_module("torch._inductor.inductor_prims")
    more: dict[Any, Callable[..., Any]] = {aten.view.default: _view}
    if hasattr(torch.ops.prims, "fma"):
        more[torch.ops.prims.fma.default] = fma
    table, usual = {**decomposition_table(), **more}, get_decomposition_table()
    found = {
        op: how if how is usual.get(op) else _with_own_memory(how, op in _ROW_MAJOR)
        for op, how in table.items()
        if not (op in _WITH_STRIDES or (late and op in late_operators()))
        and torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ())
    }
    return found | {op: _of_known_sizes(found[op]) for op in _WHOLE_WITH_SYMBOLS if op in found}


@functools.cache
def sized_table() -> dict[Any, Callable[..., Any]]:
    """The table to trace a graph with once its sizes are known: what `traced_table` left whole for their sake, and numbers that
    are put beside tensors then."""
    return {op: traced_table(late=True)[op] for op in (*_WHOLE_WITH_SYMBOLS, aten.scalar_tensor.default)}


def _view(x: torch.Tensor, size: Sequence[int]) -> Any:
    """A view that eager's strides allow, of what a decomposition laid out in another order of its dimensions."""
    if x.is_contiguous() or any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride(), *size)):
        return NotImplemented
    with _disable_current_modes():
        like = torch.empty_strided(x.shape, x.stride(), device="meta")
        try:
            like.view(size)
        except (RuntimeError, ValueError):
            pass
        else:
            return NotImplemented
    return x.contiguous().view(size)


_WHOLE_WITH_SYMBOLS = (
    aten.gather.default, aten.scatter_add.default, aten.scatter.src, aten.scatter.value, aten.scatter_reduce.two,
    aten.index_add.default, aten.index_copy.default, aten.index_put.default,
)  # fmt: skip
"""Operators that look at sizes, or become arithmetic with them, from which nobody can tell any more which rows go where."""


def _of_known_sizes(how: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition for tensors whose sizes are numbers."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(size, torch.SymInt) for leaf in leaves for size in leaf.shape):
            return NotImplemented
        return how(*args, **kwargs)

    return decomposed


@functools.cache
def composites(training: bool, attention_dropout: bool = False) -> Mapping[Any, Callable[..., Any]]:
    """Of the table, this project's decompositions of composite operators, which PyTorch takes apart before it asks a table.

    Args:
        training: such as autograd knows what to do with; others become operators of our own.
        attention_dropout: whether that of attention is part of it where it can be.
    """
    key, usual = torch._C.DispatchKey.CompositeImplicitAutograd, get_decomposition_table()
    attention = functools.partial(trained_attention, dropout_inside=attention_dropout)
    trained = {**TRAINED, torch.ops.aten.scaled_dot_product_attention.default: attention}
    return {
        op: _with_own_memory(how, op in _ROW_MAJOR)
        for op, how in {**decomposition_table(), **(trained if training else {})}.items()
        if isinstance(op, torch._ops.OpOverload) and op.has_kernel_for_dispatch_key(key) and how is not usual.get(op)
        if not (training and op in RECURRENT and op not in TRAINED)
    }


_ROW_MAJOR = {
    aten._softmax.default,
    aten._log_softmax.default,
    aten.native_layer_norm.default,
    aten.rms_norm.default,
    aten._fused_rms_norm.default,
}
"""Operators whose results are row-major, however their operands lie."""


def _with_own_memory(how: Callable[..., Any], row_major: bool = False) -> Callable[..., Any]:
    """A decomposition whose results lie in memory as an operator's do: new and dense, where it ends in a view or an operand.

    It does not raise NotImplementedError, but leaves the operator.

    Args:
        row_major: whether the operator's results are.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}

        def new(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            dense = value.is_contiguous() if row_major else is_dense(value.shape, value.stride())
            if id(value) not in given and dense:
                return value
            return value.clone(memory_format=torch.contiguous_format)

        try:
            return tree_map(new, how(*args, **kwargs))
        except NotImplementedError:  # it stays whole, and PyTorch runs it
            return NotImplemented

    return decomposed


class CallSpec(NamedTuple):
    """How `(args, kwargs)` and the output are nested."""

    in_spec: TreeSpec
    out_spec: TreeSpec


@dataclasses.dataclass
class AtenProgram:
    """A graph as AOTAutograd traces it, in the form of an `ExportedProgram` as far as the frontend reads one.

    Attributes:
        graph_module: functional; placeholders and outputs as in `graph_signature`.
        state_dict: weights by the name of their placeholder; of device meta: whose values they have is known at a call.
        constants: tensors that are no weights.
        call_spec: of flat arguments and a flat tuple.
    """

    graph_module: fx.GraphModule
    graph_signature: ExportGraphSignature
    state_dict: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    call_spec: CallSpec

    @property
    def graph(self) -> fx.Graph:
        """The graph itself."""
        return self.graph_module.graph

    def decomposed(self) -> AtenProgram:
        """Itself, with its late operators decomposed in place.

        Raises:
            FrontendError: one cannot be, for these shapes and types.
        """
        left = [node for node in self.graph.nodes if node.target in late_operators()]
        with quiet():
            done = not left or decompose_calls(self, decomposition_table(), only=late_operators())
        if not done:
            raise FrontendError(f"torch cannot decompose '{left[0].target}'", operator=str(left[0].target))
        return self


def aten_program(graph_module: fx.GraphModule, weights: Set[str]) -> AtenProgram:
    """A graph of ATen's operators as a program.

    Args:
        graph_module: changed in place later. Nodes have their values, without data, in `meta["val"]`. A `copy_` to a
            placeholder says that this input is overwritten; these come last, and are taken out.
        weights: names of placeholders that stay the same tensors from call to call.
    """
    graph = graph_module.graph
    for node in [node for node in graph.nodes if node.target in _WITH_STRIDES]:
        made = node.meta["val"]
        node.target, node.args = aten.full.default, ([*made.shape], False if made.dtype == torch.bool else 0)
        node.kwargs = {"dtype": made.dtype, "device": made.device}
    inputs, outputs = [], []
    state = {}
    placeholders = graph.find_nodes(op="placeholder")
    first = next((node for node in placeholders if node.name not in weights), None)
    if first is not None:
        for node in [node for node in placeholders if node.name in weights]:  # weights come first
            first.prepend(node)
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            inputs.append(InputSpec(InputKind.USER_INPUT, ConstantArgument(node.name, value), None))
        elif node.name in weights:
            inputs.append(InputSpec(InputKind.PARAMETER, TensorArgument(node.name), node.name))
            state[node.name] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        else:
            inputs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
    output = next(iter(graph.find_nodes(op="output")))
    returned = list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
    changes = []
    for node in list(graph.find_nodes(op="call_function", target=aten.copy_.default)):
        changed, value = node.args[:2]
        changes.append(value)
        outputs.append(OutputSpec(OutputKind.USER_INPUT_MUTATION, TensorArgument(value.name), changed.name))
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    for value in returned:
        argument = TensorArgument(value.name) if isinstance(value, fx.Node) else ConstantArgument("", value)
        outputs.append(OutputSpec(OutputKind.USER_OUTPUT, argument, None))
    output.args = ((*changes, *returned),)
    count = sum(spec.kind is InputKind.USER_INPUT for spec in inputs)
    spec = CallSpec(tree_structure(((0,) * count, {})), tree_structure((0,) * len(returned)))
    return AtenProgram(graph_module, ExportGraphSignature(inputs, outputs), state, {}, spec)


TracedProgram = ExportedProgram | AtenProgram
"""What the frontend imports."""
