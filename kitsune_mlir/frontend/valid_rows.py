"""`kitsune::valid_rows`: an operator of our own that says how many rows of an output its caller wants.

It gives its tensor as it is. A compiled program need not compute the other rows; what stands there then is anything.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from kitsune_mlir.frontend.own_operators import define, implement

__all__ = ["take_out_valid_rows", "valid_rows", "without_valid_rows"]

aten = torch.ops.aten

define("valid_rows(Tensor x, Tensor count, int rows) -> Tensor", lambda x, count, rows: x.clone())
implement("valid_rows", lambda x, count, rows: x.clone())


def valid_rows(x: Tensor, count: Tensor, rows: int) -> Tensor:
    """A tensor of which only the first `count` of its `rows` rows will be looked at.

    Args:
        x: its outermost dimension of more than one element is `rows`, or a multiple: so many elements are a row.
        count: an input of the graph, an int64 without dimensions.
    """
    return torch.ops.kitsune.valid_rows(x, count, rows)


def take_out_valid_rows(graph: fx.Graph) -> dict[fx.Node, tuple[str, int]]:
    """Take the operators out of a graph, in place.

    Returns:
        Of the graph's outputs that are such, or one with its dimensions in another order behind the rows: the name of the
        input that holds the count, and the rows.
    """
    output = next(iter(graph.find_nodes(op="output")))
    found: dict[fx.Node, tuple[str, int]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.kitsune.valid_rows.default):
        x, count, rows = node.args
        used = [user for user in node.users if user is output or _keeps_rows(user, node)]
        if len(used) == len(node.users) == 1 and count.op == "placeholder":
            found[x if used == [output] else used[0]] = (count.name, rows)
    without_valid_rows(graph)
    given = list(output.args[0])
    return {node: how for node, how in found.items() if given.count(node) == 1}  # twice: others may want all of it


def without_valid_rows(graph: fx.Graph) -> bool:
    """Want all rows, in place; whether it was otherwise."""
    found = list(graph.find_nodes(op="call_function", target=torch.ops.kitsune.valid_rows.default))
    for node in found:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return bool(found)


def _keeps_rows(user: fx.Node, node: fx.Node) -> bool:
    """Whether a permutation leaves the outermost of the dimensions of more than one element there."""
    if user.target is not aten.permute.default:
        return False
    shape, order = node.meta["val"].shape, [dim % len(user.args[1]) for dim in user.args[1]]  # type: ignore[arg-type]
    apart = [dim for dim in order if shape[dim] != 1]
    return not apart or apart[0] == min(apart)
