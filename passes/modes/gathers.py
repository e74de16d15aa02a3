"""Gathers of what another stage makes: a tile waits for all of it, or only for the rows that its indices name.

An index may name any row, so a counter for the whole stage is what a gather waits for. But where the indices are an argument,
a tile can read its own before it waits, and then look at the counter of each row block that they name. That costs an index
and a counter for each of its rows, and gains what the last of a stage's tiles let the others wait: much where few rows are
gathered from a stage of few waves, nothing where a tile's rows lie in most blocks. A model of both decides.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import engine_of, traits_of
from kitsune_mlir.dialects.attribute_table import INDEXED, INTO, ORDERED, UPDATES
from kitsune_mlir.dialects.edges import Edge, edge_of, grid_of, producer_of, stage_space, stages_of, trace_views
from kitsune_mlir.dialects.named_rows import Named
from kitsune_mlir.dialects.stage_graph import inputs_of
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.remarks import remark

from .choice import Part, budget_of, model_of, name_of
from .times import temporal_seconds

__all__ = ["CHOICES", "mark_gathers"]

CHOICES = ("auto", "all", "rows")
CLEARLY = 0.99
"""Of the time with one counter for all, below which rows are waited for."""


def mark_gathers(pipeline: ir.Operation, wanted: str, target: Target) -> None:
    """Decide for each gather of what another stage makes, as `wanted` says (one of `CHOICES`), and write it to its stage.

    A remark gives the reason. Only on a GPU: a host's few workers leave a stage no tail to wait for.
    """
    whole: float | None = None  # of the program as it is
    parts: dict[str, Part] = {}
    found = [(stage, gather) for stage in stages_of(pipeline) if target.is_gpu for gather in _gathers(stage)]
    for stage, (producer, named) in found:
        reason = _refused(stage, producer)
        if reason is None:
            rows = sum(one.count(grid_of(stage).tile) for one in named)
            whole = _seconds(pipeline, target, parts) if whole is None else whole
            before = list(ir.ArrayAttr(stage.attributes[INDEXED])) if INDEXED in stage.attributes else []
            stage.attributes[INDEXED] = ir.ArrayAttr.get([*before, producer.attributes["sym_name"]])
            parts.pop(name_of(stage), None)
            seconds = _seconds(pipeline, target, parts)
            gain = f"{rows} rows a tile ({seconds * 1e6:.1f} us, waiting for all of it {whole * 1e6:.1f})"
            if wanted == "rows" or (wanted == "auto" and seconds < CLEARLY * whole):
                remark(stage, f"gathers from {name_of(producer)}, waits for the rows that its indices name: {gain}")
                whole = seconds
                continue
            reason = f"its indices name {gain}"
            parts.pop(name_of(stage), None)
            if before:
                stage.attributes[INDEXED] = ir.ArrayAttr.get(before)
            else:
                del stage.attributes[INDEXED]
        remark(stage, f"gathers from {name_of(producer)}, waits for all of it: {reason}")


def _seconds(pipeline: ir.Operation, target: Target, parts: dict[str, Part]) -> float:
    """Of one launch, with the edges as they are; `parts`: as of `model_of`."""
    model = model_of(pipeline, target, parts=parts)
    return temporal_seconds(model.stages, model.flows, budget_of(target))


def _gathers(stage: ir.Operation) -> list[tuple[ir.Operation, tuple[Named, ...]]]:
    """The producers that a stage reads only by index, with the indices of the rows."""
    if any(word in stage.attributes for word in (INTO, UPDATES, ORDERED)):
        return []
    edges: dict[ir.Operation, list[Edge]] = {}
    space = stage_space(stage)
    for value in inputs_of(stage):
        producer, _ = producer_of(trace_views(value)[0])
        if producer is not None and producer.name == "kitsune.stage":
            stage.attributes[INDEXED] = ir.ArrayAttr.get([producer.attributes["sym_name"]])  # to see what it would be
            edge = edge_of(stage, space, value)
            edges.setdefault(producer, []).extend([edge] if edge is not None else [])
            del stage.attributes[INDEXED]
    only = {producer: each for producer, each in edges.items() if each and all(edge.named for edge in each)}
    return [(producer, tuple(named for edge in each for named in edge.named)) for producer, each in only.items()]


def _refused(stage: ir.Operation, producer: ir.Operation) -> str | None:
    """Why a stage's tiles cannot wait for rows; None if they can."""
    engine = engine_of(stage)
    if not traits_of(engine).polls_with_all_threads:
        return f"few threads of engine {engine} would read its indices"
    if any(word in producer.attributes for word in (INTO, UPDATES, ORDERED)):
        return "how often a row is added to is not known before all indices are read"
    return None
