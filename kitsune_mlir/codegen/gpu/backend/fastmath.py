"""Floating-point freedom, set on whole modules: which of MLIR's `fastmath` flags every operation carries.

MLIR's default is none, and then NVPTX emits `mul.rn` and `add.rn`, which ptxas may not fuse: half the speed of what
nvcc gives by default. `contract` is therefore the project's default. `afn,arcp` select approximations (`ex2.approx`,
`div.approx`, `tanh.approx`, ...), with errors of 1e-6 (`exp`, division) up to 5e-4 (`tanh`).
"""

from __future__ import annotations

import re

from torch_mlir import ir
from torch_mlir.dialects import llvm

__all__ = ["expand_approximate_tanh", "set_fastmath"]

_ARITH = frozenset(
    "arith." + name
    for name in ("addf", "subf", "mulf", "divf", "remf", "negf", "cmpf", "maximumf", "minimumf", "maxnumf", "minnumf")
)
_MATH_WITHOUT_FLAGS = frozenset("math." + name for name in ("absi", "ctlz", "cttz", "ctpop", "ipowi"))


def set_fastmath(root: ir.Operation, flags: str) -> None:
    """Add `flags` ("contract", "contract,afn,arcp", ...) to the flags of every arith and math operation under `root`."""
    wanted = set(flags.split(",")) - {""}
    if not wanted:
        return
    cache: dict[str, ir.Attribute] = {}

    def visit(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if name in _ARITH or (name.startswith("math.") and name not in _MATH_WITHOUT_FLAGS):
            old = str(operation.attributes["fastmath"]) if "fastmath" in operation.attributes else ""
            if old not in cache:
                named = _flags(old) - {"none"} | wanted
                cache[old] = ir.Attribute.parse(f"#arith.fastmath<{','.join(sorted(named))}>", root.context)
            operation.attributes["fastmath"] = cache[old]
        return ir.WalkResult.ADVANCE

    root.walk(visit)


def _flags(attribute: str) -> set[str]:
    """The flags of a printed `#arith.fastmath<...>`; none for the empty string."""
    listed = re.findall(r"<(.*)>", attribute)
    return set(listed[0].split(",")) if listed else set()


def expand_approximate_tanh(root: ir.Operation) -> None:
    """Turn scalar f32 `math.tanh` with `afn` into `tanh.approx.f32` (MLIR would call libdevice's exact one regardless)."""
    found: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "math.tanh" and isinstance(operation.results[0].type, ir.F32Type):
            if "fastmath" in operation.attributes and _flags(str(operation.attributes["fastmath"])) & {"afn", "fast"}:
                found.append(operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    for operation in found:
        with ir.InsertionPoint(operation), operation.location:
            approximate = llvm.intr_tanh(operation.operands[0], fastmath_flags=ir.Attribute.parse("#llvm.fastmath<afn>"))
        operation.results[0].replace_all_uses_with(approximate)
        operation.erase()
