"""Planning a chain: who has which rows, what stays in shared memory, what streams through it.

Warpgroup 0 moves data, warpgroups 1 and 2 compute (`roles.py`). Each computing warpgroup has rows of its own, and its layers'
results never leave its registers. Weights stay in shared memory for all tiles of a block if all of them fit; else they stream
through a ring that both warpgroups read.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu import roles
from kitsune_mlir.codegen.gpu.chain_match import SUM, Chain, addition_of, match_chain
from kitsune_mlir.codegen.gpu.chain_order import Order, order_of
from kitsune_mlir.codegen.gpu.chain_parts import (
    Source,
    Weight,
    WeightPanel,
    align,
    load_key,
    matrix_map,
    sides_of,
    source_of,
    weight_of,
)
from kitsune_mlir.codegen.gpu.engine import Limits, MapUse, Plan
from kitsune_mlir.codegen.gpu.mma_match import COL, ROW, Mismatch
from kitsune_mlir.codegen.gpu.mma_window import Window
from kitsune_mlir.codegen.gpu.tasks import Load, Store, TaskView
from kitsune_mlir.codegen.gpu.tensor_map import TensorMap
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.shared_tile import SharedTile

__all__ = ["ChainPlan", "Output", "Slot", "Stage", "Vector", "make_plan"]

GROUP_ROWS = 64
MOST_UNITS = 4
MOST_COLS = 256
STAGE_BYTES = 32768
MOST_STAGES = 8
LEAST_STAGES = 3
REGISTERS = 216
"""Of a computing warpgroup's registers, those for sums, factors and tensors between layers."""
TURN_WORK = 1 << 14
"""Columns x depth x tiles of 64 rows of a product from which on the warpgroups take turns at the tensor cores."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """What one stage of the ring holds at a time: consecutive panels of one layer, with their places in the stage."""

    layer: int
    panels: tuple[tuple[WeightPanel, int], ...]

    @property
    def box_bytes(self) -> int:
        """Bytes that TMA reports."""
        return sum(panel.tile.bytes for panel, _ in self.panels)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A source's places in shared memory: `depth` for each warpgroup, one after the other.

    Attributes:
        source: what they hold.
        offset: of the first.
        bytes: of one.
        depth: 1, or 2 if the next tile's rows come while this one's are read.
        barrier: number of the first mbarrier: "full" of each place, then "empty" of each.
        maps: numbers of the tensor maps, a panel each.
        last: number of the last product that reads it.
        read: element-wise steps read it too, so it is released at the end of the tile.
    """

    source: Source
    offset: int
    bytes: int
    depth: int
    barrier: int
    maps: tuple[int, ...]
    last: int
    read: bool


@dataclasses.dataclass(frozen=True)
class Vector:
    """Numbers along the columns (a bias, a gain), as f32 in shared memory from `offset` on, padded with zeros."""

    load: Load
    window: Window
    length: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Output:
    """A store, and how TMA does it.

    Attributes:
        store: what and where.
        map: number of the tensor map; None if threads store.
        tile: layout of the staging space: one panel of columns of all rows of a warpgroup.
    """

    store: Store
    map: int | None
    tile: SharedTile | None


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """What the engine decided.

    Attributes:
        chain, order: the body, and the times of its tensors.
        groups: computing warpgroups that have rows.
        units: tiles of 64 rows of a warpgroup.
        weights: of the layers.
        resident: offset of each layer's weight in shared memory; None where it streams.
        stages: of the ring; 0 without one.
        stage_bytes: of one.
        sequence: what streams through the ring for a tile.
        slots: places of sources.
        vectors: by `load_key`.
        vector_bytes: all of them.
        outputs: one a store.
        staging: offset of the staging space, of which each warpgroup has `staging_bytes`.
        turns: for each layer, whether the warpgroups take turns at the tensor cores.
        weight_maps: numbers of the tensor maps of each layer's panels.
        barriers: number of the first mbarrier of the ring, and of the one that resident weights report to.
    """

    chain: Chain
    order: Order
    groups: int
    units: int
    weights: tuple[Weight, ...]
    resident: tuple[int | None, ...]
    stages: int
    stage_bytes: int
    sequence: tuple[Stage, ...]
    slots: tuple[Slot, ...]
    vectors: dict[tuple, Vector]
    outputs: tuple[Output, ...]
    staging: int
    staging_bytes: int
    turns: tuple[bool, ...]
    weight_maps: tuple[tuple[int, ...], ...]
    resident_barrier: int

    @property
    def group_rows(self) -> int:
        """Rows of one warpgroup."""
        return GROUP_ROWS * self.units

    @property
    def covered(self) -> bool:
        """Whether the warpgroups' rows are exactly the tile's."""
        return self.group_rows * self.groups == self.chain.rows


class _Maps:
    """The tensor maps of a plan, each once."""

    def __init__(self) -> None:
        self.uses: list[MapUse] = []

    def add(self, window: Window, map_: TensorMap, inner: str) -> int:
        """The number of a map that starts where the window starts along its side `inner` (constant)."""
        start = sum(dim.start * dim.stride for dim in window.dims if dim.side == inner and isinstance(dim.start, int))
        buffer = dataclasses.replace(window.buffer, offset=window.buffer.offset + start * window.bytes)
        for number, use in enumerate(self.uses):
            if use.map == map_ and use.buffer.memory == buffer.memory:
                return number
        self.uses.append(MapUse(buffer, map_))
        return len(self.uses) - 1


def make_plan(engine: str, task: TaskView, limits: Limits) -> Plan:
    """Plan a task.

    Raises:
        Mismatch: it is no chain, or too large for a block.
    """
    if limits.chip != "sm_90a":
        raise Mismatch(f"wgmma needs sm_90a, not {limits.chip}")
    return _Planner(engine, task, limits).plan()


class _Planner:
    def __init__(self, engine: str, task: TaskView, limits: Limits):
        self.engine, self.task, self.limits = engine, task, limits
        self.chain = chain = match_chain(task)
        self.order = order_of(chain)
        self.groups = 1 if chain.rows <= GROUP_ROWS else 2
        self.units = -(-chain.rows // (GROUP_ROWS * self.groups))
        self.rows = GROUP_ROWS * self.units
        self.maps = _Maps()
        self.barriers: list[int] = []

    def plan(self) -> Plan:
        chain = self.chain
        if self.units > MOST_UNITS:
            raise Mismatch(f"a tile of {chain.rows} rows; {2 * GROUP_ROWS * MOST_UNITS} are done")
        if chain.rows % (GROUP_ROWS * self.groups) and self.task.tiles > 1:
            raise Mismatch(f"{self.task.tiles} tiles of {chain.rows} rows; several have a multiple of {GROUP_ROWS} each")
        for layer in chain.layers:
            if layer.cols > MOST_COLS:
                raise Mismatch(f"a layer of {layer.cols} columns; {MOST_COLS} fit the registers")
        registers = self._registers()
        if registers > REGISTERS:
            raise Mismatch(f"tensors between layers need {registers} registers; there are {REGISTERS}")
        for scatter in chain.scatters:
            addition_of(scatter)
        weights = tuple(weight_of(layer) for layer in chain.layers)
        sources = self._sources()
        vectors, vector_bytes = self._vectors()
        outputs = tuple(self._output(store) for store in self.task.stores)
        staging_bytes = max((align(o.tile.bytes, 1024) for o in outputs if o.tile is not None), default=0)
        fixed = vector_bytes + staging_bytes * self.groups
        layout = self._layout(weights, sources, fixed)
        resident, stages, stage_bytes, sequence, depth, used = layout
        ring_barriers = (1,) * stages + (self.groups,) * stages
        resident_barrier = len(ring_barriers)
        self.barriers = [*ring_barriers, *([1] if any(offset is not None for offset in resident) else [])]
        slots = []
        for source in sources:
            bytes_ = source.bytes(self.rows)
            maps = tuple(self.maps.add(source.window, map_, COL) for map_ in source.maps)
            readers = [n for n, layer in enumerate(chain.layers) if any(part.value in source.values for part in layer.ranges)]
            slots.append(Slot(source, used, bytes_, depth, len(self.barriers), maps, readers[-1], False))
            self.barriers += [1] * (2 * depth * self.groups)
            used += bytes_ * depth * self.groups
        weight_maps = tuple(
            tuple(
                -1 if panel.map is None else self.maps.add(weight.window, panel.map, COL if weight.transposed else SUM)
                for panel in weight.panels
            )
            for weight in weights
        )
        staging, used = used, used + staging_bytes * self.groups
        vectors = {key: dataclasses.replace(v, offset=v.offset + used) for key, v in vectors.items()}
        widest = max(len([s for s in sequence if s.layer == n]) for n in range(len(weights)))
        turns = tuple(
            self.groups == 2 and layer.cols * layer.depth * self.units >= TURN_WORK and (not stages or widest <= stages)
            for layer in chain.layers
        )
        plan = ChainPlan(
            chain, self.order, self.groups, self.units, weights, resident, stages, stage_bytes, sequence, tuple(slots), vectors,
            outputs, staging, staging_bytes, turns, weight_maps, resident_barrier,
        )  # fmt: skip
        return Plan(
            engine=self.engine,
            task=self.task,
            shared_bytes=used + vector_bytes,
            threads=roles.THREADS,
            registers=roles.SHARED_REGISTERS,
            barriers=tuple(self.barriers),
            tensor_maps=tuple(self.maps.uses),
            async_reads=any(source.maps and not source.window.constant for source in sources),
            async_writes=any(output.map is not None for output in outputs),
            parameters={
                "layers": [[layer.depth, layer.cols] for layer in chain.layers],
                "rows": chain.rows,
                "weights": f"ring of {stages} x {stage_bytes} bytes" if stages else "stay in shared memory",
                "sources": [source.why or "TMA" for source in sources],
                "turns": any(turns),
            },
            private=plan,
        )

    def _registers(self) -> int:
        """Most registers of tensors that live at once: what is kept, the factor of the product, and its sums."""

        def size(value) -> int:
            shape = shape_of(value)
            blocks = align(shape[1], 8) // 8 if len(shape) == 2 else 1
            short = str(value.type.element_type) in ("bf16", "f16")
            return blocks * (2 if short else 4 if len(shape) == 2 else 2)

        most = 0
        for number, layer in enumerate(self.chain.layers):
            live = {v for v in (self.order.kept[number - 1] if number else ())} | {
                part.value for part in layer.ranges if self.order.ready.get(part.value, -1) >= 0 or self._computed(part.value)
            }
            most = max(most, sum(size(value) for value in live) + align(layer.cols, 8) // 2)
        return most * self.units

    def _computed(self, value) -> bool:
        return self.task.load_of(value) is None and self.chain.gather(value) is None

    def _sources(self) -> list[Source]:
        found: dict[tuple, Source] = {}
        for layer in self.chain.layers:
            for part in layer.ranges:
                source = source_of(self.chain, part.value, self.rows)
                if source is None:
                    continue
                key = (part.value,) if source.gather else load_key(source.load)
                if key in found and part.value not in found[key].values:
                    found[key] = dataclasses.replace(found[key], values=(*found[key].values, part.value))
                found.setdefault(key, source)
        return list(found.values())

    def _vectors(self) -> tuple[dict[tuple, Vector], int]:
        """Everything that is read along the columns only, by its place; offsets from 0 on."""
        vectors: dict[tuple, Vector] = {}
        used = 0
        for step in self.chain.steps.values():
            if step.kind in ("alias", "concat") or step.op.name == "linalg.fill":
                continue
            for number in step.operands:
                load = self.task.load_of(step.op.operands[number])
                if load is None or self.chain.operand_sides(step.op, number) != (COL,) or load_key(load) in vectors:
                    continue
                if load.buffer.role != "input" or str(load.buffer.element) not in ("bf16", "f16", "f32"):
                    continue
                if not all(isinstance(start, int) for start in load.offsets):
                    continue
                window = Window.of(load, (COL,))
                length = max(load.sizes)
                vectors[load_key(load)] = Vector(load, window, length, used)
                used += 4 * align(length, 8)
        return vectors, align(used, 16)

    def _output(self, store: Store) -> Output:
        shape = shape_of(store.tensor)
        if len(shape) != 2 or shape[1] < 16 or str(store.buffer.element) not in ("bf16", "f16"):
            return Output(store, None, None)
        window = Window.of(store, sides_of(store.tensor))
        box = next((box for box in (16, 32, 64) if box >= shape[1]), 64)
        tile = SharedTile(self.rows, box, 2, 2 * box)
        map_ = matrix_map(window, (ROW, COL), (min(256, self.rows), box), tile.swizzle)
        if isinstance(map_, str):
            return Output(store, None, None)
        return Output(store, self.maps.add(window, map_, COL), tile)

    def _layout(self, weights: tuple[Weight, ...], sources: list[Source], fixed: int):
        """Divide shared memory: weights that stay or a ring, then room for one or two tiles of sources."""
        limit = self.limits.shared_bytes - fixed
        places = sum(source.bytes(self.rows) for source in sources) * self.groups
        total = sum(weight.bytes for weight in weights)
        if total + places <= limit:
            depth = 2 if total + 2 * places <= limit else 1
            return *self._keep(weights, [True] * len(weights)), 0, 0, (), depth, total  # fmt: skip
        stay = [bool(weight.why) for weight in weights]
        resident, kept = self._keep(weights, stay)[0], sum(w.bytes for w, s in zip(weights, stay, strict=True) if s)
        widest = max(panel.bytes for weight in weights for panel in weight.panels)
        stage_bytes = max(STAGE_BYTES, widest)
        sequence = tuple(stage for n, weight in enumerate(weights) if not stay[n] for stage in _stages(n, weight, stage_bytes))
        for depth, least in ((2, 5), (1, 5), (2, 4), (1, LEAST_STAGES)):
            stages = min(MOST_STAGES, (limit - kept - depth * places) // stage_bytes)
            if stages >= least:
                resident = tuple(None if r is None else r + stages * stage_bytes for r in resident)
                return resident, stages, stage_bytes, sequence, depth, kept + stages * stage_bytes
        raise Mismatch(f"weights that stay ({kept} bytes) and rows ({places}) leave no room for a ring in {limit} bytes")

    def _keep(self, weights: tuple[Weight, ...], stay: list[bool]) -> tuple[tuple[int | None, ...]]:
        offsets: list[int | None] = []
        used = 0
        for weight, stays in zip(weights, stay, strict=True):
            offsets.append(used if stays else None)
            used += weight.bytes if stays else 0
        return (tuple(offsets),)


def _stages(number: int, weight: Weight, limit: int) -> list[Stage]:
    """A layer's panels, as many in a stage as fit."""
    stages: list[list[tuple[WeightPanel, int]]] = []
    used = limit + 1
    for panel in weight.panels:
        if used + panel.bytes > limit:
            stages.append([])
            used = 0
        stages[-1].append((panel, used))
        used += panel.bytes
    return [Stage(number, tuple(panels)) for panels in stages]
