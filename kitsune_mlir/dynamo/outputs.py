"""What the outputs of a graph are to its caller: new tensors with certain strides, or views of inputs and of each other.

A program computes values. Whether an output is the input itself, shares its memory, or lies in memory in another order than
row by row is seen by running the graph once on fake tensors, which have everything but values.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.runtime.signature import Signature

__all__ = ["Leaf", "Outputs", "outputs_of"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One output.

    Attributes:
        kind: "computed" (result `number` of the program), "input" (input `number` itself), "view" of input `number`, "part" (a
            view of the computed output `number`), or "other" (result `number`, which is no tensor).
        number: see `kind`.
        size, stride: of a tensor, in elements.
        offset: of a view: elements from the first one of what it views.
        order: of what is computed: the order in which the program is asked for its dimensions; empty is as they are.
    """

    kind: str
    number: int
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    order: tuple[int, ...] = ()

    @property
    def is_dense(self) -> bool:
        """Whether its elements fill memory without gaps or overlaps."""
        step = 1
        for size, stride in sorted(zip(self.size, self.stride, strict=True), key=lambda pair: (pair[1], pair[0])):
            if size != 1:
                if stride != step:
                    return False
                step *= size
        return True


@dataclasses.dataclass(frozen=True)
class Outputs:
    """All outputs of a graph.

    Attributes:
        leaves: in the graph's order.
        spec: how the graph nests them.
        changed: numbers of inputs that the graph changes in place.
    """

    leaves: tuple[Leaf, ...]
    spec: Any
    changed: tuple[int, ...]

    def computed_graph(self, gm: fx.GraphModule) -> fx.GraphModule | None:
        """The graph with those outputs only that a program computes, in the orders wanted; None if there is nothing to compute.

        `gm` stays as it is where all outputs are wanted as they are.
        """
        wanted = {leaf.number: (place, leaf) for place, leaf in enumerate(self.leaves) if leaf.kind in ("computed", "other")}
        if not any(leaf.kind == "computed" for leaf in self.leaves) and not self.changed:
            return None
        if len(wanted) == len(self.leaves) and not any(leaf.order for leaf in self.leaves):
            return gm
        graph = copy.deepcopy(gm.graph)
        output = next(iter(graph.find_nodes(op="output")))
        given, _ = tree_flatten(output.args[0])
        kept = []
        with graph.inserting_before(output):
            for _, (place, leaf) in sorted(wanted.items()):
                node = given[place]
                kept.append(graph.call_method("permute", (node, *leaf.order)) if leaf.order else node)
        output.args = (tuple(kept),)
        graph.lint()  # dead code stays: fx cannot tell what changes its operands, the tracer that comes next can
        return fx.GraphModule(gm, graph)

    def are_the_program_s(self, signature: Signature) -> bool:
        """Whether a program's results can be handed out as they are."""
        from kitsune_mlir.runtime.direct import strides

        if self.changed:  # inputs may alias each other at some call
            return False
        outputs = [output for output in signature.outputs if output.mutates is None]
        for leaf in self.leaves:
            if leaf.kind not in ("computed", "other") or leaf.order:
                return False
            if leaf.kind == "computed":
                output = outputs[leaf.number]
                if output.kind != "tensor":
                    return False
                order = signature.result_orders.get(output.index or 0, ())
                if not same_strides(leaf.size, strides(leaf.size, order), leaf.stride):
                    return False
        return True


def same_strides(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two tensors of this size have the same strides; in dimensions of one element, and without elements, any do."""
    if 0 in size:
        return True
    return all(n == 1 or a == b for n, a, b in zip(size, one, other, strict=True))


def outputs_of(gm: fx.GraphModule, inputs: Sequence[Any]) -> Outputs:
    """Runs a graph on fake tensors that lie in memory as `inputs` do.

    Raises:
        FrontendError: outputs share memory in a way that is not known, or inputs do that the graph changes; or the graph cannot
            be run without values (its shapes depend on them).
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            twins = _twins(inputs)
            before = [_seen(twin) for twin in twins]
            found = gm.forward(*twins)
    except FrontendError:
        raise
    except Exception as error:  # whatever torch says of the graph
        message = str(error).strip().partition("\n")[0]
        raise FrontendError(f"the graph cannot be run without values: {type(error).__name__}: {message}") from error
    changed = tuple(n for n, (twin, seen) in enumerate(zip(twins, before, strict=True)) if _seen(twin) != seen)
    for n in changed:
        if _seen(twins[n])[:3] != before[n][:3]:
            raise FrontendError(f"input {n} is given another shape or other memory in place")
    holders: dict[int, list[int]] = {}
    for n, twin in enumerate(twins):
        if isinstance(twin, Tensor):
            holders.setdefault(_memory(twin), []).append(n)
    shared = [n for n in changed if len(holders[_memory(twins[n])]) > 1]
    if shared:
        raise FrontendError(f"input {shared[0]} is changed in place and shares memory with another input")
    leaves, spec = tree_flatten(found)
    return Outputs(tuple(_leaves(leaves, twins, holders)), spec, changed)


def _leaves(found: Sequence[Any], twins: Sequence[Any], holders: dict[int, list[int]]) -> list[Leaf]:
    made: list[Leaf | None] = []
    computed: dict[int, list[int]] = {}  # memory -> places of outputs that lie in it
    for place, value in enumerate(found):
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            made.append(None if isinstance(value, Tensor) else Leaf("other", -1))
            if made[-1] is None:
                raise FrontendError(f"output {place} has layout {value.layout}; outputs are dense tensors")
            continue
        owners = holders.get(_memory(value))
        if owners is None:
            computed.setdefault(_memory(value), []).append(place)
            made.append(None)
            continue
        same = [n for n in owners if twins[n] is value]
        made.append(_of_input(place, value, same[0], "input", twins) if same else _view(place, value, owners, twins))
    for places in computed.values():
        for place, leaf in zip(places, _apart([found[place] for place in places], places), strict=True):
            made[place] = leaf
    # Numbers of the program's results, in the order of outputs.
    own = [place for place, leaf in enumerate(made) if leaf is not None and leaf.kind in ("computed", "other")]
    number = {place: n for n, place in enumerate(own)}
    return [
        dataclasses.replace(leaf, number=number[leaf.number if leaf.kind == "part" else place])
        if leaf.kind in ("computed", "other", "part")
        else leaf
        for place, leaf in enumerate(leaf for leaf in made if leaf is not None)
    ]


def _view(place: int, value: Tensor, owners: Sequence[int], twins: Sequence[Any]) -> Leaf:
    if len(owners) > 1:
        raise FrontendError(f"output {place} is a view of inputs {' and '.join(map(str, owners))}, which share memory")
    return _of_input(place, value, owners[0], "view", twins)


def _of_input(place: int, value: Tensor, number: int, kind: str, twins: Sequence[Any]) -> Leaf:
    twin = twins[number]
    if value.dtype != twin.dtype or value.is_conj() != twin.is_conj() or value.is_neg() != twin.is_neg():
        raise FrontendError(f"output {place} is a view of input {number} as another type of number")
    offset = int(value.storage_offset()) - int(twin.storage_offset())
    return Leaf(kind, number, tuple(value.shape), tuple(value.stride()), offset)


def _apart(values: Sequence[Tensor], places: Sequence[int]) -> list[Leaf]:
    """Outputs that share memory which is no input's: one of them is computed, the others are parts of it."""
    plain = [Leaf("computed", place, tuple(v.shape), tuple(v.stride())) for v, place in zip(values, places, strict=True)]
    if len(values) == 1:
        leaf = plain[0]
        order = tuple(sorted(range(len(leaf.size)), key=lambda dim: -leaf.stride[dim]))
        # Images are returned with channels innermost where the program has them so; what it has not is copied.
        moved = leaf.is_dense and not _is_row_major(leaf) and not values[0].is_contiguous(memory_format=torch.channels_last)
        return [dataclasses.replace(leaf, order=order) if moved else leaf]
    for base, leaf in zip(values, plain, strict=True):
        first, last = _span(base)
        if _is_row_major(leaf) and all(
            v.dtype == base.dtype and v.is_conj() == base.is_conj() and first <= _span(v)[0] and _span(v)[1] <= last
            for v in values
        ):
            mine = leaf.number
            return [
                one if one is leaf else dataclasses.replace(one, kind="part", number=mine, offset=_span(v)[0] - first)
                for one, v in zip(plain, values, strict=True)
            ]
    raise FrontendError(f"outputs {' and '.join(map(str, places))} share memory of which none of them is all")


def _span(value: Tensor) -> tuple[int, int]:
    """The first and the last element of its memory."""
    first = int(value.storage_offset())
    return first, first + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


def _is_row_major(leaf: Leaf) -> bool:
    step, kept = 1, []
    for size in reversed(leaf.size):
        kept.insert(0, step)
        step *= max(1, size)
    return same_strides(leaf.size, leaf.stride, kept)


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
