"""What models return that do nothing but look at their inputs otherwise: parts of these, as PyTorch's views are."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import fx

from kitsune_mlir.runtime.strided import Strided

__all__ = ["returned_views"]

aten = torch.ops.aten

_VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.slice.Tensor, aten.select.int,
    aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.diagonal.default, aten.unfold.default,
    aten.alias.default, aten.detach.default, aten.as_strided.default,
}  # fmt: skip


def returned_views(outputs: list[object], dense: Container[str]) -> dict[fx.Node, tuple[fx.Node, Strided]]:
    """For each output the input that it is a part of, and where; nothing if an output is computed.

    Args:
        outputs: of the graph.
        dense: names of placeholders of inputs that are contiguous.
    """
    found: dict[fx.Node, tuple[fx.Node, Strided]] = {}
    for node in outputs:
        if not isinstance(node, fx.Node) or node.op == "placeholder":
            continue
        view = _view(node, dense)
        if view is None:
            return {}
        found[node] = view
    return found


def _view(node: fx.Node, dense: Container[str]) -> tuple[fx.Node, Strided] | None:
    steps: list[fx.Node] = []
    while node.op == "call_function" and node.target in _VIEWS and isinstance(node.args[0], fx.Node):
        steps.append(node)
        node = node.args[0]
    if node.op != "placeholder" or node.name not in dense:
        return None
    value = node.meta["val"]
    whole = torch.empty(value.shape, dtype=value.dtype, device="meta")
    seen = whole
    for step in reversed(steps):
        if any(isinstance(argument, fx.Node) for argument in [*step.args[1:], *step.kwargs.values()]):
            return None
        try:
            seen = step.target(seen, *step.args[1:], **step.kwargs)  # type: ignore[operator]
        except RuntimeError:  # a reshape of a copy that the graph makes without saying so
            return None
    if seen.untyped_storage()._cdata != whole.untyped_storage()._cdata or seen.dtype != whole.dtype:
        return None
    return node, Strided(tuple(seen.stride()), tuple(value.shape), int(seen.storage_offset()))
