"""What a forward keeps for its backward: tensors rather than views of them that have two sizes that change in one dimension.

A backward graph that is given the rows of all tokens of all samples, `batch * tokens` of them, cannot tell which are those of
one sample: a program for more tokens would have others there. Of the tensor that they are a view of it can.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import Tensor, fx

from kitsune_mlir.frontend.rows.axes import expression

__all__ = ["keep_bases"]

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


def keep_bases(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> int:
    """Change both graphs, as AOTAutograd's partitioner gives them, in place; how many tensors are kept as their bases.

    Args:
        outputs: how many results of the forward are its own.
    """
    end = next(iter(forward.graph.find_nodes(op="output")))
    results: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    given = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    names = {node.name for node in backward.graph.nodes}
    found = 0
    for view in [node for node in results[outputs:] if isinstance(node, fx.Node)]:
        base, place = _base(view), given.get(view.name)
        if base is None or place is None or results.index(view) < outputs:
            continue
        sizes = _sizes(base, view)
        taken = given.get(base.name)
        if sizes is None or (taken is None and base.name in names) or "saved_tensor_with_no_vc_check" in view.meta:
            continue  # (AOTAutograd counts those that are marked so)
        at = results.index(view, outputs)
        if taken is None:
            results[at] = base
            with backward.graph.inserting_before(place):
                taken = given[base.name] = backward.graph.placeholder(base.name)
            taken.meta = {**base.meta}
            names.add(base.name)
        else:
            del results[at]
        last = [node for node in backward.graph.nodes if node.op == "placeholder"][-1]
        with backward.graph.inserting_after(last):
            again = backward.graph.call_function(aten.view.default, (taken, sizes))
        again.meta = {**place.meta}
        place.replace_all_uses_with(again)
        backward.graph.erase_node(place)
        found += 1
    if found:
        end.args = (tuple(results),)
        forward.graph.eliminate_dead_code()
        for gm in (forward, backward):
            gm.recompile()
    return found


def _base(node: fx.Node) -> fx.Node | None:
    """The tensor that a node is a view of, where the view has sizes that change in one dimension and the tensor has not."""
    if not _is_mixed(node):
        return None
    base: Any = node
    while isinstance(base, fx.Node) and base.target in _VIEWS and _is_mixed(base):
        base = base.args[0]
    if not isinstance(base, fx.Node) or _is_mixed(base) or not isinstance(base.meta.get("val"), Tensor):
        return None
    return base if base.meta["val"].is_contiguous() else None


def _sizes(base: fx.Node, view: fx.Node) -> list[int] | None:
    """What is to be given to `aten.view`; None where it cannot be said in numbers."""
    sizes = [-1 if _factors(n) > 1 else n for n in view.meta["val"].shape]
    return sizes if sizes.count(-1) == 1 and all(isinstance(n, int) for n in sizes) else None


def _is_mixed(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and any(_factors(n) > 1 for n in value.shape)


def _factors(size: int | torch.SymInt) -> int:
    """How many sizes that change a size is a product of."""
    if isinstance(size, int):
        return 0
    each = sympy.Mul.make_args(expression(size))
    return sum(len(factor.free_symbols) for factor in each if factor.is_Symbol or factor.is_Pow)
