"""Attention's gradients without a GPU: what is recognised, the rewritten program on the host, plans and kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import GpuCode, compile_gpu
from kitsune_mlir.codegen.gpu.engines.attention.gradient_engine import AttentionGradientEngine
from kitsune_mlir.codegen.gpu.engines.attention.gradient_plan import GradientPlan
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attention import read_attention, weighted_sums
from kitsune_mlir.dialects.attention_gradient import between, sums_of_products
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.frontend import import_model
from kitsune_mlir.frontend.gradients.attention import attention_with_statistics
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline
from test.gpu.attention_cases import TRAINED, TRAINED_TIMED, Case
from test.gpu.attention_gradient_programs import exact_results, model_of, trained_inputs
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

ALIVE: list[ir.Module] = []  # what plans refer to lives as long as its module
NAME = AttentionGradientEngine.name
QUICK = [name for name in TRAINED if name not in ("many", "keys_1000", "keys_1000_causal")]
"""Cases that a processor does in seconds."""


def imported(model: nn.Module, args: tuple[Tensor, ...]) -> ir.Module:
    module = import_model(model, args, {}, context=new_context()).module
    run_pipeline(module, f"builtin.module({','.join(PIPELINE)})", target="sm_90a")
    ALIVE.append(module)
    return module


def program_of(case: Case) -> ir.Module:
    return imported(model_of(case), tuple(trained_inputs(case, "cpu").values()))


def plans(case: Case, **limits: Any) -> list[Plan | Decline]:
    module = program_of(case)
    with module.context, ir.Location.unknown():
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        tasks = [task for task in ProgramView(function).tasks if task.requested_engine == NAME]
        return [AttentionGradientEngine().plan(task, KernelOptions(**limits)) for task in tasks]


def decided(case: Case) -> dict[bool, GradientPlan]:
    """The plans of keys (true) and of queries."""
    found = {}
    for plan in plans(case):
        assert isinstance(plan, Plan), plan
        found[plan.private.keys] = plan.private
    return found


def errors(model: nn.Module, args: tuple[Tensor, ...], exact: list[Tensor]) -> list[float]:
    """Of a program planned for the GPU and run on the host, relative to the results' norms."""
    program = planned_for_gpu(model, *args)
    return [((a.double() - b).norm() / b.norm().clamp(min=1e-6)).item() for a, b in zip(program(*args), exact, strict=True)]


# --- what is recognised, and that it is the same computation ---------------------------------------------------------


@pytest.mark.parametrize("name", in_turn(QUICK, 2))
def test_sums_are_found_in_one_walk(name: str) -> None:
    """No contraction that the search behind each of them takes is left out."""
    case = TRAINED[name]
    module = import_model(model_of(case), tuple(trained_inputs(case, "cpu").values()), {}, context=new_context()).module
    before = PIPELINE[: PIPELINE.index("kitsune-fuse-attention")]
    run_pipeline(module, f"builtin.module({','.join(before)})", target="sm_90a")
    with module.context, ir.Location.unknown():
        found = sums_of_products(walk(module.operation))
        searched = []
        for op in filter(is_contraction, walk(module.operation)):
            with contextlib.suppress(MatchFailure):
                if between(op).slope is not None:
                    searched.append(op)
        read = []
        for op in filter(is_contraction, walk(module.operation)):
            with contextlib.suppress(MatchFailure):
                read_attention(op)
                read.append(op)
        assert read and {hash(op) for op in read} <= {hash(op) for op in weighted_sums(walk(module.operation))}
    assert searched and {hash(op) for op in searched} <= {hash(op) for op in found}


def test_layers_without_gradients_have_no_such_sums() -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(2))).eval()
    module = import_model(model, (torch.randn(1, 8, 32),), {}, context=new_context()).module
    run_pipeline(module, "builtin.module(kitsune-normalize)", target="sm_90a")
    with module.context, ir.Location.unknown():
        assert sum(map(is_contraction, walk(module.operation))) >= 8
        assert not sums_of_products(walk(module.operation))
        assert len(weighted_sums(walk(module.operation))) == 2  # an attention each


@pytest.mark.parametrize("name", in_turn(QUICK, 1))
def test_the_plan_for_the_gpu_is_right_on_the_host(name: str) -> None:
    case = TRAINED[name]
    torch.manual_seed(0)
    given = trained_inputs(case, "cpu")
    assert max(errors(model_of(case), tuple(given.values()), exact_results(case, given))) < 6e-3


def test_a_step_has_two_stages_of_gradients_and_nothing_of_the_scores_size() -> None:
    case = TRAINED["grouped"]
    module = program_of(case)
    with module.context:
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        view = ProgramView(function)
        assert sum(task.requested_engine == NAME for task in view.tasks) == 2
        stored = [math.prod(store.buffer.shape) for task in view.tasks for store in task.stores]
    assert max(stored) == case.batch * case.heads * case.rows * case.width < case.batch * case.heads * case.rows * case.keys


def test_a_backward_program_of_its_own_reads_what_forward_left() -> None:
    case = dataclasses.replace(TRAINED["keys_129_causal"], heads=4, kv_heads=2)
    whole = model_of(case)

    class Forward(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return attention_with_statistics(q, k, v, None, True, case.width**-0.5)

    given = trained_inputs(case, "cpu")
    q, k, v, gradient = given.values()
    forward = planned_for_gpu(Forward(), q, k, v)
    assert forward.ir("tiles").count('engine = "attention"') == 1 == forward.ir("tiles").count('"kitsune.task"')
    out, statistics = forward(q, k, v)
    scores = (q.double() @ k.double().repeat_interleave(2, 1).mT) * case.width**-0.5
    hidden = ~torch.ones(case.rows, case.rows, dtype=torch.bool).tril()
    assert torch.allclose(statistics.double(), scores.masked_fill(hidden, float("-inf")).logsumexp(-1), atol=1e-5)
    assert len(errors(whole, (q, k, v, gradient), exact_results(case, given))) == 4


@pytest.mark.rotated(1)
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 2, 2, 64, 64, 264),  # heads that are too wide
        Case(1, 2, 2, 64, 64, 12),  # TMA wants multiples of 8
        Case(1, 2, 2, 1, 64, 64),  # there are no rows to sum along
    ],
    ids=["width_264", "width_12", "one_row"],
)
def test_what_the_engine_does_not_do_stays_products(case: Case) -> None:
    assert f'engine = "{NAME}"' not in str(program_of(case))
    torch.manual_seed(0)
    given = trained_inputs(case, "cpu")
    assert max(errors(model_of(case), tuple(given.values()), exact_results(case, given))) < 1e-2


class Other(nn.Module):
    """Sums like the gradients of attention, with a change that makes them others."""

    def __init__(self, change: str):
        super().__init__()
        self.change = change

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, logarithm: Tensor, mean: Tensor) -> list[Tensor]:
        q, k, v, gradient = (x.float() for x in (q, k, v, gradient))
        scores = torch.bmm(q, k.mT)
        if self.change == "finite mask":
            place = torch.arange(scores.shape[-1])
            scores = torch.where(place <= place.unsqueeze(1), scores, -1e4)
        weights = torch.exp(scores - logarithm.unsqueeze(-1))
        slopes = torch.bmm(gradient, v.mT)
        mean = mean.unsqueeze(-1)
        if self.change == "twice":
            weights = weights * weights
        if self.change == "sum":
            slopes = slopes + mean
        if self.change == "column":
            slopes = slopes - mean.mT
        elif self.change != "sum":
            slopes = slopes - mean
        changes = (weights * slopes).to(torch.bfloat16).float()
        return [torch.bmm(changes, v if self.change == "other factor" else k).to(torch.bfloat16)]


@pytest.mark.parametrize("change", ["", "twice", "sum", "column", "other factor", "finite mask"])
def test_what_is_no_gradient_of_attention(change: str) -> None:
    heads = [torch.randn(2, 128, 64).to(torch.bfloat16) for _ in range(4)]
    text = str(imported(Other(change), (*heads, torch.randn(2, 128), torch.randn(2, 128))))
    assert text.count(f'engine = "{NAME}"') == (1 if not change else 0)


# --- the engine ------------------------------------------------------------------------------------------------------


def test_plans() -> None:
    found = decided(TRAINED_TIMED["step_2048_grouped"])
    keys, queries = found[True], found[False]
    assert (keys.block, keys.slots, queries.block, queries.slots) == (64, 4, 128, 2)
    assert keys.pattern.length == queries.pattern.length == 2048 and keys.pattern.row_count == 128
    assert len(keys.boxes) == 8 and len(queries.boxes) == 6  # two results of two warpgroups, one of two
    small = decided(TRAINED["keys_7"])
    assert small[True].groups == 1 and small[True].resident[0].rows == 128


def test_wide_heads_have_smaller_blocks_and_a_sweep_for_each_sum() -> None:
    found = decided(TRAINED["width_256_causal"])
    assert [(plan.block, plan.slots, plan.sweeps) for plan in (found[True], found[False])] == [(48, 2, 2), (48, 2, 1)]
    # What comes of the first sweep takes the place of values, which the second does not read.
    assert [found[True].result_at_of(number) for number in range(2)] == [found[True].second_at, 0]
    assert [found[False].result_at_of(number) for number in range(1)] == [0]
    odd = decided(TRAINED["width_192_head_128"])
    assert odd[True].sweeps == 2 and odd[True].second_at == odd[True].resident[0].bytes > odd[True].resident[1].bytes
    assert decided(TRAINED["width_136"])[True].sweeps == 1


def test_masks_are_read_for_smaller_blocks() -> None:
    found = decided(TRAINED["row_mask"])
    assert (found[True].block, found[False].block) == (32, 64)
    assert all(len(plan.masks) == 1 == len(plan.pattern.loads) and not plan.steps for plan in found.values())
    sides = [next(iter(found[keys].pattern.loads.values())).sides for keys in (False, True)]
    assert sides == [("row0", "key"), ("key", "row0")]


def test_causal_tiles_come_in_an_order_by_what_they_cost() -> None:
    for plan in plans(TRAINED["keys_1000_causal"]):
        assert isinstance(plan, Plan)
        costs = plan.private.costs(plan.task)
        per_head = costs[: len(costs) // 2]
        falling = per_head == sorted(per_head, reverse=True)
        assert falling if plan.private.keys else per_head == sorted(per_head)
        # The last tile is shifted back: keys from 872 on are read by queries in blocks 13 to 15.
        assert plan.private.keys is False or per_head[-1] == per_head[0] - 13
    assert all(isinstance(plan, Plan) and plan.private.costs(plan.task) is None for plan in plans(TRAINED["plain"]))


def test_too_little_shared_memory_is_declined() -> None:
    for plan in plans(TRAINED["causal"], shared_bytes=81920):
        assert isinstance(plan, Decline) and "do not fit shared memory" in plan.reason


@pytest.mark.parametrize(
    "name",
    in_turn(
        ["causal", "grouped", "float_mask", "padding_mask", "keys_1000", "width_40_head_24", "plain", "f16", "width_256"], 1
    ),
)
def test_kernels_assemble_without_spills(name: str) -> None:
    module = program_of(TRAINED[name])
    with module.context, ir.Location.unknown():
        code: GpuCode = compile_gpu(module, "main_p0")
    assert [choice.engine for choice in code.engines].count(NAME) == 2
    assert not code.resources.spills and not code.warnings
