"""Which blocks of the streamed rows a tile of gradients reads, and which of them a causal mask cuts."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.value import Value, i32, maximum, minimum
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import causal_limit, last_row
from kitsune_mlir.codegen.gpu.interface.context import TileContext

__all__ = ["BlockRange", "bound_of", "blocks_of"]


@dataclasses.dataclass(frozen=True)
class BlockRange:
    """Blocks `begin` to `end` - 1 (i32), of which those from `whole` to `whole_end` - 1 need no mask."""

    begin: Value
    whole: Value
    whole_end: Value
    end: Value


def bound_of(plan: GradientPlan, row: Value | int, tile: TileContext) -> Value | None:
    """Of resident row `row` of the tile the last streamed row (a key) that the causal masks allow, or the first one (a query);
    None without such masks. It may be outside of what there is."""
    bound: Value | None = None
    for step in plan.steps:
        if plan.keys:
            mine = i32(row) - causal_limit(step, 0, tile)
            bound = mine if bound is None else maximum(bound, mine)
        else:
            mine = causal_limit(step, row if step.row else 0, tile)
            bound = mine if bound is None else minimum(bound, mine)
    return bound


def blocks_of(plan: GradientPlan, tile: TileContext, first: Value | int, last: Value | int) -> BlockRange:
    """The blocks that a tile reads; which of them are whole, for its rows `first` to `last`: none if masks are read."""
    found = _causal_blocks(plan, tile, first, last)
    whole = found.end if plan.keys else found.begin
    return BlockRange(found.begin, whole, whole, found.end) if plan.masks else found


def _causal_blocks(plan: GradientPlan, tile: TileContext, first: Value | int, last: Value | int) -> BlockRange:
    block, count = plan.block, i32(plan.count)
    rows = plan.pattern.row_count
    if plan.keys:
        # Queries beyond the last one have probabilities of 0 by their logarithms.
        lowest, highest = bound_of(plan, 0, tile), bound_of(plan, last, tile)
        if lowest is None or highest is None:
            return BlockRange(i32(0), i32(0), count, count)
        begin = minimum(maximum(lowest, 0) // block, count)
        whole = (maximum(highest, 0) + (block - 1)) // block
        return BlockRange(begin, minimum(maximum(whole, begin), count), count, count)
    whole = i32(plan.pattern.length // block)
    end = count
    for step in plan.steps:
        far = causal_limit(step, last_row(step) if step.row else 0, tile)
        end = minimum(end, (maximum(far + 1, 0) + (block - 1)) // block)
    near = bound_of(plan, minimum(i32(first), rows - 1), tile)
    if near is not None:
        whole = minimum(whole, maximum(near + 1, 0) // block)
    return BlockRange(i32(0), i32(0), minimum(whole, end), end)
