"""What engines offer before there are stages, and that they keep it: an engine of one's own, broken offers, forced choices."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES, registered
from kitsune_mlir.codegen.gpu.interface.offer import Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.offers import offer_for
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from kitsune_mlir.errors import ArgumentError, CompileError
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.pipeline import lower, plan
from test.emulators.vector import run_kernel
from test.gpu.unassembled import unassembled
from test.programs.layers import Layers
from test.programs.toy_engine import BreakingEngine, ToyEngine

H200 = find_target("h200")


class Difference(nn.Module):
    def forward(self, x, y):
        return x - y


def engines_of(model, *args, **options) -> dict[str, str]:
    """Which engine each task has at last."""
    program = kitsune_mlir.compile(model.eval(), args, target="sm_90a", options=options)
    return {task["task"]: task["engine"] for task in program.summary["engines"]}


@pytest.mark.parametrize("size", [100, 129, 1000])
def test_a_model_compiles_through_an_engine_from_outside(size):
    args = torch.randn(size), torch.randn(size)
    with registered(ToyEngine(), before="simt"):
        assert engines_of(Difference(), *args) == {"map_0": "toy"}
        tiles = lower(plan(import_model(Difference(), args, context=new_context()), H200))
        with tiles.module.context, ir.Location.unknown():
            view = ProgramView(program_functions(tiles.module.operation)[0])
            executor = build(view, "kernel", KernelOptions())
            result = np.zeros(size, np.float32)
            run_kernel(executor.module.operation, executor.manifest, [x.numpy() for x in args], [result], 3)
    assert "toy" not in ENGINES
    assert (result == (args[0] - args[1]).numpy()).all()


def test_what_an_engine_declines_goes_to_the_next_one():
    with registered(ToyEngine(), before="simt"):
        assert engines_of(Difference(), torch.randn(99), torch.randn(99)) == {"map_0": "simt"}
        assert engines_of(Difference(), torch.randn(7, 129), torch.randn(7, 129)) == {"map_0": "simt"}
        assert engines_of(Difference(), torch.randn(129).half(), torch.randn(129).half()) == {"map_0": "simt"}


def test_engines_are_registered_once_and_in_front_of_one_that_there_is():
    with pytest.raises(ArgumentError, match="there is no engine 'steam' to stand in front of; engines are attention,"):
        registered(ToyEngine(), before="steam")
    with registered(ToyEngine(), before="simt"), pytest.raises(ArgumentError, match="there is an engine 'toy'"):
        registered(ToyEngine(), before="simt")
    order = list(ENGINES)
    with registered(ToyEngine(), before="simt"):
        assert list(ENGINES) == [*order[: order.index("simt")], "toy", *order[order.index("simt") :]]
    assert list(ENGINES) == order


def like(engine: str, candidate, machine, options) -> Offer | Decline:
    """What an engine offers, in the name of `BreakingEngine`."""
    found = ENGINES[engine].offer(candidate, machine, options)
    return dataclasses.replace(found, engine=BreakingEngine.name)


def test_a_stage_whose_engine_breaks_its_offer_is_made_smaller():
    """No engine of our own breaks one in this model; one that always does stands in front of `chain`."""

    class Breaking(BreakingEngine):
        traits = dataclasses.replace(BreakingEngine.traits, several_products=True)

        def offer(self, candidate, machine, options):
            return like("chain", candidate, machine, options)

    model, args = Layers(3).bfloat16(), (torch.randn(1000, 64).bfloat16(),)
    remarks = []
    with registered(Breaking(), before="chain"), warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is slow at the end
        program = kitsune_mlir.compile(model.eval(), args, target="sm_90a", options={"on_remark": remarks.append})
    assert [task["engine"] for task in program.summary["engines"]] == ["mma", "mma", "mma"]
    (sentence,) = program.summary["replanned"]
    assert "engine 'breaking' declines what became of stage 'product_0' (it has changed its mind)" in sentence
    assert "at most 1 product in stages like product_0" in sentence
    assert any(sentence in str(remark) for remark in remarks)


def test_what_joins_a_chain_s_result_is_a_stage_of_its_own():
    """A chain stores what it computes; where the next layers become a part of it, it reads what is joined."""

    class Joined(nn.Module):
        def __init__(self, more: bool):
            super().__init__()
            self.layers, self.last = Layers(3), nn.Linear(96, 64) if more else None

        def forward(self, x, y):
            joined = torch.cat([self.layers(x), y], 1)
            return joined if self.last is None else self.last(joined)

    args = (torch.randn(4096, 64).bfloat16(), torch.randn(4096, 32).bfloat16())
    for more, wanted in ((False, ["chain", "simt"]), (True, ["chain"])):
        with unassembled():
            program = kitsune_mlir.compile(Joined(more).bfloat16(), args, target="h200")
        assert [choice["engine"] for choice in program.summary["engines"]] == wanted and "replanned" not in program.summary


def test_engines_do_not_offer_what_they_would_decline():
    """A joined tensor that is a result, one column beside many, factors of two types: each was left to loops once."""

    def returned(x, y, v, w):
        joined = torch.cat([torch.relu(x @ v), y], 1)
        return joined @ w, joined

    def gated(x, y, v, w):
        return y * torch.sigmoid(x @ v[:, :1])

    def two_types(x, y, v, w):
        return x.float() @ v.float().add(1), x

    def mixed(x, y, v, w):
        for _ in range(3):
            x = x + (torch.relu(x.mT @ v) @ v).mT  # along the rows of x, which lie across its tiles' columns
        return x

    args = [torch.randn(shape).bfloat16() for shape in ((5000, 64), (5000, 32), (64, 64), (96, 48))]
    across = [torch.randn(shape).bfloat16() for shape in ((64, 1000), (5000, 32), (64, 64), (96, 48))]
    plain = [(returned, ["mma", "mma"], args), (gated, ["simt"], args), (two_types, ["mma"], args)]
    for function, wanted, args in (*plain, (mixed, ["mma"] * 6, across)):
        with unassembled():
            program = kitsune_mlir.compile(Function(function), args, target="h200")
        choices = {choice["task"]: choice["engine"] for choice in program.summary["engines"]}
        assert [engine for task, engine in choices.items() if task.startswith("product")] == wanted
        assert "generic" not in choices.values() and "replanned" not in program.summary


def test_rows_gathered_by_a_slice_are_a_chain_s_source_and_steps_of_a_cell_are_no_chain():
    """What is added to a layer's sums from memory, a slice for each layer, stays with engines of single products."""

    class Gathered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = Layers(3)

        def forward(self, x, edges):
            return self.layers(x[edges[0]])

    args = (torch.randn(4096, 64).bfloat16(), torch.randint(0, 4096, (2, 20_000)))
    with unassembled():
        program = kitsune_mlir.compile(Gathered().bfloat16(), args, target="h200")
        steps = kitsune_mlir.compile(nn.RNN(64, 64).bfloat16().eval(), (torch.randn(3, 8, 64).bfloat16(),), target="h200")
    assert [choice["engine"] for choice in program.summary["engines"]] == ["chain"]
    assert "chain" not in [choice["engine"] for choice in steps.summary["engines"]]


def test_a_broken_offer_for_a_single_op_is_settled():
    class Breaking(BreakingEngine):
        def offer(self, candidate, machine, options):
            return like("simt", candidate, machine, options)

    with registered(Breaking(), before="simt"):
        assert engines_of(Difference(), torch.randn(99), torch.randn(99)) == {"map_0": "simt"}  # who takes all tasks


def test_engines_that_are_not_asked():
    model, args = Layers(1).bfloat16(), (torch.randn(7, 64).bfloat16(),)
    assert engines_of(model, *args) == {"product_0": "gemv"}
    assert engines_of(model, *args, passes={"kitsune-partition-streams": "without=gemv"}) == {"product_0": "mma"}
    with pytest.raises(ArgumentError, match="there is no engine steam"):
        engines_of(model, *args, passes={"kitsune-partition-streams": "without=steam"})
    every = ",".join(ENGINES)
    with pytest.raises(CompileError, match="has no engine that takes it"):
        engines_of(model, *args, passes={"kitsune-partition-streams": f"without={every}"})


def test_offers_write_no_ir_and_are_quick():
    """A millisecond or so each: what the planner asks for every pair of groups."""
    import time

    from kitsune_mlir.codegen.gpu.interface.offer import Candidate
    from kitsune_mlir.dialects.edges import stage_space
    from kitsune_mlir.dialects.verify import walk

    model, args = Layers(6, 256).bfloat16(), (torch.randn(1000, 256).bfloat16(),)
    module = plan(import_model(model.eval(), args, context=new_context()), H200).module
    with module.context:
        before = str(module)
        stages = [op for op in walk(module.operation) if op.name == "kitsune.stage"]
        candidates = [Candidate(stage_space(stage), stage=stage) for stage in stages]
        start = time.process_time()
        offers = [offer_for(candidate, H200)[0] for candidate in candidates]
        spent = time.process_time() - start
        assert str(module) == before
    assert stages and all(offer is not None for offer in offers)
    assert spent / len(stages) < 0.05  # ten times what it takes
