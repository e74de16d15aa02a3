"""Decomposition call by call: each kind of call once, however many places it stands in.

torch retraces a whole program to decompose it, which takes most of an import, and a model of 48 equal layers has the same few
calls 48 times. Here each different call (operator, arguments, shapes, types and strides) is traced once, all of them in one
small program, and what it decomposes to is put into every place.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, Protocol

import torch
from torch import fx
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.torch_decompositions import traced

__all__ = ["decompose_calls", "decompose_kernels"]


def decompose_calls(program: Program, table: Mapping[Any, Callable[..., Any]], only: Set[Any] | None = None) -> bool:
    """Decomposes the calls of a program, in place.

    Args:
        only: operators whose calls are decomposed, and no others.

    Returns:
        Whether it was done: not where a call has other effects than its results, is none of an operator, takes or gives other
        things than tensors, or cannot be decomposed.
    """
    found: list[tuple[fx.Node, _Call]] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or (only is not None and node.target not in only):
            continue
        if (call := _call_of(node, table)) is None:
            return False
        if node.target in table or node.target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            found.append((node, call))
    try:
        _replace(found, table)
    except Exception:  # the whole program's decomposition says the same, and in which line
        return False
    drop_dead(program.graph)
    return True


def decompose_kernels(program: Program, table: Mapping[Any, Callable[..., Any]]) -> None:
    """Decomposes in place what torch leaves in spite of a table: composite operators that have kernels of their own too."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and n.target in table]
    nodes = [n for n in nodes if _is_composite_with_kernel(n.target)]
    _replace([(node, call) for node in nodes if (call := _call_of(node, table)) is not None], table)


def _replace(found: Sequence[tuple[fx.Node, _Call]], table: Mapping[Any, Callable[..., Any]]) -> None:
    """Decompose calls, each kind once."""
    if not found:
        return
    values = (leaf for node in found[0][0].graph.nodes for leaf in tree_leaves(node.meta.get("val")))
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    kinds: dict[Hashable, _Call] = {}
    places = [(node, kinds.setdefault(call.key, call)) for node, call in found]
    _trace([*kinds.values()], table, mode or FakeTensorMode())
    for node, call in places:
        _put(node, call)


def _is_composite_with_kernel(op: Any) -> bool:
    kinds = ("CompositeImplicitAutograd", "CPU")
    return all(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), kind) for kind in kinds)


class Program(Protocol):
    """What has a graph, as a `torch.export.ExportedProgram` has."""

    @property
    def graph(self) -> fx.Graph: ...


@dataclasses.dataclass
class _Call:
    """A call of an operator.

    Attributes:
        key: the same for calls that decompose to the same.
        how: what is called; the operator itself if that makes nothing.
        leaves, spec: of its arguments; tensors are numbers of `tensors`, in `_Tensor`.
        tensors: its operands, without data, each once.
        steps: what it decomposes to, of another graph.
        inputs, results: nodes of that graph; a result may be no node.
    """

    key: Hashable
    target: Any
    how: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    tensors: Sequence[torch.Tensor]
    steps: Sequence[fx.Node] = ()
    inputs: Sequence[fx.Node] = ()
    results: Sequence[Any] = ()

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the operator."""
        leaves = [tensors[leaf.number] if isinstance(leaf, _Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        made = self.how(*args, **kwargs)
        return self.target(*args, **kwargs) if made is NotImplemented else made


@dataclasses.dataclass(frozen=True)
class _Tensor:
    number: int


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes among a call's arguments, each once."""
    return list(dict.fromkeys(leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node)))


def _is_taken_apart(node: fx.Node) -> bool:
    """Whether a call's result is a tensor, or a list, of lists too, of which others read single tensors."""
    if not isinstance(node.meta.get("val"), list | tuple):
        return True
    return all(user.target is operator.getitem and _is_taken_apart(user) for user in node.users)


def _call_of(node: fx.Node, table: Mapping[Any, Callable[..., Any]]) -> _Call | None:
    """None where a call is none that can be decomposed by itself."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    operands = _operands(node)
    values = [value for operand in operands if isinstance(value := operand.meta.get("val"), FakeTensor)]
    if len(values) < len(operands):
        return None
    if not _is_taken_apart(node):
        return None
    leaves, spec = tree_flatten((node.args, node.kwargs))
    leaves = [_Tensor(operands.index(leaf)) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    shapes = tuple((value.dtype, tuple(value.shape), value.stride(), value.device) for value in values)
    key = (target, shapes, str(spec), tuple((type(leaf), repr(leaf)) for leaf in leaves))
    how = table[target] if target in table and _is_composite_with_kernel(target) else target
    return _Call(key, target, how, leaves, spec, values)


def _trace(calls: Sequence[_Call], table: Mapping[Any, Callable[..., Any]], mode: FakeTensorMode) -> None:
    """Fill in what calls decompose to.

    Raises:
        ValueError: that has tensors of its own.
    """
    given = [_like(tensor, mode) for call in calls for tensor in call.tensors]

    def run(*tensors: torch.Tensor) -> list[Any]:
        rest = iter(tensors)
        return [call.run([*itertools.islice(rest, len(call.tensors))]) for call in calls]

    graph = traced(run, given, table, mode).graph
    number = {node: place for place, node in enumerate(graph.nodes)}
    inputs = list(graph.find_nodes(op="placeholder"))
    results: Any = next(iter(graph.find_nodes(op="output"))).args[0]
    for call, found in zip(calls, results, strict=True):
        call.inputs, inputs = inputs[: len(call.tensors)], inputs[len(call.tensors) :]
        call.results = list(found) if isinstance(found, list | tuple) else [found]
        needed: set[fx.Node] = set()
        waiting = [node for node in tree_leaves(call.results) if isinstance(node, fx.Node)]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += node.all_input_nodes
        call.steps = sorted((node for node in needed if node.op != "placeholder"), key=number.__getitem__)
        if any(step.op == "get_attr" for step in call.steps):
            raise ValueError(f"what '{call.target}' decomposes to has tensors of its own")


def _like(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _put(node: fx.Node, call: _Call) -> None:
    """Put what a call decomposes to in a call's place."""
    graph, place = node.graph, dict(zip(call.inputs, _operands(node), strict=True))
    with graph.inserting_before(node):
        for step in call.steps:
            place[step] = graph.node_copy(step, place.__getitem__)
            place[step].meta["stack_trace"] = node.meta.get("stack_trace")
    results = tree_map(lambda result: place[result] if isinstance(result, fx.Node) else result, list(call.results))
    if isinstance(node.meta.get("val"), list | tuple):
        _give(node, results)
    else:
        if results:
            node.replace_all_uses_with(results[0])
        graph.erase_node(node)


def _give(node: fx.Node, results: Sequence[Any]) -> None:
    """Put what a list has in the place of those that read its elements, and of the list."""
    for user in list(node.users):
        index: Any = user.args[1]
        if isinstance(results[index], list | tuple):
            _give(user, results[index])
        else:
            user.replace_all_uses_with(results[index])
            node.graph.erase_node(user)
    node.graph.erase_node(node)
