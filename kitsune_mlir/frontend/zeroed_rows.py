"""`kitsune::zeroed_rows`: an operator of our own that gives zeros where elements are not valid.

It is for PyTorch's kernels that read across rows. A compiled program computes each row from this row alone, so within one it is
left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from kitsune_mlir.frontend.own_operators import define, implement

__all__ = ["take_out_zeroed_rows", "zeroed_rows"]

define("zeroed_rows(Tensor x, Tensor valid) -> Tensor", lambda x, valid: torch.empty_like(x))
implement("zeroed_rows", lambda x, valid: torch.where(valid, x, 0))


def zeroed_rows(x: Tensor, valid: Tensor) -> Tensor:
    """A tensor with zeros where `valid` is false, wherever PyTorch's kernels read it.

    Args:
        valid: booleans, of a shape that broadcasts to that of `x`.
    """
    return torch.ops.kitsune.zeroed_rows(x, valid)


def take_out_zeroed_rows(graph: fx.Graph) -> None:
    """Take the operators out of a program's graph, in place: what it hands out is zeroed, what it reads itself is not."""
    output = next(iter(graph.find_nodes(op="output")))
    for node in list(graph.find_nodes(op="call_function", target=torch.ops.kitsune.zeroed_rows.default)):
        x, valid = node.args
        if output in node.users:
            with graph.inserting_before(node):
                zero = graph.call_function(torch.ops.aten.full.default, ([], 0), {"dtype": x.meta["val"].dtype})
                zeroed = graph.call_function(torch.ops.aten.where.self, (valid, x, zero))
            zero.meta = {**node.meta, "val": x.meta["val"].new_empty([])}
            zeroed.meta = dict(node.meta)
            output.replace_input_with(node, zeroed)
        node.replace_all_uses_with(x)
        graph.erase_node(node)
