"""What the outputs of a graph are to its caller: new tensors with certain strides, or views of inputs and of each other.

A program computes values. Whether an output is the input itself, shares its memory, or lies in memory in another order than
row by row is seen by running the graph once on fake tensors, which have everything but values.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.runtime.signature import Signature

__all__ = ["Leaf", "Outputs", "Source", "outputs_of", "same_strides"]


@dataclasses.dataclass(frozen=True)
class Source:
    """A tensor that the program computes.

    Attributes:
        node: name of the node whose value it is.
        size, stride: in elements, as in PyTorch.
        order: the order in which the program is asked for its dimensions; empty is as they are.
    """

    node: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One output.

    Attributes:
        kind: "source" (a tensor that the program computes), "part" (a view of one), "input", "view" (of an input), or "value".
        number: of the source or input.
        size, stride, offset: of a part or view: in elements; the offset is from the first element of what it views.
        value: what is no tensor.
    """

    kind: str
    number: int = 0
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Outputs:
    """All outputs of a graph.

    Attributes:
        leaves: in the graph's order.
        spec: how the graph nests them.
        sources: what the program computes.
        changed: numbers of inputs that the graph changes in place.
    """

    leaves: tuple[Leaf, ...]
    spec: Any
    sources: tuple[Source, ...]
    changed: tuple[int, ...]

    def computed_graph(self, gm: fx.GraphModule) -> fx.GraphModule | None:
        """The graph with the sources as its outputs, in the orders wanted; None if there is nothing to compute.

        `gm` itself where these are its outputs.
        """
        if not self.sources and not self.changed:
            return None
        own = next(iter(gm.graph.find_nodes(op="output")))
        named = [node.name if isinstance(node, fx.Node) else None for node in tree_flatten(own.args[0])[0]]
        if named == [source.node for source in self.sources] and not any(source.order for source in self.sources):
            return gm
        graph = copy.deepcopy(gm.graph)
        output = next(iter(graph.find_nodes(op="output")))
        nodes = {node.name: node for node in graph.nodes}
        with graph.inserting_before(output):
            output.args = (
                tuple(
                    graph.call_method("permute", (nodes[source.node], *source.order)) if source.order else nodes[source.node]
                    for source in self.sources
                ),
            )
        graph.lint()  # dead code stays: fx cannot tell what changes its operands, the tracer that comes next can
        return fx.GraphModule(gm, graph)

    def are_the_program_s(self, signature: Signature) -> bool:
        """Whether a program's results can be handed out as they are."""
        from kitsune_mlir.runtime.results import strides

        if self.changed:  # inputs may alias each other at some call
            return False
        if [(leaf.kind, leaf.number) for leaf in self.leaves] != [("source", n) for n in range(len(self.sources))]:
            return False
        outputs = [output for output in signature.outputs if output.mutates is None]
        for source, output in zip(self.sources, outputs, strict=True):
            if output.kind != "tensor" or source.order:
                return False
            order = signature.result_orders.get(output.index or 0, ())
            if not same_strides(source.size, strides(source.size, order), source.stride):
                return False
        return True


def same_strides(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two tensors of this size have the same strides; in dimensions of one element, and without elements, any do."""
    if 0 in size:
        return True
    return all(n == 1 or a == b for n, a, b in zip(size, one, other, strict=True))


def is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor's elements fill memory without gaps or overlaps."""
    step = 1
    for n, apart in sorted(zip(size, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if n != 1:
            if apart != step:
                return False
            step *= n
    return True


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps every tensor that a node makes."""

    def __init__(self, gm: fx.GraphModule):
        super().__init__(gm, garbage_collect_values=False)
        self.tensors: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.tensors[n.name] = value
        return value


def outputs_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> Outputs:
    """Runs a graph on fake tensors that lie in memory as `inputs` do.

    Raises:
        FrontendError: outputs share memory in a way that is not known, or inputs do that the graph changes; or the graph cannot
            be run without values (its shapes depend on them).
    """
    recorder = _Recorder(gm)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            twins = _twins(inputs)
            before = [_seen(twin) for twin in twins]
            found, spec = tree_flatten(recorder.run(*twins))
    except FrontendError:
        raise
    except Exception as error:  # whatever torch says of the graph
        message = str(error).strip().partition("\n")[0]
        raise FrontendError(f"the graph cannot be run without values: {type(error).__name__}: {message}") from error
    after = [_seen(twin) for twin in twins]
    changed = tuple(n for n in range(len(twins)) if after[n] != before[n])
    for n in changed:
        if after[n][:3] != before[n][:3]:
            raise FrontendError(f"input {n} is given another shape or other memory in place")
    owners: dict[int, list[int]] = {}
    for n, twin in enumerate(twins):
        if isinstance(twin, Tensor):
            owners.setdefault(_memory(twin), []).append(n)
    for n in changed:
        if len(owners[_memory(twins[n])]) > 1:
            raise FrontendError(f"input {n} is changed in place and shares memory with another input")
    leaves: dict[int, Leaf] = {}
    computed: dict[int, list[int]] = {}  # memory -> places of outputs that lie in it
    for place, value in enumerate(found):
        if not isinstance(value, Tensor):
            leaves[place] = Leaf("value", value=value)
        elif value.layout != torch.strided:
            raise FrontendError(f"output {place} has layout {value.layout}; outputs are dense tensors")
        elif (numbers := owners.get(_memory(value))) is not None:
            leaves[place] = _of_input(place, value, numbers, twins)
        else:
            computed.setdefault(_memory(value), []).append(place)
    sources: list[Source] = []
    for places in computed.values():
        source = _source(recorder.tensors, [found[place] for place in places])
        if source is None:
            raise FrontendError(f"outputs {' and '.join(map(str, places))} share memory of which no tensor is all")
        whole = recorder.tensors[source.node]
        for place in places:
            is_all = found[place] is whole
            leaves[place] = Leaf("source", len(sources)) if is_all else _view("part", len(sources), found[place], whole)
        sources.append(source)
    return Outputs(tuple(leaves[place] for place in range(len(found))), spec, tuple(sources), changed)


def _view(kind: str, number: int, value: Tensor, whole: Tensor) -> Leaf:
    """An output that is a view of source or input `number`."""
    offset = int(value.storage_offset()) - int(whole.storage_offset())
    return Leaf(kind, number, tuple(value.shape), tuple(value.stride()), offset)


def _of_input(place: int, value: Tensor, owners: Sequence[int], twins: Sequence[Any]) -> Leaf:
    """An output that lies in the memory of inputs."""
    same = [n for n in owners if twins[n] is value]
    if same:
        return Leaf("input", same[0])
    if len(owners) > 1:
        raise FrontendError(f"output {place} is a view of inputs {' and '.join(map(str, owners))}, which share memory")
    if not _alike(value, twins[owners[0]]):
        raise FrontendError(f"output {place} is a view of input {owners[0]} as another type of number")
    return _view("view", owners[0], value, twins[owners[0]])


def _alike(value: Tensor, other: Tensor) -> bool:
    return (value.dtype, value.is_conj(), value.is_neg()) == (other.dtype, other.is_conj(), other.is_neg())


def _source(tensors: Mapping[str, Tensor], outputs: Sequence[Tensor]) -> Source | None:
    """The tensor that outputs in one memory are views of: one of them, or one that the graph makes on its way to them."""
    if all(value is outputs[0] for value in outputs) and not _overlaps(outputs[0]):
        node = next(name for name, tensor in tensors.items() if tensor is outputs[0])
        size, stride = tuple(outputs[0].shape), tuple(outputs[0].stride())
        order = tuple(sorted(range(len(size)), key=lambda dim: -stride[dim]))
        # Images are returned with channels innermost where the program has them so; what it has not is copied.
        images = outputs[0].is_contiguous(memory_format=torch.channels_last) if len(size) == 4 else False
        moved = is_dense(size, stride) and not outputs[0].is_contiguous() and not images
        return Source(node, size, stride, order if moved else ())
    low, high = min(_span(value)[0] for value in outputs), max(_span(value)[1] for value in outputs)
    memory = _memory(outputs[0])
    for own in (True, False):
        for name, tensor in tensors.items():
            if _memory(tensor) != memory or own != any(tensor is value for value in outputs) or not tensor.is_contiguous():
                continue
            first, last = _span(tensor)
            if first <= low and high <= last and all(_alike(value, tensor) for value in outputs):
                return Source(name, tuple(tensor.shape), tuple(tensor.stride()))
    return None


def _overlaps(value: Tensor) -> bool:
    """Whether elements share memory otherwise than by a stride of 0, as the windows of `unfold` do."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(value.shape, value.stride(), strict=True) if stride and size > 1
    ):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _span(value: Tensor) -> tuple[int, int]:
    """The first and the last element of its memory."""
    first = int(value.storage_offset())
    return first, first + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _seen(value: Any) -> tuple[Any, ...]:
    """Shape, strides, memory and version: what tells whether a tensor was changed."""
    if not isinstance(value, Tensor):
        return ()
    version = None if value.is_inference() else value._version
    return tuple(value.shape), tuple(value.stride()), _memory(value), version


def _twins(inputs: Sequence[Any]) -> list[Any]:
    """Tensors of the active fake mode that lie in memory as the inputs do, those that share memory together."""
    groups: dict[int, list[int]] = {}
    for n, value in enumerate(inputs):
        if isinstance(value, Tensor):
            groups.setdefault(_memory(value), []).append(n)
    twins = list(inputs)
    with torch.inference_mode(False):
        for numbers in groups.values():
            first = inputs[numbers[0]]
            if any(inputs[n].dtype != first.dtype for n in numbers):
                raise FrontendError(f"inputs {' and '.join(map(str, numbers))} share memory as numbers of different types")
            extent = max(_span(inputs[n])[1] for n in numbers) + 1
            whole = torch.empty(max(0, extent), dtype=first.dtype, device=first.device)
            for n in numbers:
                given = inputs[n]
                twin = whole.as_strided(given.shape, given.stride(), given.storage_offset())
                twins[n] = torch.conj(twin) if given.is_conj() else twin
    return twins
