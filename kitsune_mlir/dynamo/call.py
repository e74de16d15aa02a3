"""A call of a program whose outputs are not all new tensors as the program makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten

from kitsune_mlir.dynamo.outputs import Leaf, Outputs, Source, same_strides
from kitsune_mlir.runtime.program import Program

__all__ = ["Call"]


class Call:
    """Runs a program and hands out what the graph's outputs are: inputs, views of them, tensors with the graph's strides.

    Args:
        program: computes what `outputs.computed_graph` returns.
        otherwise: the graph in PyTorch, for calls in which inputs that it changes share memory with others.
    """

    def __init__(self, program: Program, outputs: Outputs, otherwise: Callable[..., Any]):
        self.program, self.outputs, self.otherwise = program, outputs, otherwise
        own = [output for output in program.signature.outputs if output.mutates is None]
        # What the graph returns as a new tensor must not be the input that it equals.
        self._handed = [output.kind == "alias" for output in own]

    def __call__(self, *args: Any) -> Any:
        """As the graph: flat inputs, nested outputs."""
        outputs = self.outputs
        if outputs.changed and self._share(args):
            return self.otherwise(*args)
        results = tree_leaves(self.program(*args))
        sources = [
            _as_wanted(value.clone() if handed else value, source)
            for value, handed, source in zip(results, self._handed, outputs.sources, strict=True)
        ]
        return tree_unflatten([_leaf(leaf, args, sources) for leaf in outputs.leaves], outputs.spec)

    def _share(self, args: tuple[Any, ...]) -> bool:
        """Whether an input that is changed lies in the memory of another one."""
        places = [t.untyped_storage().data_ptr() if isinstance(t, Tensor) else None for t in args]
        return any(places[n] and places.count(places[n]) > 1 for n in self.outputs.changed)


def _leaf(leaf: Leaf, args: Sequence[Any], sources: Sequence[Tensor]) -> Any:
    if leaf.kind == "value":
        return leaf.value
    whole = (args if leaf.kind in ("input", "view") else sources)[leaf.number]
    if leaf.kind in ("input", "source"):
        return whole
    return whole.as_strided(leaf.size, leaf.stride, whole.storage_offset() + leaf.offset)


def _as_wanted(value: Tensor, leaf: Source) -> Tensor:
    """The tensor with the graph's strides, copied where the program has others."""
    if leaf.order:
        back = [leaf.order.index(dim) for dim in range(len(leaf.order))]
        value = value.permute(back)
    if same_strides(leaf.size, value.stride(), leaf.stride):
        return value
    # Where one element stands for many (`expand`), one of them is copied.
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in leaf.stride)
    size = [1 if stride == 0 else n for n, stride in zip(leaf.size, leaf.stride, strict=True)]
    extent = 1 + sum((n - 1) * stride for n, stride in zip(leaf.size, leaf.stride, strict=True))
    memory = torch.empty(extent, dtype=value.dtype, device=value.device)
    memory.as_strided(size, leaf.stride).copy_(value[once])
    return memory.as_strided(leaf.size, leaf.stride)
