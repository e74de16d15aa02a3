"""Inputs that share memory in one call and not in another, where the graph writes to one of them.

AOTAutograd compiles for what shares memory in the first call, and no guard of Dynamo's asks in later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["SharingGuard"]


class SharingGuard:
    """Calls a compiled graph where its inputs share memory as they did when it was compiled, else the graph in PyTorch.

    Args:
        compiled: what AOTAutograd gives.
        graph: the graph that Dynamo captured.
        inputs: those that it was compiled with. Parameters among them are taken to share no memory with other inputs.
    """

    def __init__(self, compiled: Callable[..., Any], graph: Callable[..., Any], inputs: Sequence[Any]):
        self._compiled, self._graph = compiled, graph
        self._asked = [
            n
            for n, value in enumerate(inputs)
            if isinstance(value, Tensor) and value.layout == torch.strided and not isinstance(value, torch.nn.Parameter)
        ]
        self._seen = self._shared(inputs)

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        return self._compiled(*args) if self._shared(args) == self._seen else self._graph(*args)

    def _shared(self, args: Sequence[Any]) -> tuple[tuple[int, int, int], ...]:
        """Of each input that lies in another's memory: its number, the other's, and how far it begins behind that."""
        first: dict[int, int] = {}
        found = []
        for n in self._asked:
            tensor = args[n]
            other = first.setdefault(tensor.untyped_storage()._cdata, n)
            if other != n:
                found.append((n, other, tensor.storage_offset() - args[other].storage_offset()))
        return tuple(found)
