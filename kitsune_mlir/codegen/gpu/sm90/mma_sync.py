"""Products of one warp on tensor cores: `mma.sync`, m16n8k16 and, of tf32 numbers, m16n8k8 (PTX ISA, "Matrix fragments")."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.convert import rounded_to_tf32
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, bitcast, wrap
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["multiply_add", "multiply_add_f32"]


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

    return _mma(sums, operands(a), operands(b), dtype, 16)


def multiply_add_f32(sums: Sequence[Value], a: Sequence[Value], b: Sequence[Value], exact: bool) -> list[Value]:
    """D = A B + C for a 16 x 8 A and an 8 x 8 B of f32, C and D in f32. All 32 lanes take part.

    Lane 4 g + t holds, as i32 of the numbers' bits:

    Args:
        sums: as for `multiply_add`.
        a: A[g][t], A[g+8][t], A[g][t+4], A[g+8][t+4].
        b: B[t][g], B[t+4][g].
        exact: the product of each operand's two tf32 parts (`contraction/tf32x3.py`), not of the numbers cut off to tf32.

    Returns:
        D, as `sums`.
    """
    if not exact:
        return _mma(sums, [word.ir for word in a], [word.ir for word in b], "tf32", 8)
    (upper_a, rest_a), (upper_b, rest_b) = _parts(a), _parts(b)
    for left, right in ((rest_a, upper_b), (upper_a, rest_b), (upper_a, upper_b)):
        sums = _mma(sums, left, right, "tf32", 8)
    return list(sums)


def _parts(words: Sequence[Value]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Numbers rounded to tf32, and the rests."""
    upper = [rounded_to_tf32(word) for word in words]
    rests = [bitcast(bitcast(word, "f32") - bitcast(part, "f32"), "i32") for word, part in zip(words, upper, strict=True)]
    return [part.ir for part in upper], [rest.ir for rest in rests]


def _mma(sums: Sequence[Value], a: list[ir.Value], b: list[ir.Value], dtype: str, k: int) -> list[Value]:
    kind = ir.Attribute.parse(f"#nvvm.mma_type<{dtype}>")
    result = nvvm.MmaOp(
        as_type("!llvm.struct<(f32, f32, f32, f32)>"),
        ir.Attribute.parse(f"#nvvm.shape<m = 16, n = 8, k = {k}>"),
        ir.Attribute.parse("#nvvm.mma_layout<row>"),
        ir.Attribute.parse("#nvvm.mma_layout<col>"),
        a,
        b,
        [value.ir for value in sums],
        multiplicandAPtxType=kind,
        multiplicandBPtxType=kind,
    ).res
    return [wrap(llvm.extractvalue(as_type("f32"), result, [index])) for index in range(4)]
