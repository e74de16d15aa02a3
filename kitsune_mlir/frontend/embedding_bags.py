"""Bags of embeddings: rows of a table picked by indices, and reduced bag by bag.

Where all bags are of one size (a matrix of indices) the rows are reduced as they are read. Else each index finds its bag among
the offsets, and its row is added there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.own_operators import define, implement
from kitsune_mlir.frontend.source import origin_of_node, target_name

__all__ = ["BAGS", "MAX", "MEAN", "SUM", "bag_of", "name_equal_bags"]

aten = torch.ops.aten
SUM, MEAN, MAX = 0, 1, 2
"""Modes, as ATen numbers them."""
_TRACED = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
"""As AOTAutograd leaves them: without padding its index is -1."""
_FORMS = (aten.embedding_bag.padding_idx, aten.embedding_bag.default, *_TRACED)
_NAMES = ("weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset")

define(
    "equal_bags(Tensor weight, Tensor indices, int size, int mode, Tensor? factors, int? padding) -> Tensor",
    lambda weight, indices, size, mode, factors, padding: weight.new_empty([indices.shape[0] // size, weight.shape[1]]),
)


def name_equal_bags(graph: fx.Graph) -> None:
    """Turn bags whose offsets are multiples of a size, as torch has them of a matrix of indices, into `kitsune::equal_bags`.

    Raises:
        FrontendError: what PyTorch's kernel notes for its gradient is returned, or used where it leaves some of it out.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in _FORMS]:
        given: dict[str, Any] = dict(zip((*_NAMES, "padding_idx"), node.args, strict=False)) | dict(node.kwargs)
        used = [user for user in node.users if user.users]
        if node.target in _TRACED and not all(_is_ours(user, given) for user in used):
            name = target_name(node)
            what = f"operator '{name}' gives more than the bags, which is PyTorch's own affair"
            raise FrontendError(what, operator=name, location=origin_of_node(node))
        if any(user.args[1] != 0 for user in used) or (size := _size(given)) is None:
            continue
        mode, factors, padding = (given.get(name) for name in ("mode", "per_sample_weights", "padding_idx"))
        if node.target in _TRACED and padding is not None and padding < 0:
            padding = None
        with graph.inserting_before(node):
            arguments = (given["weight"], given["indices"], size, mode or SUM, factors, padding)
            bags = graph.call_function(torch.ops.kitsune.equal_bags.default, arguments)
        for user in used:
            bags.meta = dict(user.meta)
            user.replace_all_uses_with(bags)
    drop_dead(graph)


def _is_ours(result: fx.Node, given: dict[str, Any]) -> bool:
    """Whether one of the results is what `_embedding_bag` below gives: the bags, or what a gradient in the same graph reads."""
    number: Any = result.args[1]
    if number == 0:
        return True
    indices, offsets, weight = (given[name].meta["val"].shape for name in ("indices", "offsets", "weight"))
    bags = offsets[0] - int(bool(given.get("include_last_offset")))
    largest = (bags, weight[1]) if given.get("mode") == MAX else None
    ours = {1: (indices[0],), 2: (bags,), 3: largest}[number]
    return tuple(result.meta["val"].shape) == ours and all(user.op == "call_function" for user in result.users)


def _size(given: dict[str, Any]) -> int | None:
    """How many indices each bag has; None where that is not known, or not the same for all."""
    offsets, indices = given["offsets"], given["indices"].meta["val"]
    if offsets.op != "call_function" or given.get("include_last_offset"):
        return None
    if offsets.target is torch.ops.prims.iota.default:
        count, start, size = offsets.args[0], offsets.kwargs["start"], offsets.kwargs["step"]
    elif offsets.target is aten.arange.start_step:
        start, end, size = offsets.args if len(offsets.args) == 3 else (*offsets.args, 1)
        count = -(-(end - start) // size) if size > 0 else 0
    else:
        return None
    return size if start == 0 and size > 0 and count and count * size == indices.numel() else None


def _equal_bags(weight: Tensor, indices: Tensor, size: int, mode: int, factors: Tensor | None, padding: int | None) -> Tensor:
    indices = indices.reshape(-1, size)
    rows = weight[indices]
    if factors is not None:
        rows = rows * factors.reshape(-1, size, 1)
    kept = None if padding is None else (indices != padding % weight.shape[0]).unsqueeze(-1)
    if mode == MAX:
        if kept is None:
            return torch.amax(rows, 1)
        found = torch.amax(torch.where(kept, rows, float("-inf")), 1)
        return torch.where(kept.any(1), found, 0.0)
    if kept is None:
        return rows.mean(1) if mode == MEAN else rows.sum(1)
    total = torch.where(kept, rows, 0.0).sum(1, dtype=torch.float32 if weight.dtype != torch.float64 else None)
    if mode == MEAN:
        total = total / torch.clamp(kept.sum(1), min=1).to(total.dtype)
    return total.to(weight.dtype)


implement("equal_bags", _equal_bags)


def bag_of(starts: Tensor, indices: Tensor) -> Tensor:
    """Of each index: the last bag that begins at or before it."""
    return torch.searchsorted(starts, torch.arange(indices.shape[0], device=indices.device), right=True) - 1


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    bags = offsets.shape[0] - int(include_last_offset)
    bag = bag_of(offsets[:bags], indices)
    rows = weight[indices]
    kept = indices != padding_idx if padding_idx >= 0 else None
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    counted = torch.ones_like(indices) if kept is None else kept.to(indices.dtype)
    size = torch.zeros([bags], dtype=indices.dtype, device=indices.device).index_add(0, bag, counted)
    if kept is not None:
        rows = torch.where(kept.unsqueeze(1), rows, float("-inf") if mode == MAX else 0.0)
    if mode == MAX:
        lowest = torch.full([bags, weight.shape[1]], float("-inf"), dtype=weight.dtype, device=weight.device)
        found = lowest.index_reduce(0, bag, rows, "amax")
        # The first row of a bag that is largest, for the gradient.
        number = torch.arange(indices.shape[0], device=indices.device).unsqueeze(1)
        first = torch.full_like(found, indices.shape[0] - 1, dtype=torch.int64)
        first = first.index_reduce(0, bag, torch.where(rows == found[bag], number, indices.shape[0] - 1), "amin")
        return torch.where(found == float("-inf"), 0.0, found), bag, size, indices[first]
    rows = widened(rows)
    out = torch.zeros([bags, weight.shape[1]], dtype=rows.dtype, device=weight.device).index_add(0, bag, rows)
    if mode == MEAN:
        out = out / torch.clamp(size, min=1).unsqueeze(1).to(out.dtype)
    return out.to(weight.dtype), bag, size, offsets


BAGS: dict[Any, Any] = {
    torch.ops.kitsune.equal_bags.default: _equal_bags,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
}
"""By operator, for the table of decompositions."""
