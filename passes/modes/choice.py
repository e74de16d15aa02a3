"""The mode of a pipeline: how long it takes temporal, spatial and in separate launches, and what its stages must know then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.attribute_table import INTO, MUTATES, VALID_ROWS
from kitsune_mlir.dialects.edges import edge_of, producer_of, stage_space, stages_of, tile_sizes, trace_views
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, results_of, yielded
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Work, bulk_rate, cost_of
from kitsune_mlir.machine.stage_work import work_of_stage
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.remarks import remark
from kitsune_mlir.passes.spatial.allocation import Allocation, Budget, Flow, Stage, allocate, least_seconds

from .times import Launches, busy_seconds, launches_of, limits_of, temporal_seconds

LOOKING = 256
"""Threads that look side by side for the counters of rows that indices name."""
PIECE_BYTES, SUMMED = 64 << 10, 16
"""Bytes that a piece of a sum reads at least, and how many times more a reduction reads than it writes."""
CLEARLY_SEPARATE = 0.96
"""Of the temporal time that separate launches must stay below to be chosen: of equals one launch. By these costs a recommender
takes 95 % of it (94 % measured on an H200), a Llama layer of 128 tokens 97 % (105 % measured). Where launches are long, less
is enough: what each takes to start, `rates.LAUNCH_SHORT`, and has to save (a Llama layer's training step of 2,048 tokens takes
98.6 % by these costs; it ran at 0.96 of torch.compile's speed in 21 launches, and at 0.87 in 4)."""
CLEARLY_SPATIAL = 0.7
"""The same for multiprocessors of their own: of their costs less is known."""
MOST_IN_ONE = 96
"""Stages that a program of one launch has at most, if nobody wants another: its code grows with each of them, and equal ones
are not shared as equal launches are. (A training step of BERT-base has 766 stages, and would be one launch by its times.)"""


@dataclass(frozen=True)
class Model:
    """A pipeline in numbers: its stages but for those that others do, and the edges between them."""

    names: tuple[str, ...]
    stages: tuple[Stage, ...]
    flows: tuple[Flow, ...]


def budget_of(target: Target) -> Budget:
    """What a GPU has."""
    return Budget(
        workers=target.workers,
        dram_rate=target.dram_rate,
        l2_rate=bulk_rate(target),
        ring_rate=target.ring_rate,
        ring_bytes=target.ring_bytes,
        cache_bytes=target.cache_bytes,
        hand_off=rates.MODE_HAND_OFF,
    )


def own_stages(pipeline: ir.Operation) -> list[ir.Operation]:
    """The stages that have tasks of their own."""
    return [stage for stage in stages_of(pipeline) if INTO not in stage.attributes]


def name_of(stage: ir.Operation) -> str:
    """A stage's `sym_name`."""
    return ir.StringAttr(stage.attributes["sym_name"]).value


Part = tuple[Stage, tuple[Flow, ...], str]
"""A stage of a model, the edges to it, and its engine."""


def model_of(
    pipeline: ir.Operation,
    target: Target,
    measured: Mapping[str, float] | None = None,
    parts: dict[str, Part] | None = None,
) -> Model:
    """The numbers of a pipeline whose stages have engines and tiles.

    Args:
        measured: seconds of stages alone, by name.
        parts: what is known of stages, by name; the others' is added. Who changes what a stage waits for takes it out.
    """
    own = own_stages(pipeline)
    place = {hash(stage): n for n, stage in enumerate(own)}
    by_name = {name_of(stage): n for n, stage in enumerate(own)}
    for stage in stages_of(pipeline):
        if INTO in stage.attributes:  # its producer does it
            place[hash(stage)] = by_name[ir.StringAttr(stage.attributes[INTO]).value]
    leaving = {producer_of(trace_views(v)[0]) for v in yielded(pipeline)}
    adding = {ir.StringAttr(s.attributes[INTO]).value for s in stages_of(pipeline) if INTO in s.attributes}
    parts, made = {} if parts is None else parts, list[Part]()
    for stage, name in zip(own, by_name, strict=True):
        if name not in parts:
            stored = [v for r, v in enumerate(results_of(stage)) if (stage, r) in leaving and is_tensor(v)]
            parts[name] = _part_of(stage, target, made, place, stored, name in adding)
        made.append(parts[name])
    stages, flows = [stage for stage, _, _ in made], [flow for _, into, _ in made for flow in into]
    engines = [engine for _, _, engine in made]
    if not any(traits_of(engine).one_block for engine in engines):  # blocks share multiprocessors in one launch, too
        # Beside a convolution's they do not, which tells where a stage moves much. (On an H200, one launch and two: images of
        # 32 x 64 x 56 x 56 turned and convolved 30.7 and 26.7 us, 32 x 128 x 28 x 28 23.8 and 21.4, 32 x 256 x 14 x 14 24.4
        # and 22.5, 8 x 64 x 56 x 56 13.4 and 11.7.)
        least = rates.LAUNCH_LONG_MOVE if any(traits_of(engine).windows for engine in engines) else math.inf
        moved = [max(s.dram_bytes / target.dram_rate, s.l2_bytes / bulk_rate(target)) for s in stages]
        stages = [s if seconds >= least else replace(s, crowd=1) for s, seconds in zip(stages, moved, strict=True)]
    taken = {name: seconds - target.launch_seconds for name, seconds in (measured or {}).items()}
    # A block posts once for all its tiles where every reader waits for the whole stage.
    by_tile = {flow.producer for flow in flows if not flow.whole}
    stages = [
        stage if n in by_tile or not stage.posting else replace(stage, posting=0.0, settling=rates.ATOMIC_SETTLING)
        for n, stage in enumerate(stages)
    ]
    stages = [scaled(stage, taken.get(stage.name), target) for stage in stages]
    return Model(tuple(map(name_of, own)), tuple(stages), tuple(dict.fromkeys(flows)))


def _part_of(
    stage: ir.Operation,
    target: Target,
    earlier: Sequence[Part],
    place: Mapping[int, int],
    stored: Sequence[ir.Value],
    adds: bool,
) -> Part:
    """A stage of a model.

    Args:
        earlier: those before it.
        place: the numbers of stages, by their hashes.
        stored: its results that leave the pipeline.
        adds: whether it adds rows for another stage.
    """
    n, work = len(earlier), _with_pieces(work_of_stage(stage), target)
    cost = cost_of(work, target)
    space = stage_space(stage)
    outer, named, flows = 0.0, 0, list[Flow]()
    for value in (v for v in inputs_of(stage) if is_tensor(v)):
        edge = edge_of(stage, space, value)
        if edge is None:
            outer += tensor_bytes(value.type)
            continue
        before = place[hash(edge.producer)]
        if before == n:
            continue
        whole = edge.policy == "all"
        bytes_ = tensor_bytes(value.type)
        # Its weights come while it waits (successive products share a ring: `codegen/gpu/engines/mma/task_fusion.py`).
        ahead = traits_of(work.engine).weights_ahead
        follows = before == n - 1 and work.engine == earlier[before][2]
        streamed = ahead == "always" or (ahead == "successor" and follows)
        rows = sum(one.count(tile_sizes(stage, space)) for one in edge.named)
        named += rows
        flows.append(Flow(before, n, bytes_, bytes_ / earlier[before][0].tiles, whole, streamed, rows))
    outer = min(outer, work.distinct_bytes) + sum(tensor_bytes(value.type) for value in stored)
    tiles = work.tiles * work.pieces
    looks = rates.ROW_LOOKUP * math.ceil(named / LOOKING)
    made = Stage(
        name_of(stage),
        tiles,
        cost.seconds + looks,
        cost.step + looks,
        cost.tensor * tiles,
        cost.vector * tiles,
        outer,
        cost.l2_bytes,
        posting=rates.ATOMIC_POST if adds else 0.0,
        crowd=traits_of(work.engine).crowd // (2 if work.levels else 1) or 1,
    )
    return made, tuple(flows), work.engine


def _with_pieces(work: Work, target: Target) -> Work:
    """A stage's work as its engine shares it out: several blocks have a piece of the sums of each tile, where tiles are few."""
    sums = work.layers == 1 or (not work.layers and work.levels == 1 and SUMMED * work.write_bytes <= work.read_bytes)
    traits = traits_of(work.engine)
    if not sums or work.pieces > 1 or work.cycles or not (traits.shares_sums or traits.spreads_sums):
        return work
    pieces = min(target.workers // work.tiles, int(work.read_bytes / PIECE_BYTES))
    return replace(work, pieces=max(1, pieces))


def scaled(stage: Stage, seconds: float | None, target: Target) -> Stage:
    """A stage whose tiles take as long as makes it so long on the whole machine; as it is where nothing was measured."""
    if seconds is None or seconds <= 0:
        return stage
    factor = seconds / stage.seconds(target.workers)
    return replace(stage, first=factor * stage.first, step=factor * stage.step)


def set_mode(pipeline: ir.Operation, wanted: str, target: Target, measured: Mapping[str, float] | None = None) -> None:
    """Write a pipeline's mode, the wanted one or (`auto`) that of the least time, and what each of its stages needs for it.

    `measured`: seconds that stages take alone, by name, instead of the model's.

    Raises:
        PassFailure: the pipeline cannot have the wanted mode.
    """
    mode = "temporal" if wanted == "auto" else wanted
    allocation: Allocation | str = f"{target.name} has no multiprocessors to give to stages"
    launches: Launches | None = None
    if target.is_gpu:
        model, budget = model_of(pipeline, target, measured), budget_of(target)
        seconds = {"temporal": temporal_seconds(model.stages, model.flows, budget)}
        if len(model.stages) == 1 and wanted in ("spatial", "separate"):
            remark(pipeline, f"cannot be {wanted}: {model.names[0]} is its only stage")
        if len(model.stages) > 1:
            launches = launches_of(model.stages, model.flows, budget)
            seconds["separate"] = launches.seconds
            few = len(model.stages) <= MOST_IN_ONE
            if wanted == "spatial" or (wanted == "auto" and few and may_be_spatial(model.stages, model.flows, budget, seconds)):
                allocation = allocate(model.stages, model.flows, budget)
            if isinstance(allocation, Allocation):
                seconds["spatial"] = allocation.seconds + _seconds_of_copies(pipeline, target)
        if wanted == "auto":
            known = {how: time for how, time in seconds.items() if how != "spatial" or not _counts_rows(pipeline)}
            count = launches.numbers[-1] + 1 if launches is not None else math.inf
            mode = choose(known, len(model.stages), count)
            if len(model.stages) > MOST_IN_ONE and choose(known, 1, count) != mode:
                remark(pipeline, f"{len(model.stages)} stages are too many for one launch: {MOST_IN_ONE} at most")
        _explain(pipeline, mode, model, seconds, allocation, launches, budget)
        if mode == "spatial" and isinstance(allocation, Allocation):
            _write_rings(pipeline, model.flows, allocation)
    _write(pipeline, mode, allocation, launches, target)


def may_be_spatial(stages: Sequence[Stage], flows: Sequence[Flow], budget: Budget, seconds: Mapping[str, float]) -> bool:
    """Whether an allocation may take so little time that `choose` takes it: only then it is worth looking for one.

    Args:
        seconds: of the other modes.
    """
    limit = CLEARLY_SPATIAL * seconds["temporal"]
    if seconds["separate"] < CLEARLY_SEPARATE * seconds["temporal"]:
        limit = min(limit, seconds["separate"])
    return busy_seconds(stages, budget) < limit and least_seconds(stages, flows, budget) < limit


def _counts_rows(pipeline: ir.Operation) -> bool:
    """Whether calls may want fewer rows than there are: stages that own shares of the machine do not leave the others out."""
    return any(VALID_ROWS in said for said in _result_attributes(pipeline))


def _seconds_of_copies(pipeline: ir.Operation, target: Target) -> float:
    """What copying new values to the arguments that they are of takes: only stages one after the other write them there."""
    made = ir.FunctionType(ir.TypeAttr(pipeline.parent.operation.attributes["function_type"]).value).results
    copied = [tensor_bytes(type_) for type_, said in zip(made, _result_attributes(pipeline), strict=False) if MUTATES in said]
    return rates.LAUNCH_SHORT + 2 * sum(copied) / target.dram_rate if copied else 0.0


def _result_attributes(pipeline: ir.Operation) -> list[ir.DictAttr]:
    function = pipeline.parent.operation
    return [ir.DictAttr(said) for said in function.attributes["res_attrs"]] if "res_attrs" in function.attributes else []


def choose(seconds: dict[str, float], stages: int = 1, launches: float = math.inf) -> str:
    """The mode of the least time, where that is clear; else temporal, unless there are too many stages for one launch.

    Args:
        launches: how many the separate mode has; where nobody says, they are taken for short ones.
    """
    if stages > MOST_IN_ONE and "separate" in seconds:
        return "separate"
    temporal = seconds["temporal"]
    separate = max(CLEARLY_SEPARATE * temporal, temporal - (rates.LAUNCH_SHORT + rates.LAUNCH_SAVING) * launches)
    limits = {"separate": separate, "spatial": CLEARLY_SPATIAL * temporal}
    clear = [mode for mode, limit in limits.items() if mode in seconds and seconds[mode] < limit]
    return min(clear, key=lambda mode: seconds[mode], default="temporal")


def _explain(
    pipeline: ir.Operation,
    mode: str,
    model: Model,
    seconds: dict[str, float],
    allocation: Allocation | str,
    launches: Launches | None,
    budget: Budget,
) -> None:
    """Say what was chosen, what limits it, what would be the next limit, and what the other modes would take."""
    limits = limits_of(model.stages, model.flows, budget)
    if mode == "spatial" and isinstance(allocation, Allocation):
        limits = list(allocation.limits)
        shares = ", ".join(f"{name} {count}" for name, count in zip(model.names, allocation.workers, strict=True))
        rings = sum(depth > 0 for depth in allocation.depths)
        remark(pipeline, f"multiprocessors: {shares} of {budget.workers}; {rings} of {len(model.flows)} edges in rings")
    if mode == "separate" and launches is not None:
        groups: dict[int, list[str]] = {}
        for name, number in zip(model.names, launches.numbers, strict=True):
            groups.setdefault(number, []).append(name)
        remark(pipeline, f"launches: {'; '.join(' '.join(group) for group in groups.values())}")
    times = ", ".join(f"{name} {time * 1e6:.1f} us" for name, time in seconds.items())
    (first, least), (second, then) = limits[:2]
    remark(
        pipeline,
        f"mode {mode} ({times}); bottleneck {first} ({least * 1e6:.1f} us), the next would be {second} ({then * 1e6:.1f} us)",
    )


def _write(pipeline: ir.Operation, mode: str, allocation: Allocation | str, launches: Launches | None, target: Target) -> None:
    integer = ir.IntegerType.get_signless(64)
    stages = own_stages(pipeline)
    workers = [target.workers]
    if mode == "spatial" and len(stages) > 1:
        if isinstance(allocation, str):
            raise PassFailure(pipeline, f"cannot be spatial: {allocation}")
        workers = list(allocation.workers)
    for number, stage in enumerate(stages):
        if mode == "spatial":
            stage.attributes["workers"] = ir.IntegerAttr.get(integer, workers[number])
        elif mode == "separate":
            launch = launches.numbers[number] if launches is not None else number
            stage.attributes["launch"] = ir.IntegerAttr.get(integer, launch)
    pipeline.attributes["mode"] = ir.StringAttr.get(mode)


def _write_rings(pipeline: ir.Operation, flows: Sequence[Flow], allocation: Allocation) -> None:
    """Give stages whose results should go through rings the number of tiles: a few for each of its multiprocessors."""
    integer = ir.IntegerType.get_signless(64)
    for number, stage in enumerate(own_stages(pipeline)):
        depths = [depth for flow, depth in zip(flows, allocation.depths, strict=True) if flow.producer == number]
        if depths and min(depths) > 0:
            stage.attributes["ring"] = ir.IntegerAttr.get(integer, max(depths) * allocation.workers[number])
