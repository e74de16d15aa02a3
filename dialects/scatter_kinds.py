"""What a scatter does with a value that another one meets: names as in `arith::AtomicRMWKind`."""

from __future__ import annotations

__all__ = ["ADDITIONS", "ASSIGN", "COMBINING", "KINDS", "ORDER_MATTERS"]

ASSIGN = "assign"
"""What comes takes the place of what is there."""
COMBINING = {
    "addf": "arith.addf",
    "addi": "arith.addi",
    "maximumf": "arith.maximumf",
    "maxs": "arith.maxsi",
    "minimumf": "arith.minimumf",
    "mins": "arith.minsi",
    "mulf": "arith.mulf",
    "muli": "arith.muli",
}
"""The operation of each kind on what is there and what comes."""
KINDS = (*COMBINING, ASSIGN)
ADDITIONS = ("addf", "addi")
ORDER_MATTERS = ("addf", "mulf", ASSIGN)
"""Kinds whose results depend on the order, for floats in their last bits."""
