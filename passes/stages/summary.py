"""A scheduled stage graph in figures: what `explain` says and what the tests of the planner look at."""

import math
from collections.abc import Container
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import engine_of
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.edges import Grid, grid_of, producer_of, stages_of, trace_views, uses_in
from kitsune_mlir.dialects.products import defining_op, is_contraction
from kitsune_mlir.dialects.recurrence import RECURRENCE, Recurrence
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, mode_of, results_of, yielded
from kitsune_mlir.dialects.unchanged import lasting, unchanged
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import Target

_COUNTED = ("linalg", "tm_tensor", "tensor.concat", "tensor.pad", RECURRENCE)
"""What names of operations that do something begin with."""


def words(attribute: ir.Attribute) -> list[str]:
    """The first string parameter of each attribute in an array: `#kitsune.sync<"row">` -> row."""
    return [str(item).split('"')[1] for item in ir.ArrayAttr(attribute)]


def read_bytes(grid: Grid, value: ir.Value) -> int:
    """Bytes that all tiles of a stage ask for of one input together (a whole operand counts once for each tile)."""
    shape, total = shape_of(value), 0
    for use in uses_in(grid.space, value)[:1]:
        sizes = [s if u.dim is None else min(s, u.size(grid.tile[u.dim])) for s, u in zip(shape, use, strict=True)]
        total = max(total, tensor_bytes(value.type, sizes) * grid.tasks)
    return total


def operations_of(grid: Grid) -> int:
    """Floating-point operations of the products of a stage (two for each multiply-add)."""
    total = 0
    for n, op in enumerate(grid.space.ops):
        access = grid.space.accesses[n]
        if access is not None and is_contraction(op):
            total += 2 * math.prod(access.sizes)
        elif op.name == RECURRENCE:
            total += 2 * Recurrence.of(op).multiply_adds
    return total


def _unfused_bytes(grid: Grid) -> int:
    """Bytes that the same ops would move through memory if each were a kernel of its own."""
    total = 0
    for op in grid.space.ops:
        if not op.name.startswith(_COUNTED):
            continue
        tensors = [v for v in [*op.operands, *op.results] if isinstance(v.type, ir.RankedTensorType)]
        total += sum(tensor_bytes(v.type) for v in tensors if (d := defining_op(v)) is None or d.name != "tensor.empty")
    return total


def summarize(module: ir.Operation, target: Target) -> dict[str, Any]:
    """Stages, edges, buffers and traffic of the pipelines in a module that has been through `kitsune-synchronize`."""
    with module.context, ir.Location.unknown(), lasting(), unchanged():
        pipelines = [op for op in walk(module) if op.name == "kitsune.pipeline"]
        stages: list[dict[str, Any]] = []
        for pipeline in pipelines:
            leaving = {producer_of(trace_views(v)[0]) for v in yielded(pipeline)}
            stages += [_stage(stage, leaving) for stage in stages_of(pipeline)]
        arena = sum(ir.IntegerAttr(p.attributes["arena"]).value for p in pipelines if "arena" in p.attributes)
        outer: dict[ir.Value, None] = {}
        for pipeline in pipelines:
            outer.update(dict.fromkeys(inputs_of(pipeline)))
        outputs = [v for pipeline in pipelines for v in yielded(pipeline)]
        compulsory = sum(tensor_bytes(v.type) for v in (*outer, *outputs))
    between = sum(b for s in stages for b in s["writes_between"])
    operations = sum(s["operations"] for s in stages)
    # What stays in the last-level cache does not cross to DRAM; above that, edges are written once and read once.
    spilled = 2 * max(0, between - target.cache_bytes)
    return {
        "target": target.name,
        "launches": len(pipelines),
        "mode": mode_of(pipelines[0]) if pipelines else "temporal",
        "stages": stages,
        "arena_bytes": arena,
        "operations": operations,
        "compulsory_bytes": compulsory,
        "between_bytes": between,
        "unfused_bytes": sum(s["unfused_bytes"] for s in stages),
        "floor_seconds": max(operations / target.matrix_rate, (compulsory + spilled) / target.dram_rate),
    }


def _stage(stage: ir.Operation, leaving: Container[tuple[ir.Operation | None, int]]) -> dict[str, Any]:
    """A stage in figures; `leaving`: the stages and results that its pipeline hands out."""
    grid = grid_of(stage)
    inputs, results = inputs_of(stage), results_of(stage)
    producers = [producer_of(trace_views(v)[0])[0] for v in inputs]
    names = [
        ir.StringAttr(p.attributes["sym_name"]).value if p is not None and p.name == "kitsune.stage" else "" for p in producers
    ]
    kinds: dict[str, int] = {}
    for op in grid.space.ops:
        if op.name.startswith(_COUNTED):
            word = "product" if is_contraction(op) else op.name.split(".")[1]
            kinds[word] = kinds.get(word, 0) + 1
    return {
        "name": ir.StringAttr(stage.attributes["sym_name"]).value,
        "ops": kinds,
        "engine": engine_of(stage),
        "sizes": [d.size for d in grid.space.dims],
        "tile": list(grid.tile),
        "tasks": grid.tasks,
        "waits": [
            [name, policy]
            for name, policy in dict.fromkeys(zip(names, words(stage.attributes["sync"]), strict=True))
            if policy != "none"
        ]
        if "sync" in stage.attributes
        else [],
        "after": [ir.StringAttr(a).value for a in ir.ArrayAttr(stage.attributes["after"])]
        if "after" in stage.attributes
        else [],
        "reads": sum(read_bytes(grid, v) for v in inputs),
        "writes_between": [tensor_bytes(v.type) for n, v in enumerate(results) if (stage, n) not in leaving],
        "writes": [tensor_bytes(v.type) for v in results],
        "operations": operations_of(grid),
        "unfused_bytes": _unfused_bytes(grid),
        "source": str(stage.location).removeprefix("loc(").removesuffix(")"),
    }
