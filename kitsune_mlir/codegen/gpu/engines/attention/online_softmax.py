"""Scores in registers: scaling, biases and masks, and the online softmax over blocks of keys.

A thread holds pairs of neighbouring keys in two rows, 8 apart (`sm90.wgmma`). All exponentials are powers of 2:
the scale and log2(e) are one factor, which an FMA applies on the way.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.approx_math import LOG2_E, exp2, log2
from kitsune_mlir.codegen.gpu.emit.reduce import over_lanes, over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, f32, fma, i32, maximum, minimum, select
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import causal_limit, part_of
from kitsune_mlir.codegen.gpu.engines.attention.masks import Masks, rows_of_masks
from kitsune_mlir.codegen.gpu.engines.attention.plan import GROUP_ROWS, AttentionPlan
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import CONSUMERS
from kitsune_mlir.codegen.gpu.sm90.wgmma import register_column
from kitsune_mlir.dialects.attention import Step

__all__ = ["ROW_LANES", "Scores", "Softmax"]

ROW_LANES = (1, 2)
"""Differences, by exclusive or, between the four lanes that share a row of an accumulator."""


@dataclasses.dataclass(frozen=True)
class Softmax:
    """What a thread knows of its two rows so far: the maximum, and its own part of the sum of powers of 2.

    The maximum is of the scores as they leave the product if nothing is added to them, and of scaled ones otherwise.
    """

    top: tuple[Value, Value]
    total: tuple[Value, Value]

    @property
    def values(self) -> list[Value]:
        """For loops to carry."""
        return [*self.top, *self.total]

    @staticmethod
    def of(values: Sequence[Value]) -> Softmax:
        """From what a loop carried."""
        return Softmax((values[0], values[1]), (values[2], values[3]))


class Scores:
    """Evaluates a tile's scores for one consumer.

    Args:
        plan: what was decided.
        tile: the tile.
        row: first of the thread's rows in the tile, i32; the other is row + 8.
        lane: index of the thread in its warp.
        first_key: the first of a block's keys that it has scores of.
    """

    def __init__(self, plan: AttentionPlan, tile: TileContext, row: Value, lane: Value, first_key: Value | int = 0):
        self.plan, self.tile = plan, tile
        self.attention = plan.pattern.attention
        self.col = (lane & 3) * 2 + first_key
        covered, drops = GROUP_ROWS if plan.split else CONSUMERS * GROUP_ROWS, self.attention.dropout is not None
        self.rows = [self._rows(one) for one in rows_of_masks(row, plan.pattern.row_count, covered, drops)]
        self.masks = Masks(plan.pattern.sides, plan.pattern.loads, tile, self.rows)
        self.steps = self.attention.steps
        if self.attention.dropout is not None:
            self.masks.prepare(self.attention.dropout.tree)
        self.limits = self._limits()
        self.columns = plan.pattern.keys
        self.pure = all(step.kind != "bias" and step.number == -math.inf for step in self.steps) and self.attention.scale > 0
        """Whether scores are only scaled and masked: then the scale is applied with the maximum, in one FMA."""
        self.factor = self.attention.scale * LOG2_E

    @property
    def everywhere(self) -> bool:
        """Whether every block needs masks or biases, not only those at the end."""
        return len(self.plan.pattern.parts) > 1 or any(step.kind != "causal" for step in self.steps) or not self.pure

    def _rows(self, row: Value) -> list[Value]:
        """The indices of a row of the tile along each row dimension."""
        extents = self.plan.pattern.rows
        found: list[Value] = []
        for extent in reversed(extents[1:]):
            found.insert(0, row % extent)
            row = row // extent
        return [row, *found] if extents else []

    def _limits(self) -> list[Value] | None:
        """For each of the two rows the last key that the causal mask allows."""
        limits: list[Value] | None = None
        for step in self.steps:
            if step.kind == "causal":
                mine = [self._limit(step, half) for half in range(2)]
                limits = mine if limits is None else [minimum(a, b) for a, b in zip(limits, mine, strict=True)]
        return limits

    def _along(self, step: Step, half: int) -> Value:
        index = i32(0)
        for factor in step.row:
            index = index * factor.size + self._row_of(factor, half)
        return index

    def _row_of(self, factor, half: int) -> Value:
        return self.rows[half][int(self.plan.pattern.sides[factor].removeprefix("row"))]

    def unmasked_blocks(self, first_row: Value | int = 0) -> Value:
        """How many blocks, from the first, need no mask at all (only of tiles without biases and other masks)."""
        whole = i32(self.columns // self.plan.block)
        for step in self.steps:
            if step.kind == "causal":
                limit = causal_limit(step, i32(first_row if step.row else 0), self.tile, self.plan.pattern.loads)
                whole = minimum(whole, maximum(limit + 1, 0) // self.plan.block)
        return whole

    # --- masks and biases --------------------------------------------------------------------------------------------

    def masked(self, scores: list[Value], block: Value) -> list[Value]:
        """Scores of a block with everything applied; raw ones if `pure`, otherwise scaled by log2(e) too."""
        base, inside = self._place(block)
        changed = list(scores)
        for register in range(len(scores)):
            half = register // 2 % 2
            key = base + (register_column(register) + self.col)
            changed[register] = self._element(scores[register], half, key, inside)
        return changed

    def _place(self, block: Value) -> tuple[Value, Value]:
        """The first key of a block, and the first key that its part does not have any more."""
        parts = self.plan.pattern.parts
        starts = list(itertools.accumulate((part.size for part in parts), initial=0))
        within, first_key, end = i32(0), i32(0), i32(0)
        for place, (number, local) in enumerate(part_of(self.plan, block)):
            mine = (local, i32(starts[number]), i32(starts[number + 1]))
            if place:
                here = local >= 0
                mine = [select(here, new, old) for new, old in zip(mine, (within, first_key, end), strict=True)]
            within, first_key, end = mine
        return first_key + within * self.plan.block, end

    def _element(self, score: Value, half: int, key: Value, end: Value) -> Value:
        value = score if self.pure else score * self.factor
        inside = key < end
        if self.pure:
            if self.limits is not None:
                inside = inside & (key <= self.limits[half])
            for step in self.steps:
                if step.kind == "keep":
                    inside = inside & self.masks.value(step.tree, half, minimum(key, end - 1))
            return select(inside, value, f32(-math.inf))
        there = minimum(key, end - 1)
        for step in self.steps:
            if step.kind == "bias":
                value = fma(cast(self.masks.value(step.tree, half, there), "f32"), LOG2_E, value)
            else:
                keep = key <= self._limit(step, half) if step.kind == "causal" else self.masks.value(step.tree, half, there)
                value = select(keep, value, f32(step.number * LOG2_E))
        return select(inside, value, f32(-math.inf))

    def _limit(self, step: Step, half: int) -> Value:
        return causal_limit(step, self._along(step, half), self.tile, self.plan.pattern.loads)

    def kept(self, weights: list[Value], block: Value) -> list[Value]:
        """A block's weights with those that dropout drops as 0; the others are not larger yet."""
        dropout = self.attention.dropout
        if dropout is None:
            return weights
        base, end = self._place(block)
        base = base + self.col  # the constant comes last: as for rows, LLVM sees which keys have numbers in common
        found = list(weights)
        for register, weight in enumerate(weights):
            key = base + register_column(register)
            if self.columns % self.plan.block and self.plan.pattern.loads:
                key = minimum(key, end - 1)
            found[register] = select(self.masks.value(dropout.tree, register // 2 % 2, key), weight, f32(0.0))
        return found

    # --- softmax -----------------------------------------------------------------------------------------------------

    def weigh(
        self, scores: list[Value], before: Softmax | None, masked: bool
    ) -> tuple[list[Value], Softmax, tuple[Value, Value] | None]:
        """Powers of 2 of a block's scores, relative to the maximum so far.

        Args:
            before: what the blocks before gave; None for the first.
            masked: rows may have no key yet, whose maximum is minus infinity.

        Returns:
            The weights, the new state, and the factors that bring sums of the blocks before to the new maximum.
        """
        factor = self.factor if self.pure else 1.0
        tops, totals, factors, weights = [], [], [], list(scores)
        for half in range(2):
            mine = [register for register in range(len(scores)) if register // 2 % 2 == half]
            top = over_lanes("max", over_registers("max", [scores[register] for register in mine]), ROW_LANES)
            if before is not None:
                top = maximum(top, before.top[half])
            safe = select(top == -math.inf, f32(0.0), top) if masked else top
            shift = safe * -factor
            for register in mine:
                weights[register] = exp2(fma(scores[register], factor, shift) if factor != 1.0 else scores[register] + shift)
            total = over_registers("add", [weights[register] for register in mine])
            if before is not None:
                old = before.top[half]
                rescale = exp2(fma(old, factor, shift) if factor != 1.0 else old + shift)
                factors.append(rescale)
                total = fma(before.total[half], rescale, total)
            tops.append(top)
            totals.append(total)
        state = Softmax((tops[0], tops[1]), (totals[0], totals[1]))
        return weights, state, (factors[0], factors[1]) if before is not None else None

    def total(self, part: Value) -> Value:
        """A row's sum, of what each of the threads that share the row has."""
        return over_lanes("add", part, ROW_LANES)

    def logarithm(self, top: Value, total: Value) -> Value:
        """The logarithm of a row's sum of exponentials of scores; of a row without any key infinity if guarded."""
        found = (fma(top, self.factor if self.pure else 1.0, log2(total))) * (1 / LOG2_E)
        return select(total == 0.0, f32(math.inf), found) if self.attention.guarded else found

    def inverse(self, total: Value) -> Value:
        """One over the sum of a row, with dropout times what is kept grows by; of a row without any key over 1 if guarded (its
        weighted sum is 0), else infinity."""
        if self.attention.guarded:
            total = select(total == 0.0, f32(1.0), total)
        dropout = self.attention.dropout
        return f32(1.0 if dropout is None else dropout.factor) / total
