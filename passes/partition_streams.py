"""`kitsune-partition-streams`: choose an engine and tile sizes for each stage."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import adds_rows, engine_of
from kitsune_mlir.codegen.gpu.interface.offer import Candidate
from kitsune_mlir.codegen.offers import offer_for
from kitsune_mlir.dialects.attribute_table import GROUPS, ORDERED, UPDATES
from kitsune_mlir.dialects.edges import stage_space, stages_of
from kitsune_mlir.dialects.scatter_kinds import ORDER_MATTERS
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.modes.choice import set_mode
from kitsune_mlir.passes.tile_program.scatter import add_by, producer_that_adds, scatter_of

from .base import Pass, PassFailure
from .modes import gathers
from .remarks import remark

UPDATE_ROWS, UPDATE_ELEMENTS = 64, 4096  # of a scatter-add a task: rows, or more of them where they are short
CHOICES = ("auto", "temporal", "spatial", "separate")


@dataclass(frozen=True)
class PartitionStreams(Pass):
    """Choose engine and tile sizes of every stage, and the pipeline's mode: who runs which stage.

    Tile sizes follow from capacity: a tile and its neighbours stay close to a worker, and there are enough tiles for all
    workers. The mode is the one of the least time by the stages' costs (`passes/modes/choice.py`), temporal unless another is
    clearly faster; multiprocessors are dealt out by an integer program (`passes/spatial/allocation.py`). `--remarks` prints the
    choices, the bottleneck, and what would be the next one. Options: `target`; `tiles`, sizes that replace the choice for
    stages by name, as in `tiles=product_0:64x128,reduce_1:8` (what `kitsune_mlir.tuning` measured); `times`, microseconds that
    stages take alone in a launch, instead of the model's, as in `times=product_0:12.5`; `mode`: `temporal` (all stages take
    turns on all multiprocessors), `spatial` (each stage has its own), `separate` (several launches, cut where that pays: each
    holds one stage or a few), or `auto`; `deterministic`: results are the same bits on every run, so rows are added at indices
    in order instead of by atomics; `gathers`: what tiles wait for that read another stage's rows by index, `all` of it, the
    `rows` that the indices name, or `auto`; `without`: engines that are not asked.
    """

    name: ClassVar[str] = "kitsune-partition-streams"
    only_schedules: ClassVar[bool] = True
    target: str = "host"
    tiles: tuple[str, ...] = ()
    mode: str = "auto"
    times: tuple[str, ...] = ()
    deterministic: bool = False
    gathers: str = "auto"
    without: tuple[str, ...] = ()

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if self.mode not in CHOICES:
            raise KitsuneError(f"option 'mode' of {self.name} is {', '.join(CHOICES)}, not '{self.mode}'")
        if self.gathers not in gathers.CHOICES:
            raise KitsuneError(f"option 'gathers' of {self.name} is {', '.join(gathers.CHOICES)}, not '{self.gathers}'")
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    with unchanged():
                        self._partition(op, target)

    def _partition(self, pipeline: ir.Operation, target: Target) -> None:
        stages = stages_of(pipeline)
        for before, stage in zip([None, *stages], stages, strict=False):
            self._schedule(stage, target, len(stages) == 1, before)
        gathers.mark_gathers(pipeline, self.gathers, target)
        set_mode(pipeline, self.mode, target, self._times())

    def _schedule(self, stage: ir.Operation, target: Target, alone: bool, before: ir.Operation | None) -> None:
        space = stage_space(stage)
        given = self._given(stage, len(space.dims))
        offer, declined = offer_for(Candidate(space, alone, stage, before, given), target, self.without)
        if offer is None:
            reasons = "; ".join(f"{decline.engine}: {decline.reason}" for decline in declined)
            raise PassFailure(stage, f"has no engine that takes it ({reasons})")
        engine, tile = offer.engine, given or offer.tile
        stage.attributes["engine"] = ir.StringAttr.get(engine)
        stage.attributes["tile"] = ir.DenseI64ArrayAttr.get(list(tile))
        if offer.column_groups > 1:
            stage.attributes[GROUPS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), offer.column_groups)
        scatter = scatter_of(stage) if target.is_gpu else None
        if scatter is not None and self.deterministic and scatter.kind in ORDER_MATTERS:
            rows = ir.RankedTensorType(scatter.original.type).shape[0]
            stage.attributes[ORDERED] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)
            remark(stage, f"{scatter.rows} rows are {scatter.participle} in order, by all blocks together")
        elif scatter is not None:
            producer = producer_that_adds(stage, scatter)
            dtype = str(ir.RankedTensorType(scatter.original.type).element_type)
            if producer is not None and adds_rows(
                engine_of(producer), stage_space(producer), scatter.kind, dtype, scatter.columns
            ):
                add_by(producer, stage, scatter)
                remark(stage, f"rows are added by {producer.attributes['sym_name']} as it makes them")
            most = max(UPDATE_ROWS, UPDATE_ELEMENTS // scatter.columns)
            rows = max(1, min(most, -(-scatter.rows // (2 * target.workers))))
            stage.attributes[UPDATES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)
            remark(stage, f"rows are {scatter.participle} with atomics, {rows} a task")
        sizes = "x".join(str(d.size) for d in space.dims) or "nothing parallel"
        remark(stage, f"engine {engine}, tiles of {'x'.join(map(str, tile)) or 'everything'} over {sizes}")

    def _times(self) -> dict[str, float]:
        """Seconds of stages by name, as option `times` has them."""
        pairs = [item.partition(":") for item in self.times]
        try:
            return {name: float(microseconds) * 1e-6 for name, _, microseconds in pairs}
        except ValueError as error:
            raise KitsuneError(f"option 'times' of {self.name} has a time that is no number: {error}") from error

    def _given(self, stage: ir.Operation, dims: int) -> tuple[int, ...] | None:
        """The tile that option `tiles` has for a stage, which has so many dimensions to tile; None for the engine's choice."""
        for item in self.tiles:
            name, _, sizes = item.partition(":")
            if name == ir.StringAttr(stage.attributes["sym_name"]).value:
                tile = tuple(int(size) for size in sizes.split("x") if size.isdigit())
                if len(tile) != dims or not all(tile):
                    raise PassFailure(stage, f"has {dims} dimensions to tile; option 'tiles' says {item}")
                return tile
        return None
