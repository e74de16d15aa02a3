"""Attention without a GPU: what is recognised, how it is rewritten, the engine's plans, and that its kernels assemble."""

from __future__ import annotations

import math
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
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attention import Attention, read_attention
from kitsune_mlir.dialects.factors import flat, fresh, unify
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.frontend import import_model
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline
from test.gpu.attention_cases import SMALL, TIMED, Case, inputs_of, model_of
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu
from test.rotation import todays

ALIVE: list[ir.Module] = []  # what plans and patterns refer to lives as long as its module
NORMALIZED = PIPELINE[: PIPELINE.index("kitsune-normalize") + 1]


class Model(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def imported(function, *args: torch.Tensor, passes: list[str] = PIPELINE, target: str = "sm_90a") -> ir.Module:
    module = import_model(Model(function), args, {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(passes)})", target=target)
    ALIVE.append(module)
    return module


def narrow(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def found(function, *args: torch.Tensor) -> list[Attention]:
    """Every attention of a function, after normalisation."""
    module = imported(function, *args, passes=NORMALIZED)
    attentions = []
    for op in [op for op in walk(module.operation) if is_contraction(op)]:
        try:
            attentions.append(read_attention(op))
        except MatchFailure:
            continue
    return attentions


def sizes(dims) -> list[list[int]]:
    return [[factor.size for factor in dim] for dim in dims]


# --- factors ---------------------------------------------------------------------------------------------------------


def test_reshapes_are_other_groupings_of_factors() -> None:
    four, rows = fresh(4), fresh(256)  # [2, 4, 256] seen as [2, 2, 512]: 4 = 2 x 2', 512 = 2' x 256
    outer, joined = fresh(2), fresh(512)
    unify([*four, *rows], [*outer, *joined])
    assert [f.size for f in flat(four)] == [2, 2] and [f.size for f in flat(joined)] == [2, 256]
    assert flat(four)[1] is flat(joined)[0] and flat(rows)[0] is flat(joined)[1]


def test_extents_that_do_not_divide_are_refused() -> None:
    with pytest.raises(MatchFailure, match="do not divide"):
        unify(fresh(6), [*fresh(4), *fresh(2)])
    with pytest.raises(MatchFailure, match="different extents"):
        unify(fresh(6), fresh(3))
    assert fresh(1) == []


# --- recognising -----------------------------------------------------------------------------------------------------


def test_heads_that_share_keys_read_them_where_they_lie() -> None:
    def grouped(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    (attention,) = found(grouped, narrow(2, 96, 4, 64), narrow(2, 96, 2, 64), narrow(2, 96, 2, 64))
    assert sizes(attention.query.dims) == [[2], [96], [2, 2], [64]]  # [batch, rows, heads, width], as in memory
    assert sizes(attention.key.dims) == [[2], [96], [2], [64]]
    batch, group, shared, rows = attention.outer
    assert attention.key.dims[2] == (group,) and attention.query.dims[2] == (group, shared)
    assert [step.kind for step in attention.steps] == ["causal"] and attention.steps[0].row == (rows,)
    assert (attention.scale, attention.guarded, attention.steps[0].constant) == (0.125, False, 0)
    assert attention.column != (rows,) and attention.columns == 96


def test_one_tensor_may_be_queries_and_keys() -> None:
    (attention,) = found(lambda x: F.scaled_dot_product_attention(x, x, x), narrow(2, 3, 40, 16))
    assert attention.query.value == attention.key.value == attention.value.value
    assert attention.query.dims[2] != attention.key.dims[2]


def test_masks_and_scales() -> None:
    q = narrow(2, 4, 48, 32)
    (padded,) = found(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), q, torch.ones(2, 1, 1, 48, dtype=torch.bool))
    assert [(step.kind, step.number) for step in padded.steps] == [("keep", -math.inf)] and padded.guarded
    (biased,) = found(lambda q, m: F.scaled_dot_product_attention(q, q, q, m, scale=0.5), q, narrow(48, 48))
    assert [step.kind for step in biased.steps] == ["bias"] and biased.scale == 0.5

    def written_out(q, k, v):
        scores = (q @ k.transpose(-1, -2)) / 8.0
        keep = torch.ones(48, 48, dtype=torch.bool).tril()
        return torch.softmax(scores.masked_fill(~keep, float("-inf")), -1) @ v

    (own,) = found(written_out, q, q, q)
    assert own.scale == 0.125 and not own.guarded and len(own.steps) == 1


def test_a_length_that_is_read_ends_the_keys() -> None:
    """It is a mask whose limit is added to: one number for all rows, and no mask is kept in memory."""

    def cached(q, k, v, length, padding):
        keys = torch.arange(96) <= length + torch.arange(3)[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keys & padding)

    sizes = narrow(2, 4, 3, 64), narrow(2, 4, 96, 64), narrow(2, 4, 96, 64)
    (attention,) = found(cached, *sizes, torch.tensor(5), torch.ones(2, 1, 1, 96, dtype=torch.bool))
    kinds = {step.kind: step for step in attention.steps}
    assert kinds.keys() == {"causal", "keep"}
    ((node, factor),) = kinds["causal"].loads
    assert node[0] == "load" and factor == 1 and len(kinds["causal"].row) == 1 and not kinds["keep"].loads


def test_lengths_of_rows_are_masks() -> None:
    """Rows whose lengths are read one by one have no common end."""

    def cached(q, k, v, places):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(96) <= places[:, None])

    sizes = narrow(2, 4, 3, 64), narrow(2, 4, 96, 64), narrow(2, 4, 96, 64)
    (attention,) = found(cached, *sizes, torch.arange(3))
    assert [step.kind for step in attention.steps] == ["keep"]
    (attention,) = found(cached, narrow(2, 4, 1, 64), *sizes[1:], torch.arange(1))
    assert [(step.kind, len(step.loads)) for step in attention.steps] == [("causal", 1)]


def test_a_length_that_a_stage_makes_is_a_mask() -> None:
    """How many keys there are is asked before the tile waits: only what the program is given is there then."""

    def cached(q, k, v, x):
        length = (x * 3).sum().to(torch.int64)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(torch.arange(96) <= length)[None])

    module = imported(cached, narrow(2, 4, 1, 64), narrow(2, 4, 96, 64), narrow(2, 4, 96, 64), torch.randn(500))
    ALIVE.append(module)
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        plan = AttentionEngine().plan(ProgramView(function).tasks[-1], KernelOptions())
        assert [step.kind for step in plan.private.pattern.attention.steps] == ["keep"]


def test_a_cache_is_read_in_parts() -> None:
    def decode(q, old_k, old_v, k, v):
        k, v = torch.cat([old_k, k.transpose(1, 2)], 2), torch.cat([old_v, v.transpose(1, 2)], 2)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    cache, new = narrow(2, 2, 96, 64), narrow(2, 1, 2, 64)
    (attention,) = found(decode, narrow(2, 8, 1, 64), cache, cache.clone(), new, new.clone())
    assert [sizes(part.dims) for part in attention.keys] == [[[2], [2], [96], [64]], [[2], [], [2], [64]]]
    assert attention.columns == 97
    text = str(imported(decode, narrow(2, 8, 1, 64), cache, cache.clone(), new, new.clone()))
    assert text.count('"kitsune.task"') == 1 and 'engine = "attention"' in text  # nothing is joined in memory first


def test_thirds_of_one_product_are_read_where_they_lie() -> None:
    def fused(x, w):
        q, k, v = (y.view(2, 64, 4, 32).transpose(1, 2) for y in (x @ w).split(128, dim=2))
        return F.scaled_dot_product_attention(q, k, v)

    text = str(imported(fused, narrow(2, 64, 128), narrow(128, 384)))
    assert text.count('"kitsune.task"') == 2  # the product and the attention: no copies between them


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: torch.softmax(torch.tanh(q @ k.transpose(-1, -2)), -1) @ v,
        lambda q, k, v: torch.sigmoid(q @ k.transpose(-1, -2)) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v,
        lambda q, k, v: (torch.exp(q @ k.transpose(-1, -2)) / 3.0) @ v,
        lambda q, k, v: torch.relu(q @ k.transpose(-1, -2)) @ v,
    ],
    ids=["tanh", "sigmoid", "over_rows", "no_sum", "relu"],
)
def test_what_is_no_attention(function) -> None:
    assert found(function, narrow(1, 2, 32, 32), narrow(1, 2, 32, 32), narrow(1, 2, 32, 32)) == []


@pytest.mark.parametrize("shape", [(1, 2, 64, 12), (1, 2, 64, 264)], ids=["width_12", "width_264"])
def test_what_the_engine_does_not_do_stays_two_products(shape: tuple[int, ...]) -> None:
    x = narrow(*shape)
    text = str(imported(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), x, x.clone(), x.clone()))
    assert 'engine = "attention"' not in text and text.count('engine = "mma"') >= 1


def test_the_host_keeps_two_products() -> None:
    x = narrow(1, 2, 64, 64)
    text = str(imported(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), x, x.clone(), x.clone(), target="host"))
    assert "kitsune.attention" not in text


# --- the rewritten program is the same computation -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("causal", "grouped_bshd", "keys_7", "keys_129_causal", "rows_1", "cross", "causal_tall", "head_mask_grouped"),
        *("padding_mask", "row_mask", "decode_cached_3", "prefill_cached", "width_40_head_24", "fused"),
        *("decode_made_7", "decode_length", "decode_length_3", "prefill_length"),
    ],
)
def test_the_plan_for_the_gpu_is_right_on_the_host(name: str) -> None:
    case = SMALL[name]
    torch.manual_seed(0)
    args = tuple(inputs_of(case, "cpu").values())
    program = planned_for_gpu(model_of(case), *args)
    assert 'engine = "attention"' in program.ir("stages")
    assert problems(program(*args), exact(model_of(case), args)) == []


# --- the engine ------------------------------------------------------------------------------------------------------


def planned(name: str, **limits) -> Plan | Decline:
    case = {**SMALL, **TIMED}[name]
    module = import_model(model_of(case), tuple(inputs_of(case, "cpu").values()), {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    ALIVE.append(module)
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        return AttentionEngine().plan(ProgramView(function).tasks[-1], KernelOptions(**limits))


def decided(name: str) -> AttentionPlan:
    plan = planned(name)
    assert isinstance(plan, Plan), plan
    return plan.private


def assembled(case: Case) -> GpuCode:
    module = import_model(model_of(case), tuple(inputs_of(case, "cpu").values()), {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
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
        *((name, False) for name in todays(["plain", "grouped_bshd", "width_256_causal", "head_mask", "decode_16"], 2)),
        *((name, False) for name in todays(["plain_many", "causal_many", "row_mask_many"], 1)),
        *((name, True) for name in todays(["decode_cached", "decode", "decode_width_256"], 1)),
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

    module = imported(two, *(narrow(1, 2, 512, 64) for _ in range(3)))
    with module.context, ir.Location.unknown():
        code = compile_gpu(module, "main_p0")
    assert [choice.engine for choice in code.engines] == ["attention", "attention"]
    assert code.ptx.count(".const ") == 1


def test_other_tasks_are_declined() -> None:
    module = imported(lambda x, w: torch.relu(x @ w), narrow(128, 64), narrow(64, 64))
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        decision = AttentionEngine().plan(ProgramView(function).tasks[0], KernelOptions())
    assert isinstance(decision, Decline) and "attention has two" in decision.reason


def test_l2_brings_what_a_box_needs_of_keys_that_are_read_once() -> None:
    for name, bytes in (("decode_16", 128), ("decode_made", 128), ("causal", 256), ("prefill_4096", 256)):
        plan = decided(name)
        assert plan.once == (bytes == 128)
        assert {box.map.promotion for box in (*plan.keys, *plan.values)} == {bytes}
