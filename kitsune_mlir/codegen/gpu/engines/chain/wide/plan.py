"""Planning a chain of wide layers: up to 512 columns, twice what a warpgroup has accumulators for.

Each layer is multiplied in two *passes*, a half of its columns each. A warpgroup keeps its 64 rows of what the layer reads in
shared memory, because both passes read all of it; what the first pass made waits in registers, as 16-bit numbers, until the
second is done, and then both overwrite what the layer read. Weights stream through a ring that both warpgroups read, so every
byte of them serves 128 rows. TMA brings a weight's rows (the layer's columns) in an order in which a lane gets eight columns
side by side: then rows are read, stored and added in pieces of 16 bytes, without exchanges between lanes.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.emit.value import Value, i32, select
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Chain, Layer, addition_of
from kitsune_mlir.codegen.gpu.engines.chain.core.column_vectors import vectors_of
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import Order, order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import RUN
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import Source, align, sides_of, source_of
from kitsune_mlir.codegen.gpu.engines.chain.core.places import Places
from kitsune_mlir.codegen.gpu.engines.chain.core.records import GROUP_ROWS, Output, RingPlan
from kitsune_mlir.codegen.gpu.engines.chain.core.scatter_rows import scratch_bytes
from kitsune_mlir.codegen.gpu.engines.chain.core.seams import check_seams
from kitsune_mlir.codegen.gpu.engines.chain.resident.plan import Maps
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Store, TaskView
from kitsune_mlir.errors import CompileError
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = [
    "PANEL",
    "PANEL_BYTES",
    "ROW_COLS",
    "WARP_COLS",
    "Pass",
    "WideLayer",
    "WidePlan",
    "make_wide_plan",
    "settled_of",
    "weight_tile",
]

PANEL = 64
"""Columns of a panel: 128 bytes a row, the widest swizzle."""
PANEL_BYTES = GROUP_ROWS * PANEL * 2
WARP_COLS = 32
"""Columns that the four lanes of a row have together, eight each: what a layer's columns are a multiple of."""
ROW_COLS = 32 * RUN
"""Columns that a warp has of a row at a time: what rows that are finished one by one are a multiple of."""
MOST_COLS = 512
PASS_COLS = 128
"""Columns of a pass: more would leave no shared memory for vectors along the columns."""
MOST_STAGES = 8
LEAST_STAGES = 2
LEAST_SLOTS = 2
"""Places for panels: a product with one starts before the product with the one before is known to be complete."""
SETTLED_WORDS = 128
"""Registers for a layer's results."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """Columns [first, first + cols) of a layer."""

    first: int
    cols: int

    @property
    def blocks(self) -> range:
        """The blocks of 8 columns, numbered in the layer."""
        return range(self.first // 8, (self.first + self.cols) // 8)

    def registers(self) -> list[int]:
        """For each accumulator of wgmma, its place in the order of blocks, halves and lanes of the pass.

        The weight's rows are in shared memory so that accumulator block p * G + g of the G groups of 32 columns holds pair p
        of every lane's eight columns of group g.
        """
        groups = self.cols // WARP_COLS
        return [4 * (4 * group + pair) + element for pair in range(4) for group in range(groups) for element in range(4)]


@dataclasses.dataclass(frozen=True)
class WideLayer:
    """How a layer is multiplied.

    Attributes:
        layer: the product.
        passes: its columns.
        maps: number of the weight's tensor map, of each pass.
        panels: whole panels of 64 columns of the sum.
        tail: columns of the sum behind them, a multiple of 16 below 64.
        settled: the 16-bit tensors that its sums become.
    """

    layer: Layer
    passes: tuple[Pass, ...]
    maps: tuple[int, ...]
    panels: int
    tail: int
    settled: tuple[ir.Value, ...]


@dataclasses.dataclass(frozen=True)
class WidePlan(RingPlan):
    """What the engine decided.

    Attributes:
        layers: of the chain.
        sources: what the first layer reads, and its tensor map.
        stays: whether all of it fits the places for panels; else it is loaded again for every pass, place after place.
        rows: the places for panels.
        by_rows: what follows the last product is done row by row (`chain.wide.epilogue`).
    """

    layers: tuple[WideLayer, ...]
    sources: tuple[tuple[Source, int], ...]
    stays: bool
    rows: Places
    by_rows: bool
    run: ClassVar[int] = RUN

    @property
    def loads(self) -> int:
        """Panels of rows that come in a tile; number i goes to place i % slots."""
        return self.layers[0].panels * (1 if self.stays else len(self.layers[0].passes))

    @property
    def slots(self) -> int:
        """Places for panels of a warpgroup."""
        return self.rows.depth

    def place(self, load: Value) -> Value:
        """Where a tile's load of that number goes."""
        return load if self.stays else load % self.slots

    def parity(self, load: Value, count: Value) -> Value:
        """Parity of "full" for load number `load` of a block's tile number `count`."""
        if self.stays:
            return count & 1
        turns, more = divmod(self.loads, self.slots)
        each = select(load % self.slots < more, i32(turns + 1), i32(turns)) if more else i32(turns)
        return (count * each + load // self.slots) & 1


def make_wide_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it is no chain of wide layers, or too large for a block.
    """
    if options.chip != "sm_90a":
        raise MatchFailure(f"wgmma needs sm_90a, not {options.chip}")
    chain = match_chain(task)
    order = order_of(chain)
    groups = 1 if chain.rows <= GROUP_ROWS else 2
    if chain.rows > GROUP_ROWS * groups or (chain.rows % (GROUP_ROWS * groups) and task.tiles > 1):
        raise MatchFailure(
            f"{task.tiles} tiles of {chain.rows} rows; up to {2 * GROUP_ROWS}, several a multiple of {GROUP_ROWS}"
        )
    check_seams(chain, None)
    for number, layer in enumerate(chain.layers):
        _check_layer(layer)
        _check_factor(chain, order, number)
    for scatter in chain.scatters:
        if addition_of(scatter).width != RUN:
            raise MatchFailure("rows are added in pieces of 16 bytes of 16-bit numbers")
    outputs = tuple(_output(store) for store in task.stores)
    maps = Maps()
    sources = [_source(chain, part.value) for part in chain.layers[0].ranges]
    layers = tuple(_layer(chain, order, number, maps) for number in range(len(chain.layers)))
    slots = max(LEAST_SLOTS, *(-(-layer.cols // PANEL) for layer in chain.layers[:-1]), 0)
    stage_bytes = max(part.cols for layer in layers for part in layer.passes) * PANEL * 2
    rows_bytes = groups * slots * PANEL_BYTES
    vectors, vector_bytes = vectors_of(chain, True)
    stages = min(MOST_STAGES, (options.shared_bytes - rows_bytes - vector_bytes) // stage_bytes)
    rows = Places(stages * stage_bytes, PANEL_BYTES, slots, groups, 2 * stages)
    vectors = {key: dataclasses.replace(v, offset=v.offset + rows.end) for key, v in vectors.items()}
    if stages < LEAST_STAGES:
        raise MatchFailure(f"rows of {rows_bytes} bytes leave no room for {LEAST_STAGES} stages of {stage_bytes} bytes")
    plan = WidePlan(
        chain, order, groups, vectors, outputs, stages, stage_bytes, layers,
        tuple((source, maps.add(source.window, source.maps[0], COL)) for source in sources),
        layers[0].panels <= slots, rows, _by_rows(chain, order, layers[-1], slots),
    )  # fmt: skip
    return Plan(
        engine=engine,
        task=task,
        shared_bytes=rows.end + vector_bytes,
        threads=roles.THREADS,
        registers=roles.SHARED_REGISTERS,
        barriers=(*[1] * stages, *[groups] * stages, *rows.arrivals),
        tensor_maps=tuple(maps.uses),
        scratch_bytes=scratch_bytes(chain),
        async_reads=any(not source.window.constant for source in sources),
        parameters={
            "layers": [[layer.depth, layer.cols] for layer in chain.layers],
            "rows": chain.rows,
            "passes": [len(layer.passes) for layer in layers],
            "weights": f"ring of {stages} x {stage_bytes} bytes",
            "sources": ["TMA" if plan.stays else "TMA, for every pass"] * len(sources),
        },
        private=plan,
    )


def _layer(chain: Chain, order: Order, number: int, maps: Maps) -> WideLayer:
    layer = chain.layers[number]
    window, passes = Window.of(layer.weight, layer.sides), _passes(layer.cols)
    if layer.depth % 16:
        raise MatchFailure(f"a sum of {layer.depth} terms; multiples of 16 are done")
    numbers = tuple(maps.add(window, _weight_map(window, layer.cols, part), SUM) for part in passes)
    settled = settled_of(chain, order, number)
    return WideLayer(layer, passes, numbers, layer.depth // PANEL, layer.depth % PANEL, settled)


def _by_rows(chain: Chain, order: Order, last: WideLayer, slots: int) -> bool:
    """Whether rows are finished one by one: where they are reduced or added to others, and fit the places of panels."""
    reduced = any(step.kind == "reduce" and order.ready[value] == len(chain.layers) - 1 for value, step in chain.steps.items())
    fits = last.layer.cols % ROW_COLS == 0 and last.layer.cols <= slots * PANEL and len(last.settled) == 1
    return fits and (reduced or bool(order.scatters[-1]))


def _check_layer(layer: Layer) -> None:
    window = Window.of(layer.weight, layer.sides)
    if layer.cols % WARP_COLS or layer.cols > MOST_COLS:
        raise MatchFailure(f"a layer of {layer.cols} columns; multiples of {WARP_COLS} up to {MOST_COLS} are done")
    if len(window.dims) != 2 or window.stride(SUM) != 1:
        raise MatchFailure("a weight whose sums are not neighbours in memory")
    if any(dim.start != 0 or dim.size != dim.extent for dim in window.dims if dim.side == COL):
        raise MatchFailure("a part of a weight's columns")


def _check_factor(chain: Chain, order: Order, number: int) -> None:
    """The first layer reads memory; every other one reads what the one before made, and that is nowhere else needed later."""
    layer = chain.layers[number]
    computed = [chain.task.load_of(part.value) is None and chain.gather(part.value) is None for part in layer.ranges]
    if not number:
        if any(computed):
            raise MatchFailure("the first layer's factor is computed")
        return
    if computed != [True]:
        raise MatchFailure("a later layer reads memory, or several tensors")
    value = layer.ranges[0].value
    if order.ready[value] != number - 1:
        raise MatchFailure("a layer reads what was made before the layer before")
    for use in value.uses:
        user = use.owner.operation
        times = [order.ready.get(result, -1) for result in user.results]
        if user != layer.op and any(time >= number for time in times):
            raise MatchFailure("a layer's factor is used after the layer")
    if any(kept != value for kept in order.kept[number - 1]):
        raise MatchFailure("a tensor stays in registers from one layer to the next")


def _output(store: Store) -> Output:
    shape, window = shape_of(store.tensor), Window.of(store, sides_of(store.tensor))
    if len(shape) == 1:
        return Output(store, None, None)
    if len(shape) != 2 or shape[1] % WARP_COLS or window.dtype not in HALF_TYPES:
        raise MatchFailure(f"a result of shape {shape} of {window.dtype}")
    if window.stride(COL) != 1 or window.align((COL,)) != 16:
        raise MatchFailure("a result whose rows are not aligned to 16 bytes")
    return Output(store, None, None, True)


def settled_of(chain: Chain, order: Order, number: int) -> tuple[ir.Value, ...]:
    """The 16-bit tensors that element-wise steps make of a layer's sums, block by block.

    Raises:
        MatchFailure: something else reads the sums before they are rounded, or there are too many tensors.
    """
    found: dict[ir.Value, None] = {}
    pending = [chain.layers[number].result]
    while pending:
        value = pending.pop()
        if any(store.tensor == value for store in chain.task.stores):
            raise MatchFailure("sums are stored as f32")
        for use in value.uses:
            step = next((chain.steps[r] for r in use.owner.operation.results if r in chain.steps), None)
            if step is None or step.kind != "map" or step.op.name != "linalg.generic":
                raise MatchFailure("sums are read as f32 by more than element-wise steps")
            for result in step.op.results:
                if len(shape_of(result)) != 2 or order.ready[result] != number:
                    raise MatchFailure("sums are combined with those of another layer")
                if str(ir.ShapedType(result.type).element_type) in HALF_TYPES:
                    found[result] = None
                elif result not in pending:
                    pending.append(result)
    words = sum(align(shape_of(value)[1], 8) // 4 for value in found)
    if words > SETTLED_WORDS:
        raise MatchFailure(f"a layer's results take {words} registers; there are {SETTLED_WORDS}")
    return tuple(found)


def _passes(cols: int) -> tuple[Pass, ...]:
    groups = cols // WARP_COLS
    count = -(-cols // PASS_COLS)
    first, passes = 0, []
    for number in range(count):
        size = WARP_COLS * (groups // count + (number < groups % count))
        passes.append(Pass(first, size))
        first += size
    return tuple(passes)


def _source(chain: Chain, value: ir.Value) -> Source:
    source = source_of(chain, value, GROUP_ROWS)
    if source is None or not source.maps or source.length % PANEL:
        why = source.why if source is not None and source.why else f"its rows are no multiple of {PANEL} columns"
        raise MatchFailure(f"the first layer's factor does not come by TMA in whole panels: {why}")
    return source


def _weight_map(window: Window, cols: int, part: Pass) -> TensorMap:
    """TMA's view of a weight's rows (columns of the layer) 32 g + 8 q + 2 p + e as dimensions g, q, p, e, of which p is one
    at a time: so rows come in the order p, g, q, e.
    """
    row = next(dim.stride for dim in window.dims if dim.side == COL) * window.bytes
    depth = next(dim.size for dim in window.dims if dim.side == SUM)
    shape = (cols // WARP_COLS, 4, 4, 2, depth)
    try:
        return TensorMap(window.dtype, shape, (32 * row, 8 * row, 2 * row, row), (part.cols // WARP_COLS, 4, 1, 2, PANEL))
    except CompileError as error:
        raise MatchFailure(str(error)) from error


def weight_tile(part: Pass) -> SharedTile:
    """Layout of a stage: the pass's columns x a panel of the sum."""
    return SharedTile(part.cols, PANEL, 2)
