"""How long a graph takes as its sizes grow: enough to say which larger size costs next to nothing more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import sympy
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.frontend.rows.axes import size_at, sizes_of

__all__ = ["cost_of", "given_bytes_of", "idle_cost_of"]

aten = torch.ops.aten

_RATES = {"cuda": (1e-5, 3e12, 1e14), "cpu": (2e-5, 2e10, 1e11)}
"""By device, roughly: seconds of a call of nothing, bytes and operations a second."""


LEAVING_OUT = 3e-8
"""Seconds that a tile takes on the host that is left out: its waits and posts."""
TILE = 64
"""Rows of a tile, roughly."""
FUSED = 4
"""Operators of a task, roughly."""


def idle_cost_of(gm: fx.GraphModule) -> Callable[[Mapping[str, int]], float]:
    """A function from values of a graph's symbols to the seconds in which a program leaves out all rows of such sizes.

    For the host: on a GPU not every engine leaves them out.
    """
    computed = [node for node in gm.graph.nodes if node.op == "call_function" and not is_view(node)]
    made = [value for node in computed for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    rows = Counter(math.prod(sizes_of(value)[:-1], start=sympy.Integer(1)) for value in made)

    def seconds(values: Mapping[str, int]) -> float:
        return LEAVING_OUT / FUSED * sum(count * math.ceil(size_at(size, values) / TILE) for size, count in rows.items())

    return seconds


def given_bytes_of(gm: fx.GraphModule) -> Callable[[Mapping[str, int]], int]:
    """A function from values of a graph's symbols to the bytes of its inputs and outputs whose sizes they are."""
    output = next(iter(gm.graph.find_nodes(op="output")))
    nodes = [*gm.graph.find_nodes(op="placeholder"), *output.all_input_nodes]
    values = [value for node in nodes for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)]
    each = Counter[sympy.Expr]()
    for value in values:
        count = sympy.Mul(*sizes_of(value))
        each[count] += value.element_size() if count.free_symbols else 0
    return lambda values: sum(size_at(count, values) * size for count, size in each.items() if size)


def cost_of(gm: fx.GraphModule, reads: int = 0, on_gpu: bool = False) -> Callable[[Mapping[str, int]], float]:
    """A function from values of a graph's symbols to seconds, roughly.

    Each weight is read once, each result that is no view written once, and products compute.

    Args:
        reads: how often each result is read again. Of a cache of keys and values that grows, for 4,096 tokens, a layer of Llama
            moves 150 MB between its stages, of which a GPU's caches hold little.
    """
    traffic, work = Counter[sympy.Expr](), Counter[sympy.Expr]()
    for node in gm.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor) and node.op in ("placeholder", "call_function") and not is_view(node):
                often = 1 + reads if node.op == "call_function" else 1
                traffic[sympy.Mul(*sizes_of(value))] += value.element_size() * often
        if node.target in (aten.mm.default, aten.bmm.default):
            left, result = sizes_of(node.args[0].meta["val"]), sizes_of(node.meta["val"])
            work[sympy.Mul(*result, left[-1])] += 2
    start, bandwidth, rate = _RATES["cuda" if on_gpu else "cpu"]

    def seconds(values: Mapping[str, int]) -> float:
        moved = sum(count * size_at(size, values) for size, count in traffic.items())
        done = sum(count * size_at(size, values) for size, count in work.items())
        return start + moved / bandwidth + done / rate

    return seconds
