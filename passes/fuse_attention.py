"""`kitsune-fuse-attention`: write each attention as one loop nest over (batch, heads, rows), without reshapes inside.

An attention arrives as two batched products with a softmax between them, taken apart by reshapes and transpositions. Here
it is read (`dialects.attention`) and written again in one fixed form, whose operations all share the dimensions of the
result but its last: q, k and v are read where they lie in memory, whatever the order of their dimensions, and heads that share
keys read the same keys. The operations are marked, and `form-stages` makes one stage of each mark.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.attention.tiles import JOINED_ROWS
from kitsune_mlir.dialects.attention import Attention, read_attention
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.attention.write import write_attention

from .base import Pass
from .normalize import run_upstream
from .remarks import remark

__all__ = ["FuseAttention", "obstacle"]

WIDEST_HEAD = 256
TMA_DIMENSIONS = 5


def obstacle(attention: Attention) -> str | None:
    """Why the `attention` engine would not do an attention that was understood; None if it would.

    TMA reads q, k and v: their elements are neighbours in memory, and distances between rows are multiples of 16 bytes.
    """
    for name, factors in (("keys", attention.column), ("a head's elements", attention.width), ("values", attention.head)):
        if len(factors) != 1:
            return f"{name} have {len(factors)} dimensions wider than 1"
    width, head = attention.width[0].size, attention.head[0].size
    if max(width, head) > WIDEST_HEAD or width % 8 or head % 8:
        return f"heads of {width} and {head} elements; multiples of 8 up to {WIDEST_HEAD} are done"
    for operand in (attention.query, attention.result, *attention.keys, *attention.values):
        if sum(len(dim) for dim in operand.dims) > TMA_DIMENSIONS:
            return f"an operand has more than {TMA_DIMENSIONS} dimensions"
    if str(ir.ShapedType(attention.result.value.type).element_type) != attention.dtype:
        return "the result is not rounded to the queries' type"
    operands = ((attention.query, width), *((part, width) for part in attention.keys))
    for operand, size in (*operands, *((part, head) for part in (*attention.values, attention.result))):
        if not operand.dims or not operand.dims[-1] or operand.dims[-1][-1].size != size:
            return "the elements of a head are not neighbours in memory"
        if operand.dims[-1][-1] not in (attention.width[0], attention.head[0]):
            return "the elements of a head are not neighbours in memory"
    return None


def _shared_rows(attention: Attention) -> int:
    """Rows of the result that read the same keys."""
    seen = {factor for dim in attention.keys[0].dims for factor in dim}
    rows = 1
    for factor in attention.outer:
        rows *= 1 if factor in seen else factor.size
    return rows


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Write softmax(scale * q k^T, masked) v as one loop nest over batch, heads and rows, for the `attention` engine.

    Only for targets that have the engine; others keep the two products. `--remarks` says of each attention that stays as it
    is why. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-fuse-attention"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        number = 0
        with module.context, ir.Location.unknown():
            for op in [op for op in walk(module) if is_contraction(op)]:
                try:
                    attention = read_attention(op)
                except MatchFailure:
                    continue
                if (reason := obstacle(attention)) is not None:
                    remark(op, f"attention stays two products: {reason}")
                    continue
                # Where all rows that share keys are one tile, a concatenation of keys is read part by part.
                write_attention(attention, number, _shared_rows(attention) <= JOINED_ROWS)
                number += 1
        if number:
            run_upstream(module, "canonicalize,cse")
