"""Which sorts the engines of this room do."""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.elements import follows, unreadable
from kitsune_mlir.dialects.access import shape_of

__all__ = ["Sort", "read"]

_COMPARED = {"ole": False, "olt": False, "sle": False, "slt": False, "oge": True, "ogt": True, "sge": True, "sgt": True}
_UNSIGNED = {"ule": False, "ult": False, "uge": True, "ugt": True}


@dataclasses.dataclass(frozen=True)
class Sort:
    """A sort that the engine does, along dimension `axis`; `signed`: how integers are compared."""

    op: ir.Operation
    axis: int
    descending: bool
    signed: bool
    type: ir.Type

    @property
    def length(self) -> int:
        """Of a row."""
        return shape_of(self.op.results[0])[self.axis]

    @property
    def rows(self) -> int:
        """That are sorted."""
        return math.prod(size for dim, size in enumerate(shape_of(self.op.results[0])) if dim != self.axis)


def read(ops: list[ir.Operation]) -> Sort | str:
    """The one sort among some ops, with maps before and after it; a reason where it is more, or other, than that."""
    sorts = [op for op in ops if op.name == "tm_tensor.sort"]
    if len(sorts) != 1:
        return "it holds no sort" if not sorts else "it holds several sorts"
    (op,) = sorts
    block = op.regions[0].blocks[0]
    inner, pair = [o.operation for o in block.operations], list(block.arguments)[:2]
    compares = inner[0].name in ("arith.cmpf", "arith.cmpi") and list(inner[0].operands) == pair
    with_nan = [o.name for o in inner[1:-1]] == ["arith.cmpf", "arith.ori"] and inner[1].operands[0] == inner[1].operands[1]
    if not compares or (len(inner) != 2 and not with_nan):
        return "its rows are not ordered by one comparison"
    type = ir.RankedTensorType(op.operands[0].type).element_type
    predicate = _predicate(inner[0])
    signed = predicate in _COMPARED
    if not signed and (predicate not in _UNSIGNED or inner[0].name == "arith.cmpf" or ir.IntegerType(type).width >= 32):
        return f"its rows are ordered by comparison '{predicate}'"
    others = [o for o in ops if o != op]
    place = ops.index(op)
    if (reason := unreadable(others) or follows(ops[place + 1 :], list(op.results))) is not None:
        return reason
    axis = ir.IntegerAttr(op.attributes["dimension"]).value
    return Sort(op, axis, {**_COMPARED, **_UNSIGNED}[predicate], signed, type)


def _predicate(op: ir.Operation) -> str:
    """Name of a comparison's predicate."""
    number = ir.IntegerAttr(op.attributes["predicate"]).value
    if op.name == "arith.cmpf":
        return {2: "ogt", 3: "oge", 4: "olt", 5: "ole"}.get(number, f"number {number}")
    names = {2: "slt", 3: "sle", 4: "sgt", 5: "sge", 6: "ult", 7: "ule", 8: "ugt", 9: "uge"}
    return names.get(number, f"number {number}")
