"""Long sums in few registers: chains of few terms, whose sums are added up in chains again, and so on.

What rounding loses of a sum of n terms in one chain grows with n, in chains of m with m * log(n) / log(m). PyTorch's sums are
made that way (ATen/native/cpu/SumKernel.cpp, `cascade_sum`), with chains of 16 or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.combiner import Combiner, combine

__all__ = ["Chain", "chained", "most_terms"]

SHORT, LONG = 16, 256
"""Terms of a chain at most."""

Body = Callable[[ops.Index, list[ir.Value]], list[ir.Value]]


@dataclass(frozen=True)
class Chain:
    """How sums are cut: chains of `most` terms, which begin at `first`; `combiners` add what two chains gave."""

    most: int
    first: list[ir.Value]
    combiners: Sequence[Combiner]

    def added(self, a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """What two chains gave, as one."""
        return [combine(*each) for each in zip(self.combiners, a, b, strict=True)]


def most_terms(combiners: Sequence[Combiner], results: int, registers: int) -> int | None:
    """The most terms of a chain of each of so many vectors of results; None where the order of terms does not matter.

    The sum of a chain is added to one that has a register, too, where there are so many, else to memory: that costs more.
    """
    if not combiners or any(c.name not in ("arith.addf", "arith.mulf") for c in combiners):
        return None
    return SHORT if 4 * results <= registers else LONG


def chained(extent: int, step: int, terms: int, chain: Chain | None, carried: list[ir.Value], body: Body) -> list[ir.Value]:
    """Emit `ops.loop(0, extent, step, carried, body)`, where `body` adds `terms` terms to each carried sum, in chains."""
    if chain is None or -(-extent // step) * terms <= chain.most:
        return ops.loop(0, extent, step, carried, body)
    alone = 2 * terms > chain.most  # one iteration is a chain
    block = step if alone else chain.most // terms * step

    def link(counter: ops.Index, sums: list[ir.Value]) -> list[ir.Value]:
        if alone:
            return chain.added(sums, body(counter, chain.first))
        end = ops.add(counter, block)
        if extent % block:
            end = ops.least(end, extent)
        return chain.added(sums, ops.loop(counter, end, step, chain.first, body))

    return chained(extent, block, 1, chain, carried, link)
