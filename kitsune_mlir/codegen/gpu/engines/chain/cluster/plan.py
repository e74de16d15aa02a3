"""Planning a chain of layers for a cluster: which slice of every layer is whose, and what fits shared memory.

A cluster of `cluster` blocks owns the rows of a tile. Every block has the whole input of the running layer in shared memory, in
panels of 64 columns, and makes the same slice of each layer's columns; a slice is whole panels of the next layer's input.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.match import COL, ROW
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Chain
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import matrix_map, sides_of, swizzled
from kitsune_mlir.codegen.gpu.engines.chain.core.records import GROUP_ROWS, RowsPlan
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.tile_view import Store, TaskView
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["PANEL", "ClusterLayer", "ClusterPlan", "make_cluster_plan"]

PANEL = 64
"""Columns of a panel: 128 bytes, the widest swizzle."""
CLUSTERS = (2, 4, 8)
"""Blocks of a cluster that are tried, in this order: every device can have eight (CUDA C++ Programming Guide)."""
MOST_COLUMNS = 128
"""Columns of a warpgroup: 64 accumulators a thread leave room for the next layer's bias beside them."""
LEAST_STAGES, MOST_STAGES = 3, 8
ENOUGH_STAGES = 4
"""Stages of whole panels; where fewer fit, a stage is half a panel: two are being read, others must be on their way from L2."""


@dataclasses.dataclass(frozen=True)
class ClusterLayer:
    """A layer.

    Attributes:
        result: the tensor of its sums.
        dtype: of both factors.
        panels: of its sum.
        cols: columns of a block's slice.
        map: number of the weight's tensor map.
        output: what the slice becomes: the next layer's input, or the tensor that is stored.
    """

    result: ir.Value
    dtype: str
    panels: int
    cols: int
    map: int
    output: ir.Value


@dataclasses.dataclass(frozen=True)
class ClusterPlan(RowsPlan):
    """What the engine decided.

    Attributes:
        layers: of the chain.
        cluster: blocks of a cluster.
        rows: of a tile in shared memory, 64 or 128.
        panels: of the widest input.
        chunk: columns of the sum in a stage of weights: a panel, or half of one.
        stages, stage_bytes: of the ring of weights.
        rows_map, result_map: numbers of the tensor maps of the input and the result.
        result: the store.
        result_tile: layout of the pieces of columns that are stored.
    """

    layers: tuple[ClusterLayer, ...]
    cluster: int
    rows: int
    panels: int
    chunk: int
    stages: int
    stage_bytes: int
    rows_map: int
    result_map: int
    result: Store
    result_tile: SharedTile

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel of rows."""
        return self.rows * PANEL * 2

    @property
    def weights_offset(self) -> int:
        """Where the ring of weights lies; the layer's input is before it."""
        return self.panels * self.panel_bytes

    @property
    def halves(self) -> int:
        """Warpgroups that share a block's columns: two where the rows are one warpgroup's."""
        return 2 if self.rows == GROUP_ROWS else 1


def make_cluster_plan(engine: str, task: TaskView, limits: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        Mismatch: it is no chain of layers whose slices a cluster can exchange, or one too large for it.
    """
    if limits.chip != "sm_90a":
        raise MatchFailure(f"clusters and wgmma need sm_90a, not {limits.chip}")
    if task.waits or task.posts:
        raise MatchFailure("it waits or posts: blocks of a cluster have no place in the order of other tasks")
    chain = match_chain(task)
    order = order_of(chain)
    rows = GROUP_ROWS if chain.rows <= GROUP_ROWS else 2 * GROUP_ROWS
    if chain.rows != rows and (task.tiles > 1 or chain.rows > GROUP_ROWS):
        raise MatchFailure(f"{task.tiles} tiles of {chain.rows} rows; a tile has 64 or 128")
    if any(step.kind not in ("map", "alias") for step in chain.steps.values()) or chain.scatters:
        raise MatchFailure("rows are reduced, joined or added, which takes all columns of a row")
    outputs = [_factor(chain, number) for number in range(1, len(chain.layers))]
    stores = order.stores[-1]
    if len(task.stores) != 1 or len(stores) != 1 or len(chain.layers) < 2:
        raise MatchFailure(
            f"{len(chain.layers)} layers and {len(task.stores)} results; two layers or more and one result are done"
        )
    outputs.append(stores[0].tensor)
    for number, output in enumerate(outputs):
        _check_output(chain, number, output)
    reason = ""
    # More blocks hand more over, but few tiles leave most multiprocessors idle.
    idle = [cluster for cluster in CLUSTERS if task.tiles * cluster < limits.workers // 8]
    for cluster in [*(cluster for cluster in CLUSTERS if cluster not in idle), *reversed(idle)]:
        try:
            return _planned(engine, task, chain, order, rows, outputs, stores[0], cluster, limits)
        except MatchFailure as mismatch:
            reason = f"{reason}{'; ' if reason else ''}{cluster} blocks: {mismatch}"
    raise MatchFailure(reason)


def _planned(
    engine: str,
    task: TaskView,
    chain: Chain,
    order,
    rows: int,
    outputs: list[ir.Value],
    result: Store,
    cluster: int,
    limits: KernelOptions,
) -> Plan:
    maps: list[MapUse] = []

    def use(buffer, found: TensorMap | str) -> int:
        if isinstance(found, str):
            raise MatchFailure(found)
        maps.append(MapUse(buffer, found))
        return len(maps) - 1

    source = task.load_of(chain.layers[0].ranges[0].value)
    if source is None:
        raise MatchFailure("the first layer reads what is computed")
    window = Window.of(source, sides_of(source.tensor))
    rows_map = use(source.buffer, matrix_map(window, (ROW, COL), (rows, PANEL), 128))
    layers = []
    widest = max(layer.cols for layer in chain.layers) // cluster
    panels = max(-(-layer.depth // PANEL) for layer in chain.layers)
    room = limits.shared_bytes - panels * rows * PANEL * 2
    chunk = PANEL if room >= ENOUGH_STAGES * widest * PANEL * 2 else PANEL // 2
    for number, layer in enumerate(chain.layers):
        last = number == len(chain.layers) - 1
        cols = layer.cols // cluster
        whole = cols % PANEL == 0 or (last and cols in (16, 32))
        share = cols // (2 if rows == GROUP_ROWS else 1)
        if layer.cols % cluster or not whole or share % 16 or share > MOST_COLUMNS:
            raise MatchFailure(f"a slice of {layer.cols / cluster:g} columns of layer {number}")
        if layer.sides != (COL, SUM):
            raise MatchFailure(f"the weight of layer {number} is not columns x sum")
        weights = Window.of(layer.weight, layer.sides)
        number_ = use(layer.weight.buffer, matrix_map(weights, (COL, SUM), (cols, chunk), 2 * chunk))
        layers.append(ClusterLayer(layer.result, layer.dtype, -(-layer.depth // PANEL), cols, number_, outputs[number]))
    box = min(PANEL, layers[-1].cols)
    tile = swizzled(rows, box)
    stored = Window.of(result, sides_of(result.tensor))
    result_map = use(result.buffer, matrix_map(stored, (ROW, COL), (rows, box), tile.swizzle))
    stage = widest * chunk * 2
    stages = min(MOST_STAGES, room // stage)
    if stages < LEAST_STAGES:
        raise MatchFailure(f"{panels * PANEL} columns of {rows} rows leave {stages} stages for weights")
    plan = ClusterPlan(
        *(chain, order, rows // GROUP_ROWS, 1, {}, ()),
        *(tuple(layers), cluster, rows, panels, chunk, stages, stage, rows_map, result_map, result, tile),
    )
    return Plan(
        engine,
        task,
        shared_bytes=plan.weights_offset + stages * stage,
        threads=roles.THREADS,
        registers=roles.SHARED_REGISTERS,
        barriers=(1,) * stages + (roles.CONSUMERS,) * stages + (1,) * cluster + (roles.CONSUMERS * cluster, 1),
        tensor_maps=tuple(maps),
        async_writes=True,
        cluster=cluster,
        parameters={
            "layers": [f"{layer.depth}x{layer.cols}" for layer in chain.layers],
            "cluster": cluster,
            "rows": rows,
            "stages": stages,
        },
        private=plan,
    )


def _factor(chain: Chain, number: int) -> ir.Value:
    """What layer `number` multiplies."""
    layer = chain.layers[number]
    if len(layer.ranges) != 1:
        raise MatchFailure(f"layer {number} sums over several tensors")
    value = layer.ranges[0].value
    if chain.task.load_of(value) is not None:
        raise MatchFailure(f"layer {number} reads memory")
    return value


def _check_output(chain: Chain, number: int, value: ir.Value) -> None:
    """Layer `number` becomes `value` by element-wise steps that read nothing of the layers before it."""
    layer = chain.layers[number]
    if len(layer.ranges) != 1 or shape_of(value) != [chain.rows, layer.cols]:
        raise MatchFailure(f"layer {number} does not become one tensor of its columns")
    if str(ir.ShapedType(value.type).element_type) not in ("bf16", "f16"):
        raise MatchFailure(f"layer {number} becomes {value.type}")
    pending, seen, products = [value], set(), set()
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if any(one == other.result for other in chain.layers):
            products.add(one)
            continue
        step = chain.steps.get(one)
        pending += [step.op.operands[n] for n in step.operands] if step else []
    if products != {layer.result}:
        raise MatchFailure(f"what layer {number} becomes reads other layers too")
