"""What the tensors of a graph that was cut take at most, at one time: those that its parts and PyTorch's operators make."""

from __future__ import annotations

from operator import getitem

from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.partition import is_view

__all__ = ["peak_bytes"]


def peak_bytes(graph: fx.Graph) -> int:
    """Bytes of the tensors that are there at once, inputs aside; each goes after its last use, as in a graph's `forward`.

    Tensors whose sizes are known only when the graph runs are not counted.
    """
    owner: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        within = isinstance(source, fx.Node) and (is_view(node) or (node.target is getitem and source.op == "call_function"))
        owner[node] = owner[source] if within else node  # type: ignore[index]
        for used in node.all_input_nodes:
            last[owner[used]] = node
    live = most = 0
    ends: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op in ("call_function", "get_attr") and owner[node] is node:
            tensors = [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
            taken = sum(v.numel() * v.element_size() for v in tensors if isinstance(v.numel(), int))
            schema = getattr(node.target, "_schema", None)
            taken = 0 if schema is not None and schema.is_mutable else taken  # what is written to has its memory already
            live += taken
            most = max(most, live)
            end: fx.Node = last.get(node) or node
            ends[end] = ends.get(end, 0) + taken
        live -= ends.pop(node, 0) if node.op != "output" else 0
    return most
