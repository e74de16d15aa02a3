"""Chains of layers by clusters, without a GPU: what the planner forms, what the engine takes, and that its code assembles."""

from __future__ import annotations

import pytest
import torch
from kept import kept
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir import pipeline
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.engines.chain.cluster.emit import ClusterEngine
from kitsune_mlir.codegen.gpu.engines.chain.cluster.plan import ClusterPlan
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.tile_view import ProgramView

BF16 = torch.bfloat16


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(*(p for a, b in zip(widths, widths[1:], strict=False) for p in (nn.Linear(a, b), activation())))


def tiles(
    monkeypatch: pytest.MonkeyPatch,
    model: nn.Module,
    rows: int,
    columns: int,
    dtype: torch.dtype = BF16,
    mode: str = "cluster",
) -> str:
    """The tile program of a model in a mode."""
    monkeypatch.setattr(pipeline, "gpu_code", lambda *_: (None, {}, "not needed"))
    args = (torch.zeros(rows, columns, dtype=dtype),)
    return kitsune_mlir.compile(model.to(dtype).eval(), args, target="sm_90a", options={"mode": mode}).ir("tiles")


def decided(text: str, requested_engine: str = "cluster") -> Plan | Decline:
    (task,) = ProgramView(kept(text)).tasks
    assert task.requested_engine == requested_engine
    return ClusterEngine().plan(task, KernelOptions())


@pytest.mark.parametrize(
    "widths, rows, cluster, held",
    [
        ((1024, 1024, 1024), 2048, 4, 64),
        ((512, 512, 512, 512), 8192, 2, 64),
        ((512, 512, 512), 2048, 2, 64),
        ((480, 512, 1024, 256), 1000, 4, 64),
        ((512, 512, 512), 7, 8, 64),
    ],
)
def test_a_chain_is_one_task_of_a_cluster(context, monkeypatch, widths, rows, cluster, held):
    plan = decided(tiles(monkeypatch, mlp(*widths), rows, widths[0]))
    assert isinstance(plan, Plan), plan
    chain: ClusterPlan = plan.private
    assert (plan.cluster, chain.rows, len(chain.layers)) == (cluster, held, len(widths) - 1)
    assert plan.shared_bytes <= SHARED_LIMIT and chain.stages >= 3
    assert [layer.cols * cluster for layer in chain.layers] == list(widths[1:])
    # The whole input of each layer, and beside it the ring of weights.
    assert chain.weights_offset >= max(-(-width // 64) for width in widths[:-1]) * 64 * 2 * held
    full, empty = plan.barriers[: chain.stages], plan.barriers[chain.stages : 2 * chain.stages]
    assert set(full) == {1} and set(empty) == {2} and plan.barriers[2 * chain.stages :] == (1,) * cluster + (2 * cluster, 1)


def test_what_needs_whole_rows_stays_apart(monkeypatch):
    """A softmax between layers ends a chain; so do layers whose slices are no panels."""
    wide = nn.Sequential(nn.Linear(512, 512), nn.Softmax(-1), nn.Linear(512, 512))
    for model, columns in ((wide, 512), (mlp(512, 320, 512), 512)):
        assert 'engine = "cluster"' not in tiles(monkeypatch, model, 2048, columns)


@pytest.mark.parametrize(
    "width, rows, chosen", [(512, 2048, True), (512, 256, False), (512, 64, False), (1024, 2048, False), (256, 8192, False)]
)
def test_clusters_are_chosen_where_they_were_faster(monkeypatch, width, rows, chosen):
    """Not for layers that a block holds, inputs that leave no room for weights, few rows; nor where another mode is wanted."""
    model = mlp(*[width] * 9)
    assert ('engine = "cluster"' in tiles(monkeypatch, model, rows, width, mode="auto")) == chosen
    if chosen:
        assert 'engine = "cluster"' not in tiles(monkeypatch, model, rows, width, mode="temporal")


def test_f32_is_no_chain_for_a_cluster(monkeypatch):
    assert 'engine = "cluster"' not in tiles(monkeypatch, mlp(512, 512, 512), 256, 512, torch.float32)


class Skip(nn.Module):
    """The second layer's result has the first one's added."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(512, 512) for _ in range(3))

    def forward(self, x):
        h = torch.relu(self.one(x))
        return self.three(torch.relu(self.two(h)) + h)


def test_the_engine_says_why_it_declines(context, monkeypatch):
    skipped = decided(tiles(monkeypatch, Skip(), 2048, 512))
    assert isinstance(skipped, Decline) and "reads other layers too" in skipped.reason
    text = tiles(monkeypatch, mlp(512, 512, 512), 2048, 512)
    (task,) = ProgramView(kept(text)).tasks
    for limits, reason in ((KernelOptions(chip="sm_80"), "sm_90a"), (KernelOptions(shared_bytes=70_000), "stages for weights")):
        declined = ClusterEngine().plan(task, limits)
        assert isinstance(declined, Decline) and reason in declined.reason


def test_code_assembles_without_spills_and_reaches_the_other_blocks(context, monkeypatch):
    text = tiles(monkeypatch, mlp(480, 512, 512, activation=nn.GELU), 1000, 480)
    code = compile_gpu(ir.Module.parse(text), "main_p0", "sm_90a")
    assert [choice.engine for choice in code.engines] == ["cluster"] and code.manifest.cluster == 2
    assert not code.resources.spills and not code.warnings
    assert "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes" in code.ptx
    assert "mbarrier.arrive.shared::cluster" in code.ptx and ".extern .func" not in code.ptx
    assert code.ptx.count("barrier.cluster.arrive") >= 2
