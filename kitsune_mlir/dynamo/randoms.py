"""Random numbers are drawn by PyTorch, in front of the programs, so they are those that eager draws."""

from __future__ import annotations

import operator

import torch
from torch import fx

from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["draw_in_front", "dropout_as_product", "is_random", "reads_no_data"]

aten = torch.ops.aten

_BY_SHAPE = {
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.randint_like.low_dtype,
    aten.bernoulli.p, aten.uniform.default, aten.normal_functional.default,
    aten.exponential.default, aten.geometric.default, aten.cauchy.default, aten.log_normal.default,
}  # fmt: skip
"""Of their operand they read shape, strides and type only."""


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def reads_no_data(node: fx.Node) -> bool:
    """Whether random numbers depend on how an operand lies in memory alone."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    return node.target in _BY_SHAPE or (node.target is aten.native_dropout.default and node.args[2] is not False)


def draw_in_front(graph: fx.Graph) -> None:
    """Rewrite random numbers that depend on no data so that they need none; in place. What was theirs alone is left, dead.

    Dropout becomes a mask, which is drawn by the operator that eager calls, and products with it.
    """
    for node in [n for n in graph.nodes if is_random(n) and reads_no_data(n)]:
        value: fx.Node = node.args[0]  # type: ignore[assignment]
        if node.target is aten.native_dropout.default:
            dropout_as_product(node)
        node.update_arg(0, _stand_in(node, value))


def _stand_in(node: fx.Node, value: fx.Node) -> fx.Node:
    """A tensor before `node` that lies in memory as `value` does, whatever its values."""
    seen = value.meta["val"]
    with node.graph.inserting_before(node):
        made = node.graph.call_function(
            aten.empty_strided.default,
            (list(seen.shape), list(seen.stride())),
            {"dtype": seen.dtype, "device": seen.device},
        )
    made.meta["val"] = seen
    return made


def dropout_as_product(node: fx.Node) -> fx.Node:
    """`value * mask / (1 - p)` for dropout, rounded once, in place; the mask, which alone is left of what the node gives."""
    value, p, users = node.args[0], float(node.args[1]), list(node.users)  # type: ignore[arg-type]
    with node.graph.inserting_after(node):
        mask = node.graph.call_function(operator.getitem, (node, 1))
    mask.meta["val"] = node.meta["val"][1]
    for user in users:
        if user.args[1] == 1:
            user.replace_all_uses_with(mask)
        else:
            with node.graph.inserting_before(user):
                trace = node.meta.get("stack_trace") or ""
                kept = call_with_value(aten.mul.Tensor, value, mask, stack_trace=trace)
                scaled = call_with_value(aten.mul.Scalar, kept, 1 / (1 - p) if p < 1 else 0.0, stack_trace=trace)
            user.replace_all_uses_with(scaled)
        node.graph.erase_node(user)
    return mask
