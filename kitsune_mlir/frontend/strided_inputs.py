"""Inputs that are not contiguous are read where they lie: a program takes the dense tensor that they are a part of.

Example arguments say how inputs lie. `x[:, 2:65]` of rows of 66 numbers becomes an argument of rows of 66 numbers, and a slice
of it in the graph; a transposed tensor one of the order in memory, and a permutation. Engines read slices and permutations
where they lie, so that nothing is copied.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.aten import TracedProgram
from kitsune_mlir.frontend.prepare import call_with_value
from kitsune_mlir.runtime.results import ALIGNMENT, strides
from kitsune_mlir.runtime.strided import Strided

__all__ = ["read_where_they_lie", "within_dense"]

aten = torch.ops.aten


def read_where_they_lie(program: TracedProgram) -> Mapping[str, tuple[tuple[int, ...], Strided]]:
    """Lets a program take inputs that are not contiguous as they lie; in place.

    Inputs that are written to or returned as they are, images whose channels are innermost, and factors of products whose rows
    bulk copies can read only once they are contiguous, stay.

    Returns:
        By the name of the placeholder, the sizes of the input, and how it lies in what the placeholder is now.
    """
    graph, found = program.graph, {}
    given = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    }
    given -= {spec.target for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_INPUT_MUTATION}
    nodes = [node for node in graph.find_nodes(op="placeholder") if node.name in given]
    for node in nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not node.users or _stays(node):
            continue
        lies = within_dense(value.shape, value.stride(), value.storage_offset(), value.element_size())
        if lies is None or (value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)):
            continue
        if _is_copied_for_tiles(value) and _PRODUCTS.intersection(_readers(node)):
            continue
        users = list(node.users)
        after = next(other for other in graph.nodes if other.op != "placeholder")
        with value.fake_mode:
            node.meta["val"] = value.new_empty(lies.whole)
        node.meta.pop("tensor_meta", None)  # torch-mlir would look there first
        with graph.inserting_before(after):
            seen = _seen(node, tuple(value.shape), lies)
        for user in users:
            user.replace_input_with(node, seen)
        found[node.name] = tuple(value.shape), lies
    return found


def within_dense(size: Sequence[Any], stride: Sequence[Any], offset: Any, element: int) -> Strided | None:
    """A dense tensor that a tensor is a part of, which begins at a multiple of 16 bytes if the tensor's storage does.

    Args:
        size, stride, offset: of the tensor; `element`: bytes of an element.

    Returns:
        None where the tensor is contiguous, where strides are no multiples of each other, where elements share memory (others
        may not), where no such place is within the tensor's storage, and where a size is not known.
    """
    if any(isinstance(n, torch.SymInt) for n in (*size, *stride, offset)) or 0 in size:
        return None
    dims = _dims(size, stride)
    steps = [stride[dim] for dim in dims]
    within = [*steps[1:], 1]
    if steps == [math.prod(size[dim + 1 :]) for dim in dims] or 0 in steps:
        return None
    if any(step % inner for step, inner in zip(steps, within, strict=True)):
        return None
    extents = [step // inner for step, inner in zip(steps, within, strict=True)]  # of what is next further in
    each = max(1, ALIGNMENT // element)
    for first in range(offset % each, min(offset, MOST_ROWS_BEFORE * steps[0]) + 1, each):
        starts = _starts(first, steps)
        ends = [start + size[dim] for start, dim in zip(starts, dims, strict=False)]
        if all(end <= extent for end, extent in zip(ends[1:], extents, strict=False)):
            return Strided(tuple(stride), (ends[0], *(extents if steps[-1] > 1 else extents[:-1])), first)
    return None


MOST_ROWS_BEFORE = 16
"""Of rows that lie before an input's first one, most that are taken with it so that the first of them is aligned."""


def _dims(size: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Dimensions of more than one element, in memory outermost first."""
    return sorted((dim for dim, n in enumerate(size) if n > 1), key=lambda dim: -stride[dim])


def _starts(first: int, steps: Sequence[int]) -> list[int]:
    """Where element number `first` of a dense tensor is along each of its dimensions; `steps`: elements from one to the next
    along all of them but the last one, if that is not 1."""
    starts = []
    for step in steps:
        starts.append(first // step)
        first %= step
    return [*starts, first]


def _seen(node: fx.Node, size: Sequence[int], lies: Strided) -> fx.Node:
    """The input as a part of the dense tensor that a placeholder is."""
    dims = _dims(size, lies.stride)
    starts = _starts(lies.first, [lies.stride[dim] for dim in dims])
    seen = node
    for number, (dim, start, extent) in enumerate(zip(dims, starts, lies.whole, strict=False)):
        if size[dim] < extent:
            seen = call_with_value(aten.slice.Tensor, seen, number, start, start + size[dim])
    if len(lies.whole) > len(dims):
        seen = call_with_value(aten.select.int, seen, len(dims), starts[-1])
    if dims != sorted(dims):
        seen = call_with_value(aten.permute.default, seen, [dims.index(dim) for dim in sorted(dims)])
    for dim in [dim for dim in range(len(size)) if dim not in dims]:
        seen = call_with_value(aten.unsqueeze.default, seen, dim)
    return seen


def _stays(node: fx.Node) -> bool:
    """Whether an input is returned as it is, or it, or a view of it, is written to."""
    looks = {node}
    for other in node.graph.nodes:
        if other.op == "output" and node in other.all_input_nodes:
            return True
        mine = looks.intersection(other.all_input_nodes)
        schema = getattr(other.target, "_schema", None)
        if not mine or other.op != "call_function":
            continue
        if schema is None:
            if other.target is not operator.getitem:
                return True  # nobody knows what it does
            looks.add(other)
            continue
        for argument, value in zip(schema.arguments, other.args, strict=False):
            if argument.alias_info is not None and mine.intersection(_nodes_of(value)):
                if argument.alias_info.is_write:
                    return True
                looks.add(other)
    return False


_PRODUCTS = frozenset(
    "mm bmm addmm baddbmm addbmm matmul linear dot mv addmv einsum tensordot convolution conv1d conv2d conv3d "
    "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu".split()
)


def _is_copied_for_tiles(value: torch.Tensor) -> bool:
    """Whether rows that are copied to one place can be read by bulk copies, and as they lie they cannot."""

    def fit(stride: Sequence[int]) -> bool:
        steps = sorted(step for n, step in zip(value.shape, stride, strict=True) if n > 1)
        return steps[0] == 1 and not any(step * value.element_size() % ALIGNMENT for step in steps[1:])

    return fit(strides(value.shape)) and not fit(value.stride())


def _readers(node: fx.Node) -> set[str]:
    """Names of the operators that read a value, or views of it."""
    found: set[str] = set()
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        found.add(getattr(getattr(user.target, "overloadpacket", None), "__name__", ""))
        first = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        is_view = first is not None and bool(user.args) and user.args[0] is node
        if is_view or user.target is aten.cat.default:  # which products may read without its having memory
            found |= _readers(user)
    return found


def _nodes_of(value: Any) -> list[fx.Node]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, fx.Node)]
