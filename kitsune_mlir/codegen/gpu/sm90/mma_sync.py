"""Products of one warp on tensor cores: `mma.sync.m16n8k16` (PTX ISA, "Matrix fragments for mma.m16n8k16")."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, wrap
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["multiply_add"]


def multiply_add(sums: Sequence[Value], a: Sequence[Value], b: Sequence[Value], dtype: str) -> list[Value]:
    """D = A B + C for a 16 x 16 A and a 16 x 8 B of bf16 or f16, C and D in f32. All 32 lanes take part.

    Lane 4 g + t holds, as pairs packed into an i32:

    Args:
        sums: C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1].
        a: A[g][2t, 2t+1], A[g+8][2t, 2t+1], A[g][2t+8, 2t+9], A[g+8][2t+8, 2t+9].
        b: B[2t, 2t+1][g], B[2t+8, 2t+9][g].

    Returns:
        D, as `sums`.

    Raises:
        ValueError: another type than bf16 and f16.
    """
    if dtype not in HALF_TYPES:
        raise ValueError(f"mma.sync multiplies bf16 or f16 here, not {dtype}")

    def operands(words: Sequence[Value]) -> list[ir.Value]:
        return [(bitcast(word, "vector<2xf16>") if dtype == "f16" else word).ir for word in words]

    kind = ir.Attribute.parse(f"#nvvm.mma_type<{dtype}>")
    result = nvvm.MmaOp(
        as_type("!llvm.struct<(f32, f32, f32, f32)>"),
        ir.Attribute.parse("#nvvm.shape<m = 16, n = 8, k = 16>"),
        ir.Attribute.parse("#nvvm.mma_layout<row>"),
        ir.Attribute.parse("#nvvm.mma_layout<col>"),
        operands(a),
        operands(b),
        [value.ir for value in sums],
        multiplicandAPtxType=kind,
        multiplicandBPtxType=kind,
    ).res
    return [wrap(llvm.extractvalue(as_type("f32"), result, [index])) for index in range(4)]
