"""Rewrites of the exported FX graph before torch-mlir reads it: every tensor an argument, every shape a constant."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch_mlir.extras.fx_as_strided import rewrite_as_strided

from kitsune_mlir.errors import DynamicShapeError, FrontendError
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.source import origin_of_node, target_name
from kitsune_mlir.frontend.striding import is_row_major

__all__ = [
    "add_constant",
    "call_with_value",
    "check_deterministic",
    "check_static",
    "check_trusted",
    "fold_index_lists",
    "lift_attributes",
    "merge_tied",
    "remove_bookkeeping",
    "tidy_dimensions",
]

aten = torch.ops.aten

# They check what tracing has already checked, or what the runtime checks at each call.
_ASSERTIONS = {
    "_assert_tensor_metadata",
    "_assert_async",
    "_assert_scalar",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
}

# torch-mlir's lowering of these runs out of memory, or reads beyond the shape, where `dim` counts from the end.
_DIM_OPS = {
    "scatter", "scatter_add", "scatter_reduce", "gather", "index_select", "index_add", "index_copy", "index_fill",
    "cumsum", "cumprod", "sort", "topk", "kthvalue", "flip", "roll", "select_scatter", "slice_scatter",
}  # fmt: skip

_UNTRUSTED = {
    "logcumsumexp": "torch-mlir's lowering overflows",
    **dict.fromkeys(
        ["max_pool2d_with_indices", "max_pool3d_with_indices", *(f"adaptive_max_pool{rank}d" for rank in (1, 2, 3))],
        "integers crash torch-mlir",
    ),
    "scatter_reduce": "integer means round differently",
    "index_put": "how many elements a mask chooses depends on its contents",
}

_MASKS = (torch.bool, torch.uint8)

# Lists of indices known at compile time that torch would otherwise compute in floating point at run time.
_INDEX_LISTS = {aten.tril_indices.default, aten.triu_indices.default}


def remove_bookkeeping(graph: fx.Graph) -> None:
    """Drops assertions, aliasing markers and everything that no output needs.

    Random numbers that nothing reads too (libraries draw for LayerDrop when they infer, and do not look): FX keeps them for the
    generator's state, which compiled code has none of.
    """
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        packet = getattr(node.target, "overloadpacket", None)
        if not node.users and (_draws(node) or (packet is not None and packet.__name__ in _ASSERTIONS)):
            graph.erase_node(node)
        elif packet in (aten.alias, aten.detach, aten.lift_fresh_copy, aten.clone) and _same_layout(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    drop_dead(graph)


def _same_layout(node: fx.Node) -> bool:
    """Copies and aliases of a value are that value, since the graph is functional (placeholders stay what they were)."""
    source = node.args[0]
    return isinstance(source, fx.Node) and source.op != "placeholder"


def _draws(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def check_static(graph: fx.Graph) -> None:
    """Raises `DynamicShapeError` for the first value whose shape, or whose number, is not known when compiling."""
    for node in graph.nodes:
        for leaf in tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
                what = f"value '{node.name}' is a number ({leaf})"
            elif isinstance(leaf, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in leaf.shape):
                what = f"value '{node.name}' has the shape [{', '.join(map(str, leaf.shape))}]"
            else:
                continue
            source = f"'{target_name(node)}'" if node.op == "call_function" else "an input"
            raise DynamicShapeError(
                f"{what} that is known only at run time; it comes from {source}. Shapes must be static",
                value=node.name,
                operator=target_name(node) if node.op == "call_function" else None,
                location=origin_of_node(node),
            )


def check_deterministic(graph: fx.Graph) -> None:
    """Raises `FrontendError` for an operator that draws random numbers: there is no generator to draw from."""
    for node in graph.nodes:
        if _draws(node):
            raise FrontendError(
                f"operator '{target_name(node)}' draws random numbers, which compiled code cannot;"
                " for dropout, call model.eval() first",
                operator=target_name(node),
                location=origin_of_node(node),
            )


def check_trusted(graph: fx.Graph) -> None:
    """Raises `FrontendError` for operators that torch-mlir lowers to wrong results, or that crash it."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target.overloadpacket.__name__
        limit = _UNTRUSTED.get(name)
        first = next((n.meta.get("val") for n in node.all_input_nodes), None)
        integers = isinstance(first, torch.Tensor) and not first.dtype.is_floating_point
        if limit is None or (limit.startswith("integer") and not integers):
            continue
        if name == "scatter_reduce" and node.args[4] != "mean":
            continue
        if name == "index_put" and not any(i is not None and i.meta["val"].dtype in _MASKS for i in node.args[1]):
            continue
        raise FrontendError(
            f"operator '{target_name(node)}' cannot be imported ({limit})",
            operator=target_name(node),
            location=origin_of_node(node),
        )


def tidy_dimensions(graph: fx.Graph) -> None:
    """Counts `dim` from the front in the operators that torch-mlir lowers wrongly otherwise."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.overloadpacket.__name__ not in _DIM_OPS or not isinstance(node.args[0], fx.Node):
            continue
        rank = node.args[0].meta["val"].ndim
        for place, argument in enumerate(node.target._schema.arguments):
            if argument.name not in ("dim", "dims"):
                continue
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            if given is None or rank == 0:
                continue
            counted = given % rank if isinstance(given, int) else [d % rank for d in given]
            if place < len(node.args):
                node.update_arg(place, counted)
            else:
                node.update_kwarg(argument.name, counted)


def fold_index_lists(graph_module: fx.GraphModule) -> None:
    """Evaluates `tril_indices` and `triu_indices`, and integer operators on nothing but them, into constants."""
    graph = graph_module.graph
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or node.kwargs.get("out") is not None:
            continue
        inputs = node.all_input_nodes
        if node.target not in _INDEX_LISTS and (not inputs or any(i not in known for i in inputs)):
            continue
        with torch.utils._python_dispatch._disable_current_modes():
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            value = node.target(*args, **{k: v for k, v in kwargs.items() if k != "device"})
        if node.target is operator.getitem or isinstance(value, tuple | list):
            known[node] = value
        elif isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
            known[node] = value
    for number, (node, value) in enumerate(known.items()):
        if isinstance(value, torch.Tensor) and any(user not in known for user in node.users):
            name = f"index_list_{number}"
            graph_module.register_buffer(name, value.contiguous())
            with graph.inserting_before(node):
                constant = graph.get_attr(name)
            constant.meta = dict(node.meta)
            node.replace_all_uses_with(constant)
    drop_dead(graph)


def drop_restatements(graph: fx.Graph) -> None:
    """Remove every `as_strided` that says of a whole tensor what it is, but for the strides of dimensions of one element.

    Pooling a channels-last image to one pixel ends in one; as a general `as_strided` it would be a gather by four indices.
    One that takes a whole tensor in the order of its elements, as the gradient of the former does, is a view.
    """
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source, size, stride, *offset = node.args
        value = source.meta["val"] if isinstance(source, fx.Node) else None
        if value is None or node.kwargs or not all(isinstance(n, int) for n in (*size, *stride, *offset)):
            continue
        moving = [dim for dim, extent in enumerate(size) if extent != 1]
        if offset and offset[0] != value.storage_offset():
            continue
        if tuple(size) == tuple(value.shape) and all(stride[dim] == value.stride()[dim] for dim in moving):
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif math.prod(size) == value.numel() and value.is_contiguous() and is_row_major(size, stride):
            node.target, node.args = aten.view.default, (source, list(size))


def lift_attributes(graph_module: fx.GraphModule, taken: dict[str, torch.Tensor]) -> None:
    """Turns tensors that the graph holds as attributes into placeholders before the first user input.

    Args:
        graph_module: changed in place. Attributes that are submodules (of higher-order operators) are an error.
        taken: placeholder name → value; the new ones are added.
    """
    graph = graph_module.graph
    drop_restatements(graph)
    try:
        rewrite_as_strided(graph)
    except ValueError as error:
        node = next(iter(graph.find_nodes(op="call_function", target=aten.as_strided.default)))
        raise FrontendError(str(error), operator=target_name(node), location=origin_of_node(node)) from None
    lifted: dict[str, fx.Node] = {}
    for node in [n for n in graph.nodes if n.op == "get_attr"]:
        target = str(node.target)
        value: Any = graph_module
        for part in target.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            user = next(iter(node.users), node)
            raise FrontendError(
                f"cannot import the higher-order operator '{target_name(user)}'; torch.compile(model, backend='kitsune')"
                " leaves it to PyTorch, between programs",
                operator=target_name(user),
                location=origin_of_node(user),
            )
        if target not in lifted:
            lifted[target] = add_constant(graph, taken, f"c_{target.replace('.', '_')}", value)
            lifted[target].meta["stack_trace"] = node.meta.get("stack_trace")
        node.replace_all_uses_with(lifted[target])
        graph.erase_node(node)


def add_constant(graph: fx.Graph, taken: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> fx.Node:
    """A new placeholder before the first user input, for a weight of that value; `taken` is as for `lift_attributes`."""
    first_input = next((n for n in graph.find_nodes(op="placeholder") if n.name not in taken), None)
    with graph.inserting_before(first_input or next(n for n in graph.nodes if n.op != "placeholder")):
        node = graph.placeholder(name)
    node.meta["val"] = _fake(graph, value)
    taken[node.name] = value
    return node


def call_with_value(target: Any, *args: Any, stack_trace: str = "", **kwargs: Any) -> fx.Node:
    """A node at its graph's insertion point, with what it gives (without data): one of `args` is a node of that graph."""
    nodes = [arg for arg in args if isinstance(arg, fx.Node)]
    values, keywords = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    node = nodes[0].graph.call_function(target, args, kwargs)
    with nodes[0].meta["val"].fake_mode:
        node.meta["val"] = target(*values, **keywords)
    if stack_trace:
        node.meta["stack_trace"] = stack_trace
    return node


def _fake(graph: fx.Graph, value: torch.Tensor) -> torch.Tensor:
    """A tensor without data, of the graph's own fake mode."""
    vals = (leaf for n in graph.nodes for leaf in tree_leaves(n.meta.get("val")))
    modes = (v.fake_mode for v in vals if isinstance(v, FakeTensor))
    return next(modes, FakeTensorMode()).from_tensor(value, static_shapes=True)


def merge_tied(graph: fx.Graph, values: dict[str, torch.Tensor], mutated: set[str]) -> None:
    """Makes placeholders of one and the same memory one placeholder: the first in order.

    Args:
        graph: changed in place.
        values: placeholder name → the weight; those merged away are removed.
        mutated: placeholder names of buffers that the model overwrites; they are left apart.
    """
    first: dict[Any, fx.Node] = {}
    for node in [n for n in graph.nodes if n.op == "placeholder" and n.name in values]:
        weight = values[node.name]
        if node.name in mutated or weight.numel() == 0 or weight.device.type == "meta":
            continue
        key = (weight.device, weight.data_ptr(), weight.dtype, tuple(weight.shape), weight.stride())
        kept = first.setdefault(key, node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
            del values[node.name]
