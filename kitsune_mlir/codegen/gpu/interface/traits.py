"""What the planner, the cost models and the simulator ask about an engine: each engine answers for itself.

None of them knows an engine by name; they ask `engines.registry.traits_of`.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.machine.rates import ENGINES, EngineRates

__all__ = ["Traits"]


@dataclasses.dataclass(frozen=True)
class Traits:
    """Properties of an engine.

    Attributes:
        rates: how its tiles spend their time (`kitsune_mlir.machine.stage_cost`).
        asked_next: engines that are asked where it declines, before the general ones.
        general: it is asked for every task that the others decline, in the registry's order.
        catches_all: it takes anything, and is slow for most of it: users are warned.
        keeps_order: a block does its tiles in order, one after the other: the engine can be at an end of a ring.
        polls_with_all_threads: all threads of a block poll before a tile's first load, so that indices and counters that
            they name come side by side.
        loads_ahead: it loads what nobody writes before its waits end.
        weights_ahead: a hand-off hides behind weights that are on their way: "always", after a task of the same engine
            ("successor"), or "never".
        one_block: its block has a multiprocessor for itself, and keeps it busy.
        crowd: blocks of a map's that share a multiprocessor where no other engine's tasks are in the kernel.
        concurrent: successive tasks that read one tensor and do not wait for each other are planned to run side by side.
        shares_sums: blocks share the sums of a tile where there are few tiles, and one of them adds up what they have.
        spreads_sums: blocks that share a tile add up a part of its columns each.
        f32_products: products of tf32 numbers that one of f32 numbers takes (3xTF32).
        several_products: it does products one after the other in a stage, which has to pay: there are fewer tiles.
        row_updates: it does the tasks that add rows at indices, "atomic" ones or "ordered" ones.
        ends_early: its loops over tiles end where `TaskContext.tiles` says, so that a call may leave out the last of them.
        operand_sums: beside a product it makes the sum of the operand that has the rows (`kitsune.operand_sum`).
        along_rows: it does what goes along rows in an order: scans, sorts.
        windows: it reads a factor window by window, so that a tile asks for what its product needs, once for each window.
        beside_columns: columns up to which gathers and additions to rows run beside its products; None: always.
    """

    rates: EngineRates = ENGINES["generic"]
    asked_next: tuple[str, ...] = ()
    general: bool = False
    catches_all: bool = False
    keeps_order: bool = False
    polls_with_all_threads: bool = False
    loads_ahead: bool = False
    weights_ahead: str = "never"
    one_block: bool = False
    crowd: int = 1
    concurrent: bool = False
    shares_sums: bool = False
    spreads_sums: bool = False
    f32_products: int = 1
    several_products: bool = False
    row_updates: str = ""
    beside_columns: int | None = None
    ends_early: bool = False
    operand_sums: bool = False
    along_rows: bool = False
    windows: bool = False
