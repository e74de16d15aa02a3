"""Tile programs for engines to plan: what a plan refers to lives as long as its module."""

from __future__ import annotations

from torch_mlir import ir

__all__ = ["KEPT", "kept"]

KEPT: list[ir.Module] = []
"""Modules of the test that runs; the fixture `context` drops them."""


def kept(text: str) -> ir.Operation:
    """The first operation of a module, such as a tile program's function; it lives until the test's context ends."""
    KEPT.append(module := ir.Module.parse(text))
    return list(module.body.operations)[0].operation
