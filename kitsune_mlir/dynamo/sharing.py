"""Inputs that share memory in one call and not in another, where the graph writes to one of them.

AOTAutograd compiles for what shares memory in the first call, and no guard of Dynamo's asks in later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from kitsune_mlir.sized.taker import taker

__all__ = ["SharingGuard"]

MOST_PLACES = 256
"""Places of all inputs of a call for which it is held that they do not share memory."""

_POINTER = Tensor.data_ptr

Sharing = tuple[tuple[int, int, int], ...]


class SharingGuard:
    """Calls a compiled graph where its inputs share memory as they did when it was compiled, else the graph in PyTorch.

    Args:
        compiled: what AOTAutograd gives.
        graph: the graph that Dynamo captured.
        asked: numbers of the inputs that are looked at.
        seen: how they shared memory when it was compiled, as `shared` says it.
        returned: by number, outputs that are inputs themselves: AOTAutograd gives new views where inputs share memory.
        fixed: whether sizes and strides of the inputs are the same in all calls.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        graph: Callable[..., Any],
        asked: Sequence[int],
        seen: Sharing,
        returned: Mapping[int, int],
        fixed: bool = False,
    ):
        self.compiled, self.graph, self.asked, self.seen, self.returned = compiled, graph, asked, seen, returned
        self._take = taker(asked) if fixed and asked and not seen else None
        self._apart: set[tuple[int, ...]] = set()

    @staticmethod
    def of(compiled: Callable[..., Any], gm: fx.GraphModule, inputs: Sequence[Any]) -> SharingGuard:
        """For the inputs that it was compiled with. Parameters among them are taken to share no memory with other inputs."""
        asked = [
            n
            for n, value in enumerate(inputs)
            if isinstance(value, Tensor) and value.layout == torch.strided and not isinstance(value, torch.nn.Parameter)
        ]
        seen = shared(asked, inputs)
        return SharingGuard(compiled, gm.forward, asked, seen, _returned(gm) if seen else {}, _is_fixed(gm))

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        take = self._take
        if take is None:
            if shared(self.asked, args) != self.seen:
                return self.graph(*args)
        else:  # where tensors of the same sizes had no memory in common, they have none
            places = tuple(map(_POINTER, take(args)))
            if places not in self._apart:
                if shared(self.asked, args):
                    return self.graph(*args)
                if len(self._apart) >= MOST_PLACES:
                    self._apart.clear()
                self._apart.add(places)
        results = self.compiled(*args)
        if self.returned:
            results = [args[self.returned[n]] if n in self.returned else value for n, value in enumerate(results)]
        return results


def _is_fixed(gm: fx.GraphModule) -> bool:
    """Whether no input of a graph, of Dynamo's or traced otherwise, has a size or stride that changes."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, Tensor):
            if value.layout != torch.strided or is_traceable_wrapper_subclass(value):
                return False
            value = (*value.shape, *value.stride())
        if not all(isinstance(n, int | float) for n in (value if isinstance(value, tuple) else (value,))):
            return False
    return True


def _returned(gm: fx.GraphModule) -> dict[int, int]:
    """Outputs of Dynamo's graph that are inputs, by number: an operator that writes in place gives the tensor itself."""
    inputs = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    output = next(iter(gm.graph.find_nodes(op="output")))
    outputs = [getattr(node, "meta", {}).get("example_value") for node in output.args[0]]  # type: ignore[union-attr]
    return {n: m for n, one in enumerate(outputs) for m, other in enumerate(inputs) if one is other and isinstance(one, Tensor)}


def shared(asked: Sequence[int], args: Sequence[Any]) -> Sharing:
    """Of each asked input that lies in another's memory: its number, the other's, and how far it begins behind that."""
    first: dict[int, int] = {}
    found = []
    for n in asked:
        tensor = args[n]
        other = first.setdefault(tensor.untyped_storage()._cdata, n)
        if other != n:
            found.append((n, other, tensor.storage_offset() - args[other].storage_offset()))
    return tuple(found)
