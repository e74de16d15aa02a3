"""Facts that are found once while nothing changes them."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.edges import stages_of
from kitsune_mlir.dialects.unchanged import remembered, stages_unchanged, unchanged
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.form_stages import FormStages
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passmanager.manager import run_pipeline

ROWS = """
func.func @main(%x: tensor<512x256xf32>, %w: tensor<256x256xf32>, %v: tensor<256x64xf32>) -> tensor<512x64xf32> {
  %zero = arith.constant 0.0 : f32
  %a = tensor.empty() : tensor<512x256xf32>
  %b = linalg.fill ins(%zero : f32) outs(%a : tensor<512x256xf32>) -> tensor<512x256xf32>
  %c = linalg.matmul ins(%x, %w : tensor<512x256xf32>, tensor<256x256xf32>)
      outs(%b : tensor<512x256xf32>) -> tensor<512x256xf32>
  %d = tensor.empty() : tensor<512x64xf32>
  %e = linalg.fill ins(%zero : f32) outs(%d : tensor<512x64xf32>) -> tensor<512x64xf32>
  %f = linalg.matmul ins(%c, %v : tensor<512x256xf32>, tensor<256x64xf32>) outs(%e : tensor<512x64xf32>) -> tensor<512x64xf32>
  return %f : tensor<512x64xf32>
}"""


@pytest.fixture
def module():
    with new_context(), ir.Location.unknown():
        parsed = ir.Module.parse(ROWS)
        run_pipeline(parsed, [PASSES["kitsune-normalize"](), FormStages(target="sm_90a")])
        yield parsed


@pytest.fixture
def counted():
    asked: list[str] = []

    @remembered
    def count(op: ir.Operation) -> str:
        asked.append(op.name)
        return op.name

    return count, asked


def first_stage(module: ir.Module) -> ir.Operation:
    pipeline = next(op for op in walk(module.operation) if op.name == "kitsune.pipeline")
    return stages_of(pipeline)[0]


def test_a_stage_is_known_whatever_its_schedule(module, counted):
    count, asked = counted
    stage = first_stage(module)
    with unchanged():
        for tile in (16, 32):
            stage.attributes["tile"] = ir.DenseI64ArrayAttr.get([tile, 64])
            assert count(stage) == "kitsune.stage"
    assert asked == ["kitsune.stage"]
    count(stage)
    assert len(asked) == 2  # nothing is kept outside of the block


def test_other_operations_are_known_by_their_attributes_too(module, counted):
    count, asked = counted
    inner = first_stage(module).regions[0].blocks[0].operations[0].operation
    with unchanged():
        count(inner)
        inner.attributes["kitsune.no_fusion"] = ir.UnitAttr.get()
        count(inner)
        count(inner)
    assert len(asked) == 2


def test_only_stages_are_known_where_other_operations_change(module, counted):
    count, asked = counted
    stage = first_stage(module)
    inner = stage.regions[0].blocks[0].operations[0].operation
    with stages_unchanged():
        for op in (stage, inner, stage, inner):
            count(op)
    assert sorted(asked) == sorted(["kitsune.stage", inner.name, inner.name])


def test_facts_last_from_one_scheduling_pass_to_the_next_and_no_longer(module, counted, monkeypatch):
    count, asked = counted
    stage = first_stage(module)
    order = []

    def watched(kind):
        run = kind.run

        def and_ask(self, root):
            order.append(kind.name)
            run(self, root)
            count(stage)

        monkeypatch.setattr(kind, "run", and_ask)

    scheduling = [kind for kind in PASSES.values() if kind.only_schedules]
    for kind in scheduling:
        watched(kind)
    names = ["kitsune-write-in-place", "kitsune-place-buffers", "kitsune-synchronize"]
    passes = [PartitionStreams(target="sm_90a"), *(PASSES[name]() for name in names)]
    run_pipeline(module, passes)
    assert order == ["kitsune-partition-streams", *names] and len(order) == len(scheduling)
    assert asked == ["kitsune.stage"]
    run_pipeline(module, [passes[0], "canonicalize", *passes[1:]])
    assert len(asked) == 3


def test_scheduling_passes_change_nothing_but_attributes_of_stages(module):
    def bodies() -> list[str]:
        found = [op for op in walk(module.operation) if op.name not in ("kitsune.stage", "kitsune.pipeline", "func.func")]
        return [str(op) for op in found]

    before = bodies()
    for kind in [kind for kind in PASSES.values() if kind.only_schedules]:
        run_pipeline(module, f"builtin.module({kind.name})", target="sm_90a")
        assert bodies() == before, kind.name
    assert len(before) > 5
