"""Costs of stages: work counted from maps, and seconds that behave as the chip does."""

from __future__ import annotations

import dataclasses
import math

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects.edges import stages_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.stage_cost import Work, cost_of, stage_seconds
from kitsune_mlir.machine.stage_work import work_of_stage
from kitsune_mlir.machine.target import find_target
from test.programs.planned import MLP, plan, rows

H200 = find_target("h200")
PRODUCT = Work("mma", 128, 2 * 128 * 128 * 1024, 0, 2 * 1024 * 256, 128 * 128 * 2, 0, 6 << 20, 0, 2, 128, 128, 1024, 1)


def test_the_work_of_a_product_is_counted_from_its_maps() -> None:
    module = plan(MLP, rows)
    with module.context, ir.Location.unknown():
        pipeline = next(op for op in walk(module.operation) if op.name == "kitsune.pipeline")
        first = work_of_stage(stages_of(pipeline)[0], "mma", [2, 9])
    assert (first.tiles, first.rows, first.cols, first.terms, first.layers) == (5, 2, 9, 6, 1)
    assert first.tensor_ops * first.tiles == 2 * 10 * 6 * 9
    assert first.read_bytes == 4 * (2 * 6 + 6 * 9) and first.distinct_bytes == 4 * (10 * 6 + 6 * 9)
    assert first.write_bytes == 4 * 2 * 9


def test_a_stage_on_fewer_multiprocessors_takes_longer_and_never_beats_memory() -> None:
    times = [stage_seconds(PRODUCT, H200, n) for n in (132, 64, 32, 8, 1)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(cost_of(PRODUCT, H200).seconds + 127 * cost_of(PRODUCT, H200).step)
    streaming = dataclasses.replace(PRODUCT, engine="simt", tensor_ops=0.0, distinct_bytes=1e9)
    assert stage_seconds(streaming, H200) >= 1e9 / H200.dram_rate
    assert stage_seconds(streaming, H200, dram_share=0.5) >= 2e9 / H200.dram_rate


def test_sharing_a_tile_pays_for_long_sums_only() -> None:
    few = dataclasses.replace(PRODUCT, tiles=16, terms=8192, tensor_ops=2 * 128 * 128 * 8192, read_bytes=2 * 8192 * 256)
    assert stage_seconds(dataclasses.replace(few, pieces=8), H200) < 0.5 * stage_seconds(few, H200)
    short = dataclasses.replace(few, terms=64, tensor_ops=2 * 128 * 128 * 64, read_bytes=2 * 64 * 256)
    assert stage_seconds(dataclasses.replace(short, pieces=8), H200) > stage_seconds(short, H200)


def test_costs_follow_the_machine() -> None:
    fast = dataclasses.replace(H200, matrix_rate=2 * H200.matrix_rate)
    assert cost_of(PRODUCT, fast).tensor == pytest.approx(cost_of(PRODUCT, H200).tensor / 2)
    assert math.isclose(cost_of(PRODUCT, fast).start, cost_of(PRODUCT, H200).start)
