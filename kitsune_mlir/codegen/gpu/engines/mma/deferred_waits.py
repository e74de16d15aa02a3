"""Waits of a product that can come late: for columns of its rows, which it reads only when its sum has come to them.

A product that counts its columns in groups (`mma.column_groups`) posts to as many slots for a row of tiles, and who reads the
rows has a wait for each group, in order. Nothing but the rows may depend on the waits put off.
Only tasks that share a ring with the one before put waits off: 1536 x 1024 x 4096 and back takes 47.7 us instead of 49.8 on an
H200, 2048 x 1024 x 4096 56.5 instead of 58.2, 2048 x 2048 x 8192 181.4 instead of 183.3. Where blocks begin a task anew it is
no gain: 768 x 2048 x 8192 and back took 80.1 us with waits put off and 78.6 without, others the same.
"""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.dialects.tile_records import Wait

__all__ = ["late_waits"]


def late_waits(plan: MmaPlan) -> list[tuple[int, Wait]]:
    """The first chunk of the sum that needs each of the waits put off, in order; all others come before the first load."""
    task, product = plan.pattern.task, plan.pattern.product
    if not plan.room or plan.ranges or plan.sum.outer or plan.a.transposed or plan.loaders < 2:
        return []
    rows = task.load_of(product.op.operands[product.a])
    if rows is None or rows.writer is None or any(load.buffer.role != "input" for load in task.loads if load is not rows):
        return []
    waits = [wait for wait in task.waits if wait.task == rows.writer]
    alike = {(wait.semaphore.first, wait.constant, wait.rounds, wait.named) for wait in waits}
    if len(waits) < 2 or len(alike) > 1 or waits[0].constant is not None:
        return []
    inner = plan.a.window.dims[-1]
    if inner.side != plan.sum.inner[0] or inner.size != inner.extent:
        return []
    # Tiles of columns are at least as wide as if all of them were equal.
    columns, tiles, before = inner.extent, sum(wait.count for wait in waits), 0
    found: list[tuple[int, Wait]] = []
    for wait in waits:
        if before:
            found.append((before * columns // tiles // plan.sum.chunk, wait))
        before += wait.count
    return found
