"""Long sums in few registers: chains of few terms, whose sums are added up in f64, or in chains again, and so on.

What rounding loses of a sum of n terms in one chain grows with n, in chains of m with m * log(n) / log(m). PyTorch's sums are
made that way (ATen/native/cpu/SumKernel.cpp, `cascade_sum`), with chains of 16 or more; its variances are sums in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.combiner import Combiner, combine, identity

__all__ = ["Chain", "chained", "chains_of", "rounded"]

SHORT, LONG = 16, 256
"""Terms of a chain at most."""

Values = list[ir.Value]
Body = Callable[[ops.Index, Values, "Chain | None"], Values]


@dataclass(frozen=True)
class Chain:
    """How sums are cut: chains of `most` terms begin at `first`, those of what chains gave at `totals`, which may be wider."""

    most: int
    first: Values
    totals: Values
    combiners: Sequence[Combiner]

    @property
    def wide(self) -> bool:
        """Whether totals have more digits than terms."""
        return any(one.type != total.type for one, total in zip(self.first, self.totals, strict=True))

    def added(self, totals: Values, sums: Values) -> Values:
        """Totals, and what chains gave."""
        each = zip(self.combiners, totals, sums, strict=True)
        return [combine(combiner, total, rounded(one, total.type)) for combiner, total, one in each]


def rounded(value: ir.Value, kind: ir.Type) -> ir.Value:
    """An f32 or f64 number, or vector of them, as one of another type."""
    if value.type == kind:
        return value
    element = ir.VectorType(kind).element_type if ops.is_vector(value) else kind
    return arith.extf(kind, value) if isinstance(element, ir.F64Type) else arith.truncf(kind, value)


def chains_of(combiners: Sequence[Combiner], first: Values, terms: int, registers: int) -> Chain | None:
    """How vectors of sums of `terms` terms are cut; None where they are short, or the order of terms does not matter.

    The sum of a chain is added to one that has a register, too, where there are so many, else to memory: that costs more.
    """
    if not combiners or any(c.name not in ("arith.addf", "arith.mulf") for c in combiners):
        return None
    short = 4 * len(first) <= registers
    most = SHORT if short else LONG
    if terms <= most:
        return None
    totals = []
    for combiner, value in zip(combiners, first, strict=True):
        lanes = ir.VectorType(value.type).shape[0] if ops.is_vector(value) else 1
        element = combiner.results[0].type
        wide = short and combiner.name == "arith.addf" and isinstance(element, ir.F32Type)
        totals.append(identity(combiner.name, ir.F64Type.get(), lanes) if wide else value)
    return Chain(most, first, totals, combiners)


def chained(extent: int, step: int, terms: int, chain: Chain | None, carried: Values, body: Body) -> Values:
    """Emit a loop whose `body` adds `terms` terms to each sum that it carries, which are totals of `chain` where there is one.

    `body(counter, carried, chain)` is given totals, and the chain, or sums and None.
    """

    def plain(counter: ops.Index, sums: Values) -> Values:
        return body(counter, sums, None)

    if chain is None:
        return ops.loop(0, extent, step, carried, plain)
    if -(-extent // step) * terms <= chain.most:
        return chain.added(carried, ops.loop(0, extent, step, chain.first, plain))
    if 2 * terms > chain.most:
        return _totals(extent, step, chain, carried, lambda counter, totals: body(counter, totals, chain))
    block = chain.most // terms * step

    def link(counter: ops.Index, totals: Values) -> Values:
        return chain.added(totals, ops.loop(counter, _end(counter, block, extent), step, chain.first, plain))

    return _totals(extent, block, chain, carried, link)


def _totals(extent: int, step: int, chain: Chain, carried: Values, body: Callable[[ops.Index, Values], Values]) -> Values:
    """A loop whose body adds one term to each total."""
    if chain.wide or -(-extent // step) <= chain.most:
        return ops.loop(0, extent, step, carried, body)
    block = chain.most * step

    def link(counter: ops.Index, totals: Values) -> Values:
        return chain.added(totals, ops.loop(counter, _end(counter, block, extent), step, chain.totals, body))

    return _totals(extent, block, chain, carried, link)


def _end(counter: ops.Index, block: int, extent: int) -> ops.Index:
    end = ops.add(counter, block)
    return ops.least(end, extent) if extent % block else end
