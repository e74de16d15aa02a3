"""Deciding how a tile of attention's gradients runs: shared memory, blocks of what is streamed, tensor maps.

A tile has up to 128 rows of the resident operands, 64 for each of two consumer warpgroups. Results take their places at last.
Both sums of keys' wide heads do not fit the registers: then the tile's queries are streamed twice, with a sum each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.engines.attention.gradient_match import GradientPattern, match_gradient
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import costs_of, last_row
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS, WARPS, Box, box_of
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.dialects.attention import Step
from kitsune_mlir.dialects.factors import Factor
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.shared_tile import PANEL_COLS, SharedTile

__all__ = ["GradientPlan", "make_gradient_plan"]

KEY_BLOCK, QUERY_BLOCK = 128, 64
"""Streamed rows of a block at most: with one sum in registers, and with two. With masks or dropout, half as many."""
REGISTERS, MASKED_REGISTERS = 192, 160
"""Of a thread, for sums, a block's scores and the gradients of its probabilities; what masks are made of takes some, too."""
LEAST_BLOCK = 48
"""Streamed rows of a block with both sums in registers: with fewer, products wait for shared memory."""
LANES = 32
"""Of a warp: each that has written numbers of queries' rows, or read them, says so (docs/gpu-executor.md)."""
STEP_ROWS = 16
"""Of a product's step along streamed rows."""
MOST_SLOTS = 6


@dataclasses.dataclass(frozen=True)
class GradientPlan:
    """What was decided for a task.

    Attributes:
        pattern: the body.
        block: streamed rows of a block.
        slots: blocks that the ring holds.
        sweeps: how often the rows are streamed: once, or for each of two sums.
        resident: how the resident operands lie in shared memory, the second from `second_at` on, and the results after them in
            the same places; blocks: how both streamed operands' blocks lie in a slot.
        boxes: TMA's view of the resident operands, of the results (rows of each warpgroup), of the streamed ones.
        ring_at, numbers_at: offsets in shared memory of the ring, and of the numbers of the rows of its blocks, if these are
            queries.
        workers: multiprocessors that tiles of unequal cost are ordered for.
    """

    pattern: GradientPattern
    block: int
    slots: int
    sweeps: int
    resident: tuple[SharedTile, SharedTile]
    blocks: tuple[SharedTile, SharedTile]
    boxes: tuple[Box, ...]
    second_at: int
    ring_at: int
    numbers_at: int
    workers: int

    result_at = 0

    @property
    def keys(self) -> bool:
        """Whether resident rows are keys, and queries are streamed."""
        return self.pattern.gradient.keys

    @property
    def groups(self) -> int:
        """Warpgroups that have rows."""
        return 2 if self.pattern.row_count > GROUP_ROWS else 1

    def resident_at(self, number: int) -> int:
        """Where resident operand `number` is in shared memory."""
        return number * self.second_at

    def result_at_of(self, number: int) -> int:
        """Where result `number` goes: that of the first of two sweeps takes the place of what the second does not read."""
        return self.resident_at(number ^ 1 if self.sweeps > 1 else number)

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a slot."""
        return sum(tile.bytes for tile in self.blocks)

    @property
    def count(self) -> int:
        """Blocks of streamed rows."""
        return -(-self.pattern.length // self.block)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The causal masks."""
        return tuple(step for step in self.pattern.gradient.steps if step.kind == "causal")

    @property
    def masks(self) -> tuple[Step, ...]:
        """Masks and biases that are not causal ones."""
        return tuple(step for step in self.pattern.gradient.steps if step.kind != "causal")

    def costs(self, task: TaskView) -> list[float] | None:
        """Blocks that each tile reads, in the order of their numbers; None if all read the same."""

        def blocks(offsets: Sequence[int]) -> int:
            found = self.count
            for step, offset in zip(self.steps, offsets, strict=True):
                if self.keys:  # the first key is read by the queries from this one on
                    found = min(found, self.count - max(-offset, 0) // self.block)
                else:
                    found = min(found, max(last_row(step) + offset, 0) // self.block + 1)
            return max(found, 0)

        return costs_of(task, self.steps, blocks) if self.steps else None


def make_gradient_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it cannot be done.
    """
    pattern = match_gradient(task)
    plan = _choose(pattern, options)
    results = [window.buffer for window in pattern.results for _ in range(plan.groups)]
    windows = (pattern.scored, pattern.sloped, pattern.streamed, pattern.weighed)
    first, second, *last = (window.buffer for window in windows)
    buffers = [first, second, *results, *last]
    # resident full, empty; results full and empty of each warpgroup; full and empty of the ring's slots
    barriers = [1, roles.CONSUMERS, *[roles.WARPGROUP_THREADS] * 2, *[1] * 2]
    readers = roles.CONSUMERS * WARPS * (LANES if plan.keys else 1)
    barriers += [1 + LANES if plan.keys else 1] * plan.slots + [readers] * plan.slots
    return Plan(
        engine,
        task,
        shared_bytes=plan.numbers_at + (plan.slots * plan.block * 8 if plan.keys else 0),
        threads=roles.THREADS,
        registers=roles.SHARED_REGISTERS,
        barriers=tuple(barriers),
        tensor_maps=tuple(MapUse(buffer, box.map) for buffer, box in zip(buffers, plan.boxes, strict=True)),
        async_reads=True,
        async_writes=True,
        parameters={
            "rows": pattern.row_count,
            "streamed": "queries" if plan.keys else "keys",
            "block": plan.block,
            "slots": plan.slots,
            "sweeps": plan.sweeps,
            "steps": [step.kind for step in pattern.gradient.steps],
        },
        private=plan,
    )


def _choose(pattern: GradientPattern, options: KernelOptions) -> GradientPlan:
    gradient = pattern.gradient
    if pattern.row_count > 2 * GROUP_ROWS:
        raise MatchFailure(f"a tile of {pattern.row_count} rows; {2 * GROUP_ROWS} are done")
    if any(step.kind == "causal" and not set(step.row) <= _positions(pattern) for step in gradient.steps):
        raise MatchFailure("a causal mask that does not go by the queries' rows")
    elements = [-(-size // PANEL_COLS) * PANEL_COLS for size in (pattern.width, pattern.head)]
    masked = any(step.kind != "causal" for step in gradient.steps) or gradient.dropout is not None
    block, sweeps = _block(pattern, masked)
    resident = tuple(SharedTile(2 * GROUP_ROWS, columns, 2) for columns in elements)
    second_at = max(tile.bytes for tile in resident) if sweeps > 1 else resident[0].bytes
    ring_at = second_at + (second_at if sweeps > 1 else resident[1].bytes)
    row = sum(SharedTile(8, columns, 2).bytes for columns in elements) // 8 + (8 if gradient.keys else 0)
    block = min(block, (options.shared_bytes - ring_at) // (2 * row) // STEP_ROWS * STEP_ROWS)
    if block < 2 * STEP_ROWS:
        raise MatchFailure(f"heads of {pattern.width} and {pattern.head} elements do not fit shared memory")
    blocks = tuple(SharedTile(block, columns, 2) for columns in elements)
    slots = min(MOST_SLOTS, (options.shared_bytes - ring_at) // (block * row))
    sides = ("width", "head")
    groups = (0, GROUP_ROWS) if pattern.row_count > GROUP_ROWS else (0,)
    boxes = [_rows(pattern, w, s, c, 2 * GROUP_ROWS) for w, s, c in zip(_resident(pattern), sides, elements, strict=True)]
    for window, side, columns in zip(pattern.results, sides, elements, strict=False):
        boxes += [_rows(pattern, window, side, columns, min(GROUP_ROWS, pattern.row_count - first)) for first in groups]
    for window, side, columns in zip((pattern.streamed, pattern.weighed), sides, elements, strict=True):
        boxes.append(box_of(window, (("key", block), (side, PANEL_COLS)), columns // PANEL_COLS))
    return GradientPlan(
        pattern,
        block,
        slots,
        sweeps,
        (resident[0], resident[1]),
        (blocks[0], blocks[1]),
        tuple(boxes),
        second_at,
        ring_at,
        ring_at + slots * sum(tile.bytes for tile in blocks),
        options.workers,
    )


def _block(pattern: GradientPattern, masked: bool) -> tuple[int, int]:
    """Streamed rows of a block, as many as registers hold beside the sums, and how often the rows are streamed."""
    most = (QUERY_BLOCK if pattern.gradient.keys else KEY_BLOCK) // (2 if masked else 1)
    registers = MASKED_REGISTERS if masked else REGISTERS
    sums = [pattern.width // 2, pattern.head // 2][: len(pattern.results)]
    together = (registers - sum(sums)) // STEP_ROWS * STEP_ROWS
    if len(sums) == 1 or together >= min(LEAST_BLOCK, most):
        return min(most, together), 1
    return min(most, (registers - max(sums)) // STEP_ROWS * STEP_ROWS), 2


def _resident(pattern: GradientPattern) -> tuple[Window, Window]:
    return pattern.scored, pattern.sloped


def _rows(pattern: GradientPattern, window: Window, side: str, columns: int, most: int) -> Box:
    rows = [("row0", min(extent, most)) for extent in pattern.rows]
    return box_of(window, (*rows, (side, PANEL_COLS)), columns // PANEL_COLS)


def _positions(pattern: GradientPattern) -> set[Factor]:
    """Where a causal mask may lie along: the queries' rows."""
    gradient = pattern.gradient
    return set(gradient.along if gradient.keys else gradient.outer)
