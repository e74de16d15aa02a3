"""The rule for each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from kitsune_mlir.frontend.rows.indices import INDICES
from kitsune_mlir.frontend.rows.movement import MOVEMENT
from kitsune_mlir.frontend.rows.node import Node
from kitsune_mlir.frontend.rows.products import PRODUCTS
from kitsune_mlir.frontend.rows.rules import plain_rule

__all__ = ["rule_of"]

_RULES: dict[Any, Callable[[Node], Any]] = {**MOVEMENT, **INDICES, **PRODUCTS}


def rule_of(node: fx.Node) -> Callable[[Node], Any]:
    """The rule for a node: a function that gives the dimensions of its result, or of each; raises `Unclear`."""
    return _RULES.get(node.target) or plain_rule(node)
