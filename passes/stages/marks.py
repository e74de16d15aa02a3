"""Groups of ops that an earlier pass has marked: an attention, products of pairs."""

from collections.abc import Sequence

from torch_mlir import ir

__all__ = ["marked"]


def marked(ops: Sequence[ir.Operation], mark: str) -> list[list[ir.Operation]]:
    """The operations of each group that an earlier pass has marked, by the mark's number."""
    found: dict[int, list[ir.Operation]] = {}
    for op in ops:
        if mark in op.attributes:
            found.setdefault(ir.IntegerAttr(op.attributes[mark]).value, []).append(op)
    return list(found.values())
