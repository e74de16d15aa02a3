"""Attention without a GPU: what is recognised, how it is rewritten, the engine's plans, and that its kernels assemble."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.attention.engine import AttentionEngine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.dialects.attention import Attention, read_attention
from kitsune_mlir.dialects.factors import flat, fresh, unify
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.registry import PIPELINE
from test.gpu.attention_cases import SMALL, inputs_of, model_of
from test.numerics.compare import exact, problems
from test.programs.compiled import module_after, planned_for_gpu
from test.rotation import in_turn

NORMALIZED = PIPELINE[: PIPELINE.index("kitsune-normalize") + 1]


def narrow(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def found(function, *args: torch.Tensor) -> list[Attention]:
    """Every attention of a function, after normalisation."""
    module = module_after(function, *args, passes=NORMALIZED)
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

    module = module_after(cached, narrow(2, 4, 1, 64), narrow(2, 4, 96, 64), narrow(2, 4, 96, 64), torch.randn(500))
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
    text = str(module_after(decode, narrow(2, 8, 1, 64), cache, cache.clone(), new, new.clone()))
    assert text.count('"kitsune.task"') == 1 and 'engine = "attention"' in text  # nothing is joined in memory first


def test_thirds_of_one_product_are_read_where_they_lie() -> None:
    def fused(x, w):
        q, k, v = (y.view(2, 64, 4, 32).transpose(1, 2) for y in (x @ w).split(128, dim=2))
        return F.scaled_dot_product_attention(q, k, v)

    text = str(module_after(fused, narrow(2, 64, 128), narrow(128, 384)))
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
    text = str(module_after(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), x, x.clone(), x.clone()))
    assert 'engine = "attention"' not in text and text.count('engine = "mma"') >= 1


def test_the_host_keeps_two_products() -> None:
    x = narrow(1, 2, 64, 64)
    text = str(module_after(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), x, x.clone(), x.clone(), target="host"))
    assert "kitsune.attention" not in text


# --- the rewritten program is the same computation -------------------------------------------------------------------


RIGHT = [
    *("causal", "grouped_bshd", "keys_7", "keys_129_causal", "rows_1", "cross", "causal_tall", "head_mask_grouped"),
    *("padding_mask", "row_mask", "decode_cached_3", "prefill_cached", "width_40_head_24", "fused"),
    *("decode_made_7", "decode_length", "decode_length_3", "prefill_length"),
]


@pytest.mark.parametrize("name", in_turn(RIGHT, 3))
def test_the_plan_for_the_gpu_is_right_on_the_host(name: str) -> None:
    case = SMALL[name]
    torch.manual_seed(0)
    args = tuple(inputs_of(case, "cpu").values())
    program = planned_for_gpu(model_of(case), *args)
    assert 'engine = "attention"' in program.ir("stages")
    assert problems(program(*args), exact(model_of(case), args)) == []
