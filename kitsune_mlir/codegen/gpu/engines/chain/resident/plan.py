"""Planning a chain: who has which rows, what stays in shared memory, what streams through it.

Warpgroup 0 moves data, warpgroups 1 and 2 compute (`sm90/warp_specialize.py`). Each computing warpgroup has rows of its own,
and its layers' results never leave its registers. Weights stay in shared memory for all tiles of a block if all of them fit;
else they stream through a ring that both warpgroups read.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, SUM, addition_of
from kitsune_mlir.codegen.gpu.engines.chain.core.column_vectors import vectors_of
from kitsune_mlir.codegen.gpu.engines.chain.core.comparisons import Bits
from kitsune_mlir.codegen.gpu.engines.chain.core.limits import LEAST_STAGES, REGISTERS, STAGE_BYTES
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import (
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
from kitsune_mlir.codegen.gpu.engines.chain.core.records import GROUP_ROWS, ChainPlan, Output, Slot, Stage, Vector
from kitsune_mlir.codegen.gpu.engines.chain.core.seams import SEAM, check_seams
from kitsune_mlir.codegen.gpu.engines.chain.core.warpgroups import GROUP
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, MapUse, Plan
from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.codegen.gpu.sm90 import warp_specialize as roles
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Load, Store, TaskView
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["Maps", "make_plan"]

MOST_WAVES = 16
"""Waves of tiles of which the last is done in halves where it is short: of more it is little, and 59 waves of two layers of 128
columns took 153 us instead of 144 on an H200 when warpgroups had tiles of their own."""
SEVERAL = 3
"""Results from which on the next panel is written to shared memory while TMA still reads the one before."""
MOST_COLS = 256
MOST_STAGES = 8
TURN_WORK = 1 << 14
"""Columns x depth of a product from which on the warpgroups take turns at the tensor cores."""


class Maps:
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


def make_plan(engine: str, task: TaskView, options: KernelOptions) -> Plan:
    """Plan a task.

    Raises:
        MatchFailure: it is no chain, or too large for a block.
    """
    if options.chip != "sm_90a":
        raise MatchFailure(f"wgmma needs sm_90a, not {options.chip}")
    return _Planner(engine, task, options).plan()


class _Planner:
    def __init__(self, engine: str, task: TaskView, options: KernelOptions):
        self.engine, self.task, self.options = engine, task, options
        self.chain = chain = match_chain(task)
        self.order = order_of(chain, bits=True)
        self.groups = 1 if chain.rows <= GROUP_ROWS else 2
        self.maps = Maps()
        self.registers = 0

    def plan(self) -> Plan:
        chain = self.chain
        if chain.rows > GROUP_ROWS * self.groups:
            raise MatchFailure(f"a tile of {chain.rows} rows; {2 * GROUP_ROWS} are done")
        if chain.rows % (GROUP_ROWS * self.groups) and self.task.tiles > 1:
            raise MatchFailure(f"{self.task.tiles} tiles of {chain.rows} rows; several have a multiple of {GROUP_ROWS} each")
        for layer in chain.layers:
            if layer.cols > MOST_COLS:
                raise MatchFailure(f"a layer of {layer.cols} columns; {MOST_COLS} fit the registers")
        check_seams(chain, SEAM)
        self.registers = self._registers()
        if self.registers > REGISTERS:
            raise MatchFailure(f"tensors between layers need {self.registers} registers; there are {REGISTERS}")
        for scatter in chain.scatters:
            addition_of(scatter)
        weights = tuple(weight_of(layer) for layer in chain.layers)
        layout = self._layout(weights)
        sources, outputs, vectors = layout.sources, layout.outputs, layout.vectors
        if not sources and any(wait.constant is None for wait in self.task.waits):
            raise MatchFailure("tiles wait for parts of other tasks, which who brings rows does, and no rows come from memory")
        resident, stages, stage_bytes, used = layout.resident, layout.stages, layout.stage_bytes, layout.used
        sequence = layout.sequence
        barriers = [*[1] * stages, *[self.groups] * stages, *([1] if any(offset is not None for offset in resident) else [])]
        slots = []
        for source in sources:
            maps = tuple(self.maps.add(source.window, map_, COL) for map_ in source.maps)
            readers = [n for n, layer in enumerate(chain.layers) if any(part.value in source.values for part in layer.ranges)]
            place = used, source.bytes(GROUP_ROWS), layout.depth, self.groups, len(barriers)
            slots.append(Slot(*place, source, maps, readers[-1], False))
            barriers += slots[-1].arrivals
            used = slots[-1].end
        weight_maps = tuple(
            tuple(
                -1 if panel.map is None else self.maps.add(weight.window, panel.map, COL if weight.transposed else SUM)
                for panel in weight.panels
            )
            for weight in weights
        )
        staging, used = used, used + layout.staging_bytes * self.groups
        bits, used = used, used + layout.bit_bytes
        vectors = {key: dataclasses.replace(v, offset=v.offset + used) for key, v in vectors.items()}
        # Who has the turn must find all of a layer's stages in the ring: those before it are given back without a turn.
        turns = tuple(
            self.groups == 2
            and layer.cols * layer.depth >= TURN_WORK
            and (not stages or len([s for s in sequence if s.layer == n]) <= stages)
            for n, layer in enumerate(chain.layers)
        )
        brought = [source.load for source in sources]
        waves = self.task.tiles / self.options.workers
        halves = self.groups == 2 and not sequence and 1 < waves <= MOST_WAVES
        plan = ChainPlan(
            chain, self.order, self.groups, vectors, outputs, stages, stage_bytes, weights, resident, sequence,
            tuple(slots), layout.held, staging, layout.staging_bytes, layout.staged, turns, weight_maps, 2 * stages, halves,
            bits,
        )  # fmt: skip
        return Plan(
            engine=self.engine,
            task=self.task,
            shared_bytes=used + layout.vector_bytes,
            threads=roles.THREADS,
            registers=roles.SHARED_REGISTERS,
            barriers=tuple(barriers),
            tensor_maps=tuple(self.maps.uses),
            async_reads=any(source.maps and not source.window.constant for source in sources),
            async_writes=any(output.map is not None for output in outputs),
            parameters={
                "layers": [[layer.depth, layer.cols] for layer in chain.layers],
                "rows": chain.rows,
                "weights": f"ring of {stages} x {stage_bytes} bytes" if stages else "stay in shared memory",
                "sources": [source.why or "TMA" for source in sources] + ["in registers" for _ in layout.held],
                "turns": any(turns),
            },
            dependent=bool(sources) and all(load.given or load in brought for load in self.task.loads),
            halves=halves,
            private=plan,
        )

    def _registers(self) -> int:
        """Most registers of tensors that live at once: what is kept, the factor of the product, and its sums."""

        def size(value) -> int:
            shape = shape_of(value)
            blocks = align(shape[1], 8) // 8 if len(shape) == 2 else 1
            short = str(value.type.element_type) in HALF_TYPES
            return blocks * (2 if short else 4 if len(shape) == 2 else 2)

        most = 0
        for number, layer in enumerate(self.chain.layers):
            live = {v for v in (self.order.kept[number - 1] if number else ())} | {
                part.value for part in layer.ranges if self.order.ready.get(part.value, -1) >= 0 or self._computed(part.value)
            }
            most = max(most, sum(size(value) for value in live) + align(layer.cols, 8) // 2)
        return most

    def _computed(self, value) -> bool:
        return self.task.load_of(value) is None and self.chain.gather(value) is None

    def _sources(self) -> list[Source]:
        found: dict[tuple, Source] = {}
        for layer in self.chain.layers:
            for part in layer.ranges:
                source = source_of(self.chain, part.value, GROUP_ROWS)
                if source is None:
                    continue
                key = (part.value,) if source.gather else load_key(source.load)
                if key in found and part.value not in found[key].values:
                    found[key] = dataclasses.replace(found[key], values=(*found[key].values, part.value))
                found.setdefault(key, source)
        return list(found.values())

    def _output(self, store: Store, compact: bool) -> Output:
        shape = shape_of(store.tensor)
        if len(shape) != 2 or shape[1] < 16 or str(store.buffer.element) not in HALF_TYPES:
            return Output(store, None, None)
        window = Window.of(store, sides_of(store.tensor))
        if compact and shape[1] % (8 * QUAD) == 0 and window.stride(COL) == 1 and window.align((COL,)) == 16:
            return Output(store, None, None, True)
        box = next((box for box in (16, 32, 64) if box >= shape[1]), 64)
        tile = SharedTile(GROUP_ROWS, box, 2, 2 * box)
        map_ = matrix_map(window, (ROW, COL), (min(256, GROUP_ROWS), box), tile.swizzle)
        if isinstance(map_, str):
            return Output(store, None, None)
        return Output(store, self.maps.add(window, map_, COL), tile)

    def _layout(self, weights: tuple[Weight, ...]) -> _Layout:
        """Divide shared memory: weights that stay, if need be with everything else made small, or a ring."""
        every = self._sources()
        for compact in (False, True):
            # The rows themselves can wait in registers; gathered ones cannot, for their addresses come late.
            held = [s for s in every if compact and s.maps and s.window.constant]
            if compact and (not held or len(held) == len(every) or self.registers + self._held(held) > REGISTERS):
                continue
            layout = self._fixed([s for s in every if s not in held], held, compact)
            limit, places = self.options.shared_bytes - layout.fixed(self.groups), layout.places(GROUP_ROWS, self.groups)
            total = sum(weight.bytes for weight in weights)
            if total + places <= limit:
                depth = 2 if total + 2 * places <= limit else 1
                return dataclasses.replace(layout, resident=self._keep(weights, [True] * len(weights)), depth=depth, used=total)
        layout = self._fixed(every, [], False)
        if layout.staged > 1:
            try:
                return self._streamed(weights, layout, 4)
            except MatchFailure:
                # With one panel of staging space each waits until TMA has read the one before (22 layers of 256: 6 us each).
                layout = self._fixed(every, [], False, True)
                layout = dataclasses.replace(layout, staged=1, staging_bytes=layout.staging_bytes // layout.staged)
        return self._streamed(weights, layout)

    def _held(self, held: list[Source]) -> int:
        """Registers of rows that are held, of this tile and the next."""
        return sum(4 * align(source.length, 8) // 8 for source in held)

    def _fixed(self, sources: list[Source], held: list[Source], compact: bool, pieces: bool = False) -> _Layout:
        """What does not depend on the weights; with `pieces` threads store results from registers, as if `compact`."""
        self.maps = Maps()
        vectors, vector_bytes = vectors_of(self.chain, compact)
        outputs = tuple(self._output(store, compact or pieces) for store in self.task.stores)
        staged = 2 if sum(o.tile is not None for o in outputs) >= SEVERAL else 1
        staging = staged * max((align(o.tile.bytes, 1024) for o in outputs if o.tile is not None), default=0)
        bit_bytes = align(Bits.bytes(self.order.compared, GROUP * self.groups), 16)
        return _Layout(
            sources, tuple(source.load for source in held), outputs, vectors, vector_bytes, staging, staged, bit_bytes
        )

    def _streamed(self, weights: tuple[Weight, ...], layout: _Layout, fewest: int = LEAST_STAGES) -> _Layout:
        """A ring of `fewest` stages or more for the weights; those that TMA cannot load stay."""
        places = layout.places(GROUP_ROWS, self.groups)
        stay = [bool(weight.why) for weight in weights]
        kept = sum(w.bytes for w, s in zip(weights, stay, strict=True) if s)
        stage_bytes = max(STAGE_BYTES, *(panel.bytes for weight in weights for panel in weight.panels))
        sequence = tuple(stage for n, weight in enumerate(weights) if not stay[n] for stage in _stages(n, weight, stage_bytes))
        limit = 0
        for depth, least in ((2, 5), (1, 5), (2, 4), (1, fewest)):
            limit = self.options.shared_bytes - layout.fixed(self.groups)
            stages = min(MOST_STAGES, (limit - kept - depth * places) // stage_bytes)
            if stages >= least:
                ring = stages * stage_bytes
                resident = tuple(None if r is None else r + ring for r in self._keep(weights, stay))
                return dataclasses.replace(
                    layout, resident=resident, stages=stages, stage_bytes=stage_bytes, sequence=sequence, depth=depth,
                    used=kept + ring,
                )  # fmt: skip
        raise MatchFailure(f"weights that stay ({kept} bytes) and rows ({places}) leave no room for a ring in {limit} bytes")

    @staticmethod
    def _keep(weights: tuple[Weight, ...], stay: list[bool]) -> tuple[int | None, ...]:
        offsets: list[int | None] = []
        used = 0
        for weight, stays in zip(weights, stay, strict=True):
            offsets.append(used if stays else None)
            used += weight.bytes if stays else 0
        return tuple(offsets)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How shared memory is divided; fields as in `ChainPlan`.

    Attributes:
        sources: what gets slots.
        vector_bytes: of all vectors.
        bit_bytes: of what is kept as bits.
        depth: places of a source.
        used: bytes of weights and ring.
    """

    sources: list[Source]
    held: tuple[Load, ...]
    outputs: tuple[Output, ...]
    vectors: dict[tuple, Vector]
    vector_bytes: int
    staging_bytes: int
    staged: int
    bit_bytes: int
    resident: tuple[int | None, ...] = ()
    stages: int = 0
    stage_bytes: int = 0
    sequence: tuple[Stage, ...] = ()
    depth: int = 1
    used: int = 0

    def fixed(self, groups: int) -> int:
        """Bytes beside weights and sources."""
        return self.vector_bytes + self.staging_bytes * groups + self.bit_bytes

    def places(self, rows: int, groups: int) -> int:
        """Bytes of one tile of all sources."""
        return sum(source.bytes(rows) for source in self.sources) * groups


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
