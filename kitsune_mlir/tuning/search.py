"""Measures the stages of a program and says which tiles it should be planned with."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from torch_mlir import ir
from torch_mlir.dialects.builtin import ModuleOp

from kitsune_mlir.dialects.edges import stage_space, stages_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.passmanager.manager import run_pipeline
from kitsune_mlir.tuning.cache import TuningCache
from kitsune_mlir.tuning.candidates import candidates
from kitsune_mlir.tuning.isolate import isolate
from kitsune_mlir.tuning.stage_key import stage_key

__all__ = ["Tuned", "Work", "partition", "plan", "tune"]

Tile = tuple[int, ...]
Measure = Callable[[ir.Module, PartitionStreams, float], float]
"""Milliseconds of a module that holds one stage, planned by this pass. What takes longer than the third argument will not be
chosen and need not be timed well."""

HOPELESS = 3.0
"""Times the best tile so far."""


@dataclasses.dataclass
class Tuned:
    """What is known of a stage.

    Attributes:
        name: of the stage.
        key: of `stage_key`.
        planned: the planner's tile.
        times: milliseconds by tile.
    """

    name: str
    key: str
    planned: Tile
    times: dict[Tile, float] = dataclasses.field(default_factory=dict)

    @property
    def time(self) -> float | None:
        """Milliseconds of the fastest tile, a launch included; None where nothing was measured."""
        return min(self.times.values(), default=None)

    @property
    def tile(self) -> Tile:
        """The fastest; the planner's where nothing was measured."""
        return min(self.times, key=lambda t: self.times[t]) if self.times else self.planned


def partition(
    tiles: Mapping[str, Tile], mode: str = "auto", times: Mapping[str, float] | None = None, deterministic: bool = False
) -> PartitionStreams:
    """The pass with tiles and times (milliseconds) of stages by name, the pipeline's mode, and whether additions keep an
    order."""
    return PartitionStreams(
        tiles=tuple(f"{name}:{'x'.join(map(str, tile))}" for name, tile in tiles.items()),
        mode=mode,
        times=tuple(f"{name}:{1e3 * time:.2f}" for name, time in (times or {}).items()),
        deterministic=deterministic,
    )


@dataclasses.dataclass
class Work:
    """A stage that is to be measured.

    Attributes:
        stage: which.
        module: it alone.
        tiles: what to measure, the planner's tile first.
    """

    stage: Tuned
    module: ir.Module
    tiles: list[Tile]


def plan(module: ir.Module | ModuleOp, target: Target, cache: TuningCache) -> tuple[list[Tuned], list[Work]]:
    """All stages of a module that has been through `kitsune-form-stages`, and those to measure, equal ones once.

    Stages that the cache knows have their times.
    """
    version = metadata.version("kitsune-mlir")
    stages = {ir.StringAttr(s.attributes["sym_name"]).value: s for s in _stages(module.operation)}
    found: list[Tuned] = []
    work: dict[str, Work] = {}
    for name, tile, sizes in _planned(module, target):
        stage = Tuned(name, stage_key(stages[name], target.name, version), tile)
        stage.times = cache.get(stage.key) or {}
        found.append(stage)
        if not stage.times and stage.key not in work and tile:
            alone = isolate(stages[name])
            if alone is not None:
                work[stage.key] = Work(stage, alone, candidates(sizes, tile))
    return found, list(work.values())


def tune(
    module: ir.Module | ModuleOp,
    target: Target,
    measure: Measure,
    cache: TuningCache,
    seconds: float,
    on_step: Callable[[str, int, int], None] | None = None,
    expect: Callable[[ir.Module, PartitionStreams], None] | None = None,
) -> list[Tuned]:
    """Choose tiles for the stages of a module that has been through `kitsune-form-stages`; it is left as it is.

    Args:
        measure: times a stage alone. A `KitsuneError` from it means that this tile cannot be had.
        cache: what is known already, and what is learned.
        seconds: no measurement is started later than that; stages that were not measured to the end are not kept.
        on_step: called before each measurement with the stage's name, the number of measurements so far and of all.
        expect: called at the start with what `measure` will be asked for, in order.
    """
    found, wanted = plan(module, target, cache)
    total, done, start = sum(len(work.tiles) for work in wanted), 0, time.monotonic()
    if expect is not None and seconds > 0:
        for work in wanted:
            for tile in work.tiles:
                expect(work.module, partition({work.stage.name: tile}))
    learned: dict[str, dict[Tile, float]] = {}
    for work in wanted:
        with cache.turn(start + seconds):
            # What another process has measured meanwhile need not be measured again.
            times = learned[work.stage.key] = cache.get(work.stage.key) or {}
            if times:
                done += len(work.tiles)
                continue
            for tile in work.tiles:
                if time.monotonic() - start >= seconds:
                    break
                if on_step is not None:
                    on_step(work.stage.name, done, total)
                done += 1
                with contextlib.suppress(KitsuneError):
                    enough = HOPELESS * min(times.values(), default=float("inf"))
                    times[tile] = measure(work.module, partition({work.stage.name: tile}), enough)
            else:
                if times:
                    cache.put(work.stage.key, work.stage.name, times)
    return [dataclasses.replace(stage, times=learned.get(stage.key, stage.times)) for stage in found]


def _planned(module: ir.Module | ModuleOp, target: Target) -> Iterator[tuple[str, Tile, list[int]]]:
    """Each stage by name with the planner's tile, and the sizes of what it is tiled along."""
    with module.context:
        copy = module.operation.clone(ip=False).operation
        run_pipeline(copy, [PartitionStreams(target=target.name)], target=target.name)
        for stage in _stages(copy):
            tile = tuple(ir.DenseI64ArrayAttr(stage.attributes["tile"]))
            yield ir.StringAttr(stage.attributes["sym_name"]).value, tile, [d.size for d in stage_space(stage).dims]


def _stages(module: ir.Operation) -> list[ir.Operation]:
    return [s.operation for op in walk(module) if op.name == "kitsune.pipeline" for s in stages_of(op)]
