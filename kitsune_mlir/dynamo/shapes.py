"""Graphs with sizes that are known at a call: a program for each set of sizes that comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.dynamo.report import logger

__all__ = ["Specialized", "is_symbolic"]

MOST_SIZES = 8
"""Sets of sizes that are compiled for; those that come later run in PyTorch."""


def is_symbolic(gm: fx.GraphModule) -> bool:
    """Whether an input has a size, or is a number, that is not known."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, symbols):
            return True
        if isinstance(value, Tensor) and any(isinstance(n, symbols) for n in (*value.shape, *value.stride())):
            return True
    return False


class Specialized:
    """Calls what was compiled for the sizes of its arguments.

    Args:
        gm: the graph, with symbols.
        compile: compiles a graph without, of the same inputs and outputs.
    """

    def __init__(self, gm: fx.GraphModule, compile: Callable[[fx.GraphModule], Callable[..., Any]]):
        self._gm, self._compile = gm, compile
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        key = tuple(map(_sizes, args))
        run = self._known.get(key)
        if run is None:
            if len(self._known) >= MOST_SIZES:
                return self._gm(*args)
            run = self._known[key] = self._compiled(args)
            if len(self._known) == MOST_SIZES:
                logger.warning("a graph was compiled for %d sets of sizes; others will run in PyTorch", MOST_SIZES)
        return run(*args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        with torch.no_grad():
            static = make_fx(lambda *given: self._gm(*given), tracing_mode="fake")(*args)
        for old, new in zip(
            self._gm.graph.find_nodes(op="placeholder"), static.graph.find_nodes(op="placeholder"), strict=True
        ):
            new.meta["symbolic"] = old.name
        return self._compile(static)


def _sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value if isinstance(value, int | float | bool) else None
