"""Tensors that a function gets, and gives with more elements behind: at the next call they are longer.

A cache of keys and values is one. Dynamo takes each size for one that stays until it has seen another one, and would have the
first step of many compiled for its size alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.torch_frames import size_changes

__all__ = ["trace_growing_sizes"]

_JOINS = (torch.cat, torch.concat, torch.concatenate)


def trace_growing_sizes(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Have Dynamo trace a function again, with sizes that change, where inputs of fixed size grow.

    Sizes of other inputs that are as large as such a one before or after count as the same: masks and places of elements.

    Raises:
        torch._dynamo.exc.TensorifyScalarRestartAnalysis: there are such; it is Dynamo's.
    """
    placeholders = list(gm.graph.find_nodes(op="placeholder"))
    grown = {n: how for n in placeholders if (how := _growth(n)) is not None}
    lengths = {length for _, *both in grown.values() for length in both}
    changing: dict[fx.Node, list[int]] = {}
    for node, value in zip(placeholders, inputs, strict=True):
        if node in grown:
            changing[node] = [grown[node][0]]
        elif isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
            changing[node] = [dim for dim, size in enumerate(value.shape) if type(size) is int and size in lengths]
    if grown:
        size_changes({node: dims for node, dims in changing.items() if dims}, [*grown])


def _growth(node: fx.Node) -> tuple[int, int, int] | None:
    """The dimension along which an output is an input with more behind it, and how long it is before and after."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor):
        return None
    for joined in _with_more(node):
        after = joined.meta.get("example_value")
        if not isinstance(after, Tensor) or after.dim() != value.dim():
            continue
        sizes = list(zip(value.shape, after.shape, strict=True))
        # A symbol is compared with nothing: it may be one that only a run knows.
        differ = [d for d, (before, now) in enumerate(sizes) if type(before) is int and (type(now) is not int or before != now)]
        if len(differ) == 1 and type(after.shape[differ[0]]) is int and value.shape[differ[0]] > 1:
            return differ[0], value.shape[differ[0]], after.shape[differ[0]]
    return None


def _with_more(node: fx.Node) -> Iterator[fx.Node]:
    """The outputs that an input is joined with others to, as the first."""
    for user in node.users:
        parts = user.args[0] if user.args else user.kwargs.get("tensors")
        if user.target in _JOINS and isinstance(parts, tuple | list) and parts[0] is node:
            if any(use.op == "output" for use in user.users):
                yield user
