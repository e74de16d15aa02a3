"""When each tensor of a chain is computed, and which ones stay in registers from one product to the next."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.core.body import Chain, Scatter
from kitsune_mlir.codegen.gpu.engines.chain.core.comparisons import Compared, comparisons_of, same_comparison, spreads
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.tile_records import Store

__all__ = ["Order", "order_of"]


@dataclasses.dataclass(frozen=True)
class Order:
    """The times of a chain: time i is right after product i, -1 is before the first.

    Attributes:
        ready: time at which a tensor can be computed; what depends on loads only has -1.
        kept: for each product, the tensors that are in registers while the next one runs. They are of times up to the
            product's and are used after it; what is of time -1 is computed again where it is used.
        stores, scatters: for each product, the stores and additions to rows that follow it.
        compared: what is kept as bits: its last use but comparisons is before these.
    """

    ready: dict[ir.Value, int]
    kept: tuple[tuple[ir.Value, ...], ...]
    stores: tuple[tuple[Store, ...], ...]
    scatters: tuple[tuple[Scatter, ...], ...]
    compared: tuple[Compared, ...] = ()


def order_of(chain: Chain, bits: bool = False) -> Order:
    """Products run in the order of the body; everything else as early as it can, so that sums are soon 16-bit numbers.

    Args:
        bits: tensors that are only compared later may be kept as bits, and those of rows and columns are made where they are
            used.
    """
    ready: dict[ir.Value, int] = {layer.result: number for number, layer in enumerate(chain.layers)}

    def sources(value: ir.Value) -> list[ir.Value]:
        step = chain.steps.get(value) if value not in ready else None
        return [step.op.operands[number] for number in step.operands] if step else []

    def time(value: ir.Value) -> int:
        for each in postorder([value], sources):
            if each not in ready:
                ready[each] = max((ready[source] for source in sources(each)), default=-1)
        return ready[value]

    last: dict[ir.Value, int] = {}

    def parts_of(value: ir.Value) -> list[ir.Value]:
        step = chain.steps.get(value)
        if step is None or step.kind == "concat":
            return list(step.op.operands) if step is not None else []
        given = [step.op.operands[number] for number in step.operands] if bits and step.kind == "map" else []
        made = [source for source in given if time(source) >= 0]
        return made if spreads(step.op, made) else []

    def used(value: ir.Value, at: int) -> None:
        for each in postorder([value], parts_of):
            if not parts_of(each):
                last[each] = max(last.get(each, -1), at)

    late: dict[ir.Value, list[tuple[int, list[ir.Operation]]]] = {}
    for value, step in chain.steps.items():
        if step.kind != "concat":
            for number in step.operands:
                source = step.op.operands[number]
                tests = comparisons_of(step.op, number) if bits and step.kind == "map" and time(source) >= 0 else None
                if tests is None or parts_of(source):
                    used(source, time(value))
                else:
                    late.setdefault(source, []).append((time(value), tests))
    for number, layer in enumerate(chain.layers):
        used(layer.start, number)
        for part in layer.ranges:
            used(part.value, number)
    compared = []
    for value, readers in late.items():
        known = max(last.get(value, -1), time(value))
        after = [(at, test) for at, tests in readers for test in tests if at > known]
        if all(same_comparison(test, after[0][1]) for _, test in after):
            if after:
                compared.append(Compared(value, tuple(test for _, test in after), time(value), max(at for at, _ in after)))
        else:
            used(value, max(at for at, _ in after))
        used(value, min(known, max(at for at, _ in readers)))
    made = [value for value in (*ready, *last) if value in chain.steps or any(value == layer.result for layer in chain.layers)]
    count = len(chain.layers)
    kept = tuple(
        tuple(dict.fromkeys(v for v in made if 0 <= time(v) <= number < last.get(v, -1) and len(shape_of(v)) in (1, 2)))
        for number in range(count)
    )
    stores = tuple(
        tuple(store for store in chain.task.stores if max(0, time(store.tensor)) == number) for number in range(count)
    )
    scatters = tuple(
        tuple(scatter for scatter in chain.scatters if max(0, time(scatter.updates)) == number) for number in range(count)
    )
    return Order(ready, kept, stores, scatters, tuple(compared))
