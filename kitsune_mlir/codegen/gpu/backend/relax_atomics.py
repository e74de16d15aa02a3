"""Atomics of generic code need no order (semaphores give that): all of them are relaxed, at the scope of the device."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.verify import walk

__all__ = ["MONOTONIC", "relax_atomics"]

MONOTONIC = 2  # LLVM's relaxed


def relax_atomics(module: ir.Operation) -> None:
    """Make every `llvm.atomicrmw` relaxed at device scope; upstream gives them acquire-release order at system scope."""
    for op in walk(module):
        if op.name == "llvm.atomicrmw":
            op.attributes["ordering"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), MONOTONIC)
            op.attributes["syncscope"] = ir.StringAttr.get("device")
