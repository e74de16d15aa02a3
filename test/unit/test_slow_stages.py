"""Stages far above their floor are warned of, once a program; the generic engine's times are counted from its loops."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir import pipeline, settings
from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import PerformanceWarning
from kitsune_mlir.machine import slow_stages
from kitsune_mlir.machine.stage_work import count
from kitsune_mlir.simulation.simulate import simulate

RECORD = Path(__file__).parents[2] / "bench" / "results" / "generic-h200.json"


class Scan(nn.Module):
    """A map, and a running sum: without the scan engine none but the generic one takes that."""

    def forward(self, x):
        return (x * 2).relu().cumsum(0)


def compiled(model, *args, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = kitsune_mlir.compile(model, args, target="sm_90a", options=options)
    return program, [str(one.message) for one in caught if one.category is PerformanceWarning]


def test_a_generic_stage_is_warned_of_once_with_line_engine_reason_and_times(without_scans):
    program, said = compiled(Scan(), torch.randn(131072))
    (slow,) = program.summary["slow"]
    assert (slow["engine"], slow["tiles"]) == ("generic", 1)
    assert slow["source"].startswith(__file__) and slow["microseconds"] > 10 * slow["floor_microseconds"] > 0
    (text,) = said
    assert text.splitlines()[0] == "kitsune: 1 stage of this program will be far slower than the chip needs to be:"
    assert f"{slow['source']}: stage {slow['task']} (engine generic, 1 tile) is predicted to take" in text
    assert "the generic engine does it; one block of 132 does all of it" in text
    assert text.splitlines()[1] in program.explain()


def test_maps_that_feed_a_product_are_counted_for_each_of_its_columns():
    """Where a thread makes each number alone; tensors that come from memory are read again, and not made."""
    text = """
      #x = affine_map<(m, k) -> (m, k)>
      #a = affine_map<(m, n, k) -> (m, k)>
      #b = affine_map<(m, n, k) -> (k, n)>
      #c = affine_map<(m, n, k) -> (m, n)>
      func.func @f(%x: tensor<8x16xf32>, %w: tensor<16x33xf32>, %e: tensor<8x16xf32>, %z: tensor<8x33xf32>)
          -> tensor<8x33xf32> {
        %h = linalg.generic {indexing_maps = [#x, #x], iterator_types = ["parallel", "parallel"]}
            ins(%x : tensor<8x16xf32>) outs(%e : tensor<8x16xf32>) {
        ^bb0(%i: f32, %o: f32):
          %v = math.exp %i : f32
          linalg.yield %v : f32
        } -> tensor<8x16xf32>
        %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
            ins(%h, %w : tensor<8x16xf32>, tensor<16x33xf32>) outs(%z : tensor<8x33xf32>) {
        ^bb0(%i: f32, %j: f32, %o: f32):
          %m = arith.mulf %i, %j : f32
          %s = arith.addf %o, %m : f32
          linalg.yield %s : f32
        } -> tensor<8x33xf32>
        return %p : tensor<8x33xf32>
      }"""
    with new_context():
        module = ir.Module.parse(text)
        first, product, _ = (op.operation for op in module.body.operations[0].regions[0].blocks[0].operations)
        assert slow_stages._made_again([first, product]) == 32 * count([first]).vector_ops > 0
        assert slow_stages._made_again([product]) == 0


def test_what_is_as_it_should_be_is_not_warned_of():
    program, said = compiled(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), torch.randn(4096, 64))
    assert program.summary["slow"] == [] and not said
    assert "slower" not in program.explain()
    assert "slow" not in kitsune_mlir.compile(Scan(), (torch.randn(3, 5),), target="host").summary


def test_torch_compile_warns_too(monkeypatch, without_scans):
    monkeypatch.setattr(settings, "choose_target", lambda *given: "sm_90a")
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(PerformanceWarning, match="engine generic, 1 tile"):
        try:
            torch.compile(Scan(), backend="kitsune")(torch.randn(131072))
        except kitsune_mlir.errors.KitsuneError:
            pass  # there is no GPU here: it cannot be run


def test_many_slow_stages_are_counted():
    from kitsune_mlir.runtime.explain import slow_text

    stage = {"task": "s", "engine": "generic", "tiles": 2, "reason": "r", "source": "", "floor_microseconds": 1.0}
    lines = slow_text([{**stage, "task": f"s{n}", "microseconds": float(n)} for n in range(9)]).splitlines()
    assert len(lines) == 7 and "s8 " in lines[1] and "s4 " in lines[5] and lines[6].startswith("  and 4 more")


class Summed(nn.Module):
    def forward(self, x, w):
        return torch.relu(x @ w).cumsum(1), torch.relu(x) @ w


def test_the_mode_is_chosen_with_what_engines_counted(monkeypatch, without_scans):
    """Planning takes a generic stage for another engine's; once it is known, the mode is chosen again."""
    seen = []
    plan = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda *given: seen.append(given[3].times) or plan(*given))
    args = (torch.randn(256, 64), torch.randn(64, 128))
    program, _ = compiled(Summed(), *args)
    assert seen[0] == {} and len(seen) >= 2
    (slow,) = program.summary["slow"]
    assert seen[1] == pytest.approx({slow["task"]: 1e-3 * slow["microseconds"] + 2.7e-3})
    seen.clear()
    compiled(Summed(), *args, schedule="separate")  # nothing is left to choose
    assert seen == [{}]


def test_a_machine_with_half_the_clock_takes_twice_as_long():
    from kitsune_mlir.machine.stage_cost import REFERENCE, Work, cost_of
    from kitsune_mlir.machine.target import replace

    work = Work("generic", 4, tensor_ops=1e9, read_bytes=1e9, cycles=1.9e6)
    slower = replace(REFERENCE, vector_rate=REFERENCE.vector_rate / 2)
    assert cost_of(work, REFERENCE).busy() == pytest.approx(1e-3)
    assert cost_of(work, slower).busy() == pytest.approx(2e-3)


def test_the_simulator_sees_it(without_scans):
    program, _ = compiled(Scan(), torch.randn(131072))
    (slow,) = program.summary["slow"]
    (stage,) = [stage for stage in simulate(program, "H200").stages if stage.name == slow["task"]]
    assert 1e6 * stage.working == pytest.approx(slow["microseconds"], rel=0.2)
