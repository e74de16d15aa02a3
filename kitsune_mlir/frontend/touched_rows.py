"""Sums of few rows in a large tensor of zeros, such as the gradient of an embedding: only the rows that something is added to
are in memory.

The sums lie behind each other in a small tensor, and a number for each row of the large one says where its sum is. Rows that
nothing is added to share a few rows of zeros. So the large tensor is a read by index, which whoever reads it does in place (an
optimizer's update), and it is neither filled, nor added to, nor read.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import fx

from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["keep_touched_rows"]

aten = torch.ops.aten
LEAST_BYTES = 32 << 20
"""Of the large tensor: smaller ones stay in a GPU's cache."""
LEAST_ROWS, LEAST_ROW_BYTES = 4, 64
"""Rows of the large tensor for each that is added, and bytes of a row: a number of a row is little beside them."""
ZEROS = 256
"""Rows of zeros, a power of two: enough that readers do not all go to the same place of the cache."""

_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, torch.ops.prims.convert_element_type.default)


def keep_touched_rows(graph: fx.Graph) -> None:
    """Rewrites sums of few rows in zeros, in place; their names and values stay."""
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.kitsune.scatter_rows.default)):
        zeros, index, source, kind = node.args[:4]
        if kind != "sum" or len(node.args) > 4 or not _is_zero(zeros):
            continue
        into, rows = zeros.meta["val"], source.meta["val"]
        row_bytes = math.prod(into.shape[1:]) * into.element_size()
        few = LEAST_ROWS * rows.shape[0] <= into.shape[0] < 2**31 - ZEROS
        if not few or row_bytes < LEAST_ROW_BYTES or into.shape[0] * row_bytes < LEAST_BYTES:
            continue
        with graph.inserting_before(node):
            call = functools.partial(call_with_value, stack_trace=str(node.meta.get("stack_trace") or ""))
            node.replace_all_uses_with(_by_place(call, into, index, source))
        graph.erase_node(node)
    drop_dead(graph)


def _is_zero(node: Any) -> bool:
    """Whether a tensor is made of zeros."""
    while isinstance(node, fx.Node) and node.target in _VIEWS:
        node = node.args[0]
    return isinstance(node, fx.Node) and node.target is aten.full.default and bool(node.args[1] == 0)


def _by_place(call: Any, into: torch.Tensor, index: fx.Node, source: fx.Node) -> fx.Node:
    """The sums of rows, as nodes that `call` makes.

    Args:
        into: [N, ...] of zeros.
        index: [E], where rows go.
        source: [E, ...], the rows.
    """
    put = torch.ops.kitsune.scatter_rows.default
    count, device = source.meta["val"].shape[0], into.device

    def numbers(size: int) -> fx.Node:
        numbered = index.graph.call_function(aten.arange.start_step, (0, size, 1), {"dtype": torch.int32, "device": device})
        with index.meta["val"].fake_mode:
            numbered.meta["val"] = torch.arange(size, dtype=torch.int32, device=device)
        return numbered

    nowhere = call(aten.new_full.default, index, [into.shape[0]], -1)
    nowhere.target, nowhere.args = aten.full.default, nowhere.args[1:]
    nowhere.kwargs = {"dtype": torch.int32, "device": device}
    nowhere.meta["val"] = nowhere.meta["val"].to(torch.int32)
    place = call(put, nowhere, index, numbers(count), "set")  # of rows that are added to the same one: some row's number
    own = call(aten.index_select.default, place, 0, index)
    none = call(aten.new_full.default, source, [count + ZEROS, *into.shape[1:]], 0)
    none.target, none.args, none.kwargs = aten.full.default, none.args[1:], {"dtype": into.dtype, "device": device}
    sums = call(put, none, own, source, "sum")
    zeros = call(aten.add.Tensor, call(aten.bitwise_and.Scalar, numbers(into.shape[0]), ZEROS - 1), count)
    return call(aten.index_select.default, sums, 0, call(aten.where.self, call(aten.ge.Scalar, place, 0), place, zeros))
