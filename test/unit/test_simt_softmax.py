"""Rows of many reductions with a softmax among them: its sums follow its maximum, beside few registers."""

import pytest
import torch
import torch.nn.functional as F

from kitsune_mlir.codegen.gpu.backend.cubin import assemble_best
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.interface import memory_tiles as tiles_simt
from test.gpu.simt_cases import Case, rows, stitch_case
from test.gpu.simt_programs import compile_case
from test.unit.test_simt_engine import check


def emitted_of(case: Case):
    ((_, emitted),) = compile_case(case)
    return emitted


@pytest.fixture
def tiles_of_eight_rows(monkeypatch):
    """As with many rows; the emulator is to run few."""
    monkeypatch.setattr(tiles_simt, "tile_of", lambda figures, target: [8])


def test_a_warp_has_a_row_and_all_rows_of_a_large_case_are_one_wave():
    emitted = emitted_of(stitch_case("bf16", 4096, 1024))
    plan = emitted.decisions[0].plan
    assert {key: plan.parameters[key] for key in ("threads", "threads_per_row", "unroll", "kept")} == {
        "threads": 256,
        "threads_per_row": 32,
        "unroll": 1,
        "kept": 2,
    }
    assert plan.task.tiles <= 4 * 132 and plan.registers == 64
    (resources,) = assemble_best(to_ptx(to_llvm_ir(emitted.module))).kernels.values()
    assert resources.registers <= 64 and not resources.spills


def test_loads_are_under_way_before_the_block_meets():
    """The barrier behind what is kept comes between the loads and everything that is made of them."""
    text = to_ptx(to_llvm_ir(emitted_of(stitch_case("bf16", 4096, 1024)).module))
    barrier = text.index("bar.sync")
    assert text.rindex("ld.global.v4") < barrier < text.index("add.rn.bf16x2" if "add.rn.bf16x2" in text else "add.bf16x2")
    assert barrier < text.index("shfl.sync")


@pytest.mark.parametrize("count, columns", [(37, 1024), (7, 1000), (5, 3000), (129, 40)])
def test_results_are_right(count, columns, tiles_of_eight_rows):
    check(stitch_case("bf16", count, columns))


def test_what_is_stored_may_need_the_softmax_itself(tiles_of_eight_rows):
    """Its elements were made of maxima that were not the last ones."""

    def run(x):
        h = F.gelu(torch.layer_norm(x, (512,)))
        p = torch.softmax(h, -1)
        return p * (p * h).sum(-1, keepdim=True) + torch.tanh(h)

    check(Case(run, (rows("bf16", 37, 512),)))


def test_f32_and_other_maxima_keep_their_order():
    case = stitch_case("f32", 4096, 1024)
    assert not emitted_of(case).decisions[0].plan.private.schedules[0].running

    def run(x):
        h = torch.layer_norm(x, (1024,))
        return torch.layer_norm(h / h.amax(-1, keepdim=True), (1024,))

    assert not emitted_of(Case(run, (rows("bf16", 4096, 1024),))).decisions[0].plan.private.schedules[0].running
