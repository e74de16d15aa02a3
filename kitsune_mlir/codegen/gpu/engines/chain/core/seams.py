"""Where joined tensors meet that element-wise steps of a chain read."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Chain, ranges_of
from kitsune_mlir.dialects.match_failure import MatchFailure

__all__ = ["SEAM", "check_seams"]

SEAM = 2 * QUAD
"""Columns of the lanes of a row: joined tensors begin at multiples of it, so that every lane finds its columns at itself."""


def check_seams(chain: Chain, multiple: int | None) -> None:
    """Joined tensors begin at multiples of `multiple` columns where others than products read them; None: products only may.

    Raises:
        MatchFailure: they do not.
    """
    read = {step.op.operands[number] for step in chain.steps.values() if step.kind != "concat" for number in step.operands}
    read |= {layer.start for layer in chain.layers} | {scatter.updates for scatter in chain.scatters}
    starts = {part.start for value in read if isinstance(value.type, ir.ShapedType) for part in ranges_of(chain, value)} - {0}
    if any(multiple is None or start % multiple for start in starts):
        done = "none is" if multiple is None else f"multiples of {multiple} are"
        raise MatchFailure(f"element-wise work on tensors joined at columns {sorted(starts)}; {done} done")
