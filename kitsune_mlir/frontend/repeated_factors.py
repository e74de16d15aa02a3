"""Products of batches whose right factor is one matrix for several left ones: these are rows of one product.

Heads of queries that share keys and values are such, where a library repeats keys and values for them: nothing is repeated in
memory then, and a product has the rows of a group.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.dtypes import CASTS
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["share_repeated_factors"]

aten = torch.ops.aten
_REGROUPED = (
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip

Factor = tuple[int, int]
"""A size, and how far its elements are apart in memory; 0 where they are one."""


@dataclasses.dataclass(frozen=True)
class _Read:
    """Elements of a node: of each dimension the factors that walk it, outermost first; and the types that they are cast to."""

    node: fx.Node
    dims: tuple[tuple[Factor, ...], ...]
    casts: tuple[torch.dtype, ...]


def share_repeated_factors(graph: fx.Graph) -> None:
    """Rewrites such products, in place."""
    changed = False
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        read = _read(node.args[1])  # type: ignore[arg-type]
        if read is None:
            continue
        batch, *matrix = read.dims
        if not batch or batch[-1][1] != 0 or any(step == 0 for _, step in (*batch[:-1], *matrix[0], *matrix[1])):
            continue
        with graph.inserting_before(node):
            call = functools.partial(call_with_value, stack_trace=str(node.meta.get("stack_trace") or ""))
            made = _multiplied(call, node, dataclasses.replace(read, dims=(batch[:-1], *matrix)), batch[-1][0])
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        changed = True
    if changed:
        drop_dead(graph)


def _read(node: fx.Node) -> _Read | None:
    """What a node is a repetition or a rearrangement of; None where nothing is repeated, or it is not understood."""
    chain: list[fx.Node] = []
    while isinstance(node.args[0] if node.args else None, fx.Node) and _moves(node):
        chain.append(node)
        node = node.args[0]  # type: ignore[assignment]
    while chain and chain[-1].target is not aten.expand.default:  # what lies below the first expansion stays
        node = chain.pop()
    if not chain:
        return None
    step, dims = 1, list[tuple[Factor, ...]]()
    for size in reversed(node.meta["val"].shape):
        dims.insert(0, ((size, step),) if size != 1 else ())
        step *= size
    for moved in reversed(chain):
        shape = list(moved.meta["val"].shape)
        if moved.target is aten.expand.default:
            dims = [()] * (len(shape) - len(dims)) + dims
            dims = [((size, 0),) if not dim and size != 1 else dim for dim, size in zip(dims, shape, strict=True)]
        elif moved.target is aten.permute.default:
            dims = [dims[at] for at in moved.args[1]]  # type: ignore[union-attr]
        elif moved.target in _REGROUPED:
            regrouped = _regrouped([factor for dim in dims for factor in dim], shape)
            if regrouped is None:
                return None
            dims = regrouped
    casts = [moved.meta["val"].dtype for moved in reversed(chain) if moved.target in CASTS]
    return _Read(node, tuple(dims), tuple(casts))


def _moves(node: fx.Node) -> bool:
    """Whether a node is its operand in another order, or repeated."""
    if node.target is aten.slice.Tensor or node.target is aten.clone.default:
        return node.args[0].meta["val"].shape == node.meta["val"].shape  # type: ignore[union-attr]
    return node.target in (aten.expand.default, aten.permute.default, *_REGROUPED, *CASTS) and 0 not in node.meta["val"].shape


def _regrouped(factors: Sequence[Factor], shape: Sequence[int]) -> list[tuple[Factor, ...]] | None:
    """The same elements in the same order, in dimensions of other sizes; None where one begins inside of a factor's part."""
    left, found = list(factors)[::-1], []
    for size in shape:
        taken: list[Factor] = []
        while size != 1:
            n, step = left.pop()
            if size % n == 0:
                taken.append((n, step))
                size //= n
            elif n % size == 0:
                taken.append((size, step * (n // size)))
                left.append((n // size, step))
                size = 1
            else:
                return None
        found.append(tuple(taken))
    return found


def _multiplied(call: Any, node: fx.Node, right: _Read, times: int) -> fx.Node:
    """The product of its left factor, so many matrices of which are one, and a right factor where nothing is repeated."""
    left, (batch, rows, columns) = node.args[0], node.meta["val"].shape
    inner = left.meta["val"].shape[-1]  # type: ignore[union-attr]
    left = call(aten.reshape.default, left, [batch // times, times * rows, inner])
    factors = [factor for dim in right.dims for factor in dim]
    order = sorted(range(len(factors)), key=lambda at: -factors[at][1])
    value = call(aten.reshape.default, right.node, [factors[at][0] for at in order])
    if order != sorted(order):
        value = call(aten.permute.default, value, [order.index(at) for at in range(len(order))])
    value = call(aten.reshape.default, value, [math.prod(n for n, _ in dim) for dim in right.dims])
    for dtype in right.casts:
        value = call(torch.ops.prims.convert_element_type.default, value, dtype)
    return call(aten.reshape.default, call(aten.bmm.default, left, value), [batch, rows, columns])
