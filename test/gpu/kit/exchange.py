"""Values that warps of a block exchange through shared memory, and reductions over warps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, lane_id
from kitsune_mlir.codegen.gpu.emit.memory import byte_count, load, offset, store
from kitsune_mlir.codegen.gpu.emit.reduce import over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value

__all__ = ["Exchange", "over_warps"]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Shared memory through which warps hand values to each other.

    Attributes:
        pointer: scratch, aligned to 16, of the size that the user of it names.
        sync: a barrier over all threads that take part; called before the scratch is read and before it may be reused.
    """

    pointer: Value
    sync: Callable[[], None]


def over_warps(kind: str, values: Sequence[Value], thread: Value, warps: int, exchange: Exchange) -> list[Value]:
    """Each value (equal over the lanes of its warp) combined over groups of `warps` neighbouring warps, for all threads.

    The scratch holds one value per warp and item: len(values) * (number of warps) * bytes of the type.
    """
    size = byte_count(values[0].type)
    items = len(values)
    warp = thread // 32
    group = warp // warps

    def publish() -> None:
        for index, value in enumerate(values):
            place = (group * items + index) * warps + warp % warps
            store(value, offset(exchange.pointer, place * size))

    if_(lane_id(thread) == 0, publish)
    exchange.sync()
    results = []
    for index in range(items):
        start = offset(exchange.pointer, (group * items + index) * (warps * size))
        parts = [load(offset(start, other * size), values[0].type) for other in range(warps)]
        results.append(over_registers(kind, parts))
    exchange.sync()
    return results
