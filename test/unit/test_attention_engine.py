"""The attention engine without a GPU: its plans, and that its kernels assemble."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import GpuCode, compile_gpu
from kitsune_mlir.codegen.gpu.engines.attention.engine import AttentionEngine
from kitsune_mlir.codegen.gpu.engines.attention.kv_schedule import tile_costs, tile_order
from kitsune_mlir.codegen.gpu.engines.attention.plan import AttentionPlan, _pieces
from kitsune_mlir.codegen.gpu.engines.attention.tiles import best_rows
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.gpu.attention_cases import SMALL, TIMED, Case, inputs_of, model_of
from test.programs.compiled import module_after
from test.rotation import in_turn


def narrow(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def planned(name: str, **limits) -> Plan | Decline:
    case = {**SMALL, **TIMED}[name]
    module = module_after(model_of(case), *inputs_of(case, "cpu").values())
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        return AttentionEngine().plan(ProgramView(function).tasks[-1], KernelOptions(**limits))


def decided(name: str) -> AttentionPlan:
    plan = planned(name)
    assert isinstance(plan, Plan), plan
    return plan.private


def assembled(case: Case) -> GpuCode:
    module = module_after(model_of(case), *inputs_of(case, "cpu").values())
    with module.context, ir.Location.unknown():
        return compile_gpu(module, "main_p0")


def test_plans() -> None:
    prefill = decided("prefill_4096")
    assert (prefill.split, prefill.pieces, prefill.pattern.row_count, prefill.pattern.keys) == (False, 1, 128, 4096)
    assert prefill.query.map.box[-2:] == (128, 64) and prefill.query.panels == 2
    decode = decided("decode_16")  # 4 heads x 16 rows read the same keys
    assert decode.split and decode.pattern.rows == (4, 16) and len(decode.results) == 1
    assert decided("decode_cached").part_blocks == (8, 1)
    assert decided("width_256").block == 80
    assert [box.map.box[-2] for box in decided("width_256").results] == [64, 64]


def test_cached_keys_are_read_first() -> None:
    """Blocks are read from the last one down: of a cache, before the new keys, which other tasks make."""
    plan = decided("decode_made")
    assert plan.part_blocks == (16, 1) and plan.order == (1, 0) and plan.made_blocks == 1
    assert 2 * plan.early - 1 <= plan.slots  # what comes before q must fit the ring, or both would wait for each other
    assert decided("decode_cached").order == (0, 1) and decided("decode_cached").made_blocks == 0


@pytest.mark.parametrize(("name", "early"), [("decode_made", True), ("causal_made", False)])
def test_cached_keys_come_before_the_wait_for_new_ones(name: str, early: bool) -> None:
    loader = assembled(SMALL[name]).ptx.rpartition("setmaxnreg.dec.sync.aligned.u32 \t40;")[2]
    assert (loader.index("shared::cluster.global.tile") < loader.index("ld.acquire.gpu")) == early


def test_idle_blocks_share_the_keys_of_a_tile() -> None:
    assert decided("decode_1_8192").pieces == 16  # 8 tiles on 132 multiprocessors
    assert decided("decode_16_8192").pieces == 1
    plan = planned("decode_1_8192")
    assert isinstance(plan, Plan) and plan.split is not None and plan.split.arrivals == 8 == plan.split.reads
    assert plan.split.bytes == 8 * 16 * 4 * (128 + 2) * 4  # tiles x pieces x rows x (sums, maximum, sum)


def test_rows_of_two_tiles_are_joined_in_one_order() -> None:
    """The last tile of causal rows reads more blocks of keys than the one that it overlaps, so the warpgroups change places."""
    assert [decided(name).uneven for name in ("keys_1000_causal", "causal", "keys_1000")] == [True, False, False]
    uneven, even = decided("keys_1000_causal"), decided("cross_long")
    assert uneven.split and even.split and (_pieces(uneven, 1, 132), _pieces(even, 1, 132)) == (1, 1 + (even.blocks >= 16))
    ragged, whole = (assembled(SMALL[name]).ptx.count("selp.f32") for name in ("keys_1000_causal", "causal"))
    assert ragged >= whole + 128  # each thread's 64 sums of both warpgroups


def test_joined_pieces_are_stored_without_a_bulk_copy() -> None:
    joined, whole = (assembled(SMALL[name]).ptx for name in ("decode", "plain"))
    assert "global.shared::cta" in whole and "global.shared::cta" not in joined


def test_threads_wait_for_each_other_in_one_place_only() -> None:
    """A named barrier that two roles each wait at in code of their own is an error to synccheck: one of them just arrives."""
    for name in ("decode", "decode_cached", "decode_16"):
        waits = re.findall(r"bar\.sync\s+([1-9]\d*), 256;", assembled(SMALL[name]).ptx)
        assert sorted(waits) == ["3", "4"]


def test_too_little_shared_memory_is_declined() -> None:
    plan = planned("causal", shared_bytes=32768)
    assert isinstance(plan, Decline) and "do not fit shared memory" in plan.reason


@pytest.mark.parametrize(
    ("name", "few"),
    [
        *((name, False) for name in in_turn(["plain", "grouped_bshd", "width_256_causal", "head_mask", "decode_16"], 2)),
        *((name, False) for name in in_turn(["plain_many", "causal_many", "row_mask_many"], 1)),
        *((name, True) for name in in_turn(["decode_cached", "decode", "decode_width_256"], 1)),
    ],
)
def test_kernels_assemble_without_spills(name: str, few: bool) -> None:
    code = assembled(SMALL[name])
    assert "attention" in {choice.engine for choice in code.engines}
    assert not code.resources.spills and not code.warnings
    assert ("wgmma.mma_async" in code.ptx) != few and ("mma.sync" in code.ptx) == few and "setmaxnreg" in code.ptx


def test_few_rows_are_done_by_warps_with_keys_of_their_own() -> None:
    plan = decided("decode_made")
    assert plan.few and plan.block == 64 and plan.slots == 6  # more than fit beside 64 rows of q and of the result
    assert planned("decode_made").barriers[:2] == (1, 8)  # every warp tells that it has read q
    assert not decided("decode_16").few and not decided("causal").few


# --- tiles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "groups", "offset", "best"),
    [(512, 12, 0, 64), (1024, 12, 0, 64), (2048, 12, 0, 128), (4096, 32, 0, 128), (128, 32, 0, 64), (128, 96, None, 128)],
)
def test_few_tiles_are_smaller(rows: int, groups: int, offset: int | None, best: int) -> None:
    """Where the longest of few tiles decides, tiles of 64 rows take less time, though all of them together take more."""
    assert best_rows(rows, groups, rows, offset, 132) == best


@pytest.mark.parametrize("name", ["plain_many", "causal_many", "keys_1000_many", "row_mask_many"])
def test_many_tiles_have_128_rows(name: str) -> None:
    assert decided(name).pattern.row_count == 128 and not decided(name).split


def test_tiles_of_64_rows_divide_their_keys() -> None:
    plan = decided("causal_made")
    assert plan.pattern.row_count == 64 and plan.split and not plan.few and plan.bulk_results


# --- the order of tiles ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "heads", "most"), [(32, 32, 1.02), (16, 32, 1.05), (8, 32, 1.05), (32, 8, 1.02)])
def test_causal_tiles_are_dealt_out_evenly(rows: int, heads: int, most: float) -> None:
    costs = [row + 2.0 for _ in range(heads) for row in range(rows)]
    order = tile_order(costs, 132)
    assert sorted(order) == list(range(len(costs)))
    load = [sum(costs[tile] for tile in order[block::132]) for block in range(132)]
    assert max(load) <= most * sum(load) / 132
    assert min(costs[tile] for tile in order[:132]) >= max(costs[tile] for tile in order[132:])  # the longest first


def test_costs_follow_the_mask() -> None:
    plan = planned("causal")
    assert isinstance(plan, Plan)
    costs = tile_costs(plan.private, plan.task)
    assert costs is not None and costs[:4] == [2.0, 3.0, 4.0, 5.0] and len(costs) == 64
    full = planned("plain")
    assert isinstance(full, Plan) and tile_costs(full.private, full.task) is None


def test_layers_share_one_table_of_tiles() -> None:
    def two(q, k, v):
        once = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(once, k, v, is_causal=True)

    module = module_after(two, *(narrow(1, 2, 512, 64) for _ in range(3)))
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0")
    assert [choice.engine for choice in code.engines] == ["attention", "attention"]
    assert code.ptx.count(".const ") == 1


def test_other_tasks_are_declined() -> None:
    module = module_after(lambda x, w: torch.relu(x @ w), narrow(128, 64), narrow(64, 64))
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        decision = AttentionEngine().plan(ProgramView(function).tasks[0], KernelOptions())
    assert isinstance(decision, Decline) and "attention has two" in decision.reason


def test_l2_brings_what_a_box_needs_of_keys_that_are_read_once() -> None:
    for name, bytes in (("decode_16", 128), ("decode_made", 128), ("causal", 256), ("prefill_4096", 256)):
        plan = decided(name)
        assert plan.once == (bytes == 128)
        assert {box.map.promotion for box in (*plan.keys, *plan.values)} == {bytes}
