"""Layers for a few rows beside gathered vectors: on an emulated block; when they are chosen; what is assembled."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.contraction.axes import COL
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM
from kitsune_mlir.codegen.gpu.engines.chain.few_rows import weight_ring as row_layers_ring
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.plan import _deal
from kitsune_mlir.codegen.gpu.engines.chain.layers import Layer, few_rows_reason
from kitsune_mlir.codegen.gpu.interface.window import Dim, Window
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.vector import run_kernel
from test.emulators.warp import Warps
from test.gpu.row_programs import Recommender
from test.programs.compiled import planned

BF16 = torch.bfloat16


def emulated(program, model: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    """What the program's kernel computes on an emulated block; all of it is done by one stage of pairs."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        view = ProgramView(list(module.body.operations)[0].operation)
        executor = build(view, "kernel")
        assert [decision.plan.engine for decision in executor.decisions] == ["pairs"]
        assert "layers" in executor.decisions[0].plan.parameters
        held = dict(model.state_dict())
        inputs = [held[w.name] for w in program.signature.weights] + list(args)
        arrays = [t.detach().contiguous().view(torch.int16).numpy() if t.dtype == BF16 else t.numpy() for t in inputs]
        with torch.no_grad():
            shape = model(*args).shape
        result = np.zeros(shape, np.int16)
        run_kernel(executor.module.operation, executor.manifest, arrays, [result], 3, Warps)
    return torch.from_numpy(result).view(BF16).double()


def wanted(model: nn.Module, *args: Tensor) -> Tensor:
    with torch.no_grad():
        return model.double()(*(a.double() if a.is_floating_point() else a for a in args))


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "samples, tables, widths",
    [
        (33, 3, (13, 64, 32)),
        (16, 20, (64, 32, 64, 64)),
        (40, 2, (7, 128, 96, 32)),
        (16, 2, (64, 128, 32)),
        (7, 2, (64, 32, 64)),
        (31, 2, (512, 32, 32)),
    ],
)
def test_a_stage_of_pairs_makes_its_vector_itself(samples, tables, widths):
    check_layers(samples, tables, widths)


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "slots, samples, widths", [(2, 100, (512, 64, 64)), (3, 70, (256, 128, 192)), (2, 50, (64, 288, 32)), (2, 90, (96, 64, 64))]
)
def test_places_of_a_ring_are_used_again_within_a_tile_and_by_the_next(monkeypatch, slots, samples, widths):
    """Three blocks have up to three tiles each; terms and columns that do not fill a piece."""
    monkeypatch.setattr(row_layers_ring, "MOST_SLOTS", slots)
    check_layers(samples, 2, widths)


def check_layers(samples: int, tables: int, widths: tuple[int, ...]) -> None:
    torch.manual_seed(samples)
    model = Recommender(tables, widths).to(BF16)
    args = torch.randn(samples, widths[0]).to(BF16), torch.randint(-11, 11, (samples, tables))
    program = planned(model.eval(), *args)
    found, right = emulated(program, model, args), wanted(model, *args)
    assert (found - right).norm() <= 1e-2 * right.norm()


def test_pieces_are_as_large_as_places_and_come_in_the_order_of_the_layers():
    def weight(cols: int, depth: int, role: str = "input") -> Window:
        buffer = SimpleNamespace(role=role, offset=0, element=ir.BF16Type.get())
        dims = Dim(COL, cols, cols, depth, 0), Dim(SUM, depth, depth, 1, 0)
        return Window(buffer, dims)  # type: ignore[arg-type]

    with new_context():
        wide, short = weight(256, 512), weight(256, 13)
        ring = row_layers_ring.plan_ring({1: wide, 2: weight(128, 256)}, 100 << 10)
        made = row_layers_ring.plan_ring({1: weight(256, 512, "arena")}, 100 << 10)
        assert made is None  # another stage makes it
        assert row_layers_ring.plan_ring({1: wide}, 60 << 10) is None  # one place: nothing would come meanwhile
        assert row_layers_ring.plan_ring({1: short}, 100 << 10) is None  # TMA has no rows of 26 bytes
    assert ring is not None and (ring.slots, ring.slot_bytes, ring.bytes) == (3, 32 << 10, 96 << 10)
    assert ring.pieces == (*((1, first) for first in range(0, 512, 64)), (2, 0), (2, 128))
    assert [ring.uses(slot) for slot in range(3)] == [4, 3, 3]
    assert ring.barriers(8) == (1, 1, 1, 8, 8, 8)


def test_warps_share_the_columns_evenly():
    assert _deal(64, 8) == (8, 8, 1)
    assert _deal(32, 8) == (4, 8, 1)
    each, units, rounds = _deal(27, 8)
    assert each * units == 27 and rounds * each <= 4


def test_what_few_rows_are_not_done_for():
    assert few_rows_reason([Layer(64, 13, 64), Layer(64, 64, 8)]) is None
    assert "13 columns" in str(few_rows_reason([Layer(64, 64, 13), Layer(64, 13, 64)]))
    assert "100 terms" in str(few_rows_reason([Layer(64, 100, 64)]))


def test_the_recommenders_stage_assembles_without_spills():
    model = Recommender(26, (13, 512, 256, 128)).to(BF16)
    args = torch.randn(2048, 13).to(BF16), torch.randint(0, 11, (2048, 26))
    program = planned(model.eval(), *args)
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(program.ir("tiles")), "main_p0")
    assert code.resources.spill_store_bytes == 0 and "spill" not in "".join(code.warnings)
    assert [choice.engine for choice in code.engines] == ["pairs"]
    assert code.engines[0].parameters["layers"] == [[13, 512], [512, 256], [256, 128]]
