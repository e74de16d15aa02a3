"""Decomposition call by call: each kind of call once, however many places it stands in.

torch retraces a whole program to decompose it, which takes most of an import, and a model of 48 equal layers has the same few
calls 48 times. Here each different call (operator, arguments, shapes, types and strides) is traced once, all of them in one
small program, and what it decomposes to is put into every place.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any, Protocol

import torch
from torch import fx
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.torch_decompositions import run_decompositions

__all__ = ["decompose_calls", "decompose_kernels"]


SHARE = 0.5
"""Of a program's calls that different ones may be: each is traced twice."""


def decompose_calls(
    program: Program, table: Mapping[Any, Callable[..., Any]], share: float = SHARE, only: Set[Any] | None = None
) -> bool:
    """Decomposes the calls of a program, in place.

    Args:
        share: of the program's calls that different ones may be.
        only: operators whose calls are decomposed, and no others.

    Returns:
        Whether it was done: not where most calls differ, or where a call has other effects than its results, is none of an
        operator, or takes or gives other things than tensors.
    """
    calls: dict[Hashable, _Call] = {}
    places: list[tuple[fx.Node, _Call]] = []
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or (only is not None and node.target not in only):
            continue
        if (call := _call_of(node)) is None:
            return False
        if node.target in table or node.target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
            places.append((node, calls.setdefault(call.key, call)))
    if len(calls) > share * len(places):
        return False
    try:
        _trace([*calls.values()], table)
    except Exception:  # the whole program's decomposition says the same, and in which line
        return False
    for node, call in places:
        _put(node, call)
    drop_dead(program.graph)
    return True


def decompose_kernels(program: Program, table: Mapping[Any, Callable[..., Any]]) -> None:
    """Decomposes in place what torch leaves in spite of a table: composite operators that have kernels of their own too."""
    for node in [n for n in program.graph.nodes if n.op == "call_function" and n.target in table]:
        if _is_composite_with_kernel(node.target) and (call := _call_of(node)) is not None:
            call.target = table[node.target]
            _trace([call], table)
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
        leaves, spec: of its arguments; tensors are numbers of `tensors`, in `_Tensor`.
        tensors: its operands, without data, each once.
        steps: what it decomposes to, of another graph.
        inputs, results: nodes of that graph; a result may be no node.
    """

    key: Hashable
    target: Any
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
        return self.target(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Tensor:
    number: int


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes among a call's arguments, each once."""
    return list(dict.fromkeys(leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node)))


def _call_of(node: fx.Node) -> _Call | None:
    """None where a call is none that can be decomposed by itself."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    operands = _operands(node)
    values = [value for operand in operands if isinstance(value := operand.meta.get("val"), FakeTensor)]
    if len(values) < len(operands):
        return None
    if isinstance(node.meta.get("val"), list | tuple) and any(user.target is not operator.getitem for user in node.users):
        return None
    leaves, spec = tree_flatten((node.args, node.kwargs))
    leaves = [_Tensor(operands.index(leaf)) if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
    shapes = tuple((value.dtype, tuple(value.shape), value.stride(), value.device) for value in values)
    key = (target, shapes, str(spec), tuple((type(leaf), repr(leaf)) for leaf in leaves))
    return _Call(key, target, leaves, spec, values)


class _Calls(torch.nn.Module):
    def __init__(self, calls: Sequence[_Call]):
        super().__init__()
        self.calls = calls

    def forward(self, tensors: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
        return [call.run(given) for call, given in zip(self.calls, tensors, strict=True)]


def _trace(calls: Sequence[_Call], table: Mapping[Any, Callable[..., Any]]) -> None:
    """Fill in what calls decompose to."""
    if not calls:
        return
    mode = next(tensor.fake_mode for call in calls for tensor in call.tensors if isinstance(tensor, FakeTensor))
    given = [[_like(tensor, mode) for tensor in call.tensors] for call in calls]
    with torch.no_grad():
        traced = torch.export.export(_Calls(calls), (given,), strict=False)
        traced.example_inputs = None  # else code is made that checks each input, in time that grows with their square
        program = run_decompositions(traced, table)
    number = {node: place for place, node in enumerate(program.graph.nodes)}
    inputs = list(program.graph.find_nodes(op="placeholder"))
    outputs = list(next(iter(program.graph.find_nodes(op="output"))).args[0])
    assert program.call_spec.out_spec is not None
    results = tree_unflatten(outputs, program.call_spec.out_spec)
    for call, found in zip(calls, results, strict=True):
        call.inputs, inputs = inputs[: len(call.tensors)], inputs[len(call.tensors) :]
        call.results = list(found) if isinstance(found, list | tuple) else [found]
        needed: set[fx.Node] = set()
        waiting = [node for node in call.results if isinstance(node, fx.Node)]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += node.all_input_nodes
        call.steps = sorted((node for node in needed if node.op != "placeholder"), key=number.__getitem__)


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
    results = [place[result] if isinstance(result, fx.Node) else result for result in call.results]
    if isinstance(node.meta.get("val"), list | tuple):
        for user in list(node.users):
            index: Any = user.args[1]
            user.replace_all_uses_with(results[index])
            graph.erase_node(user)
    elif results:
        node.replace_all_uses_with(results[0])
    graph.erase_node(node)
