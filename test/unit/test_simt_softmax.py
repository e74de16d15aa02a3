"""Rows of many reductions with a softmax among them: its sums follow its maximum, beside few registers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kitsune_mlir.codegen.gpu.backend.cubin import assemble_best
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.interface import memory_tiles as tiles_simt
from test.gpu.simt_cases import Case, rows, stitch_case
from test.gpu.simt_programs import compile_case
from test.programs.emulated import compiled, emulated
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


def loss_and_gradient(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of a softmax in f32, and its gradient with a row's target, rounded to 16 bits."""
    wide = scores.float()
    largest = wide.amax(-1)
    less = wide - largest[:, None]
    total = torch.exp(less).sum(-1)
    hit = torch.arange(scores.shape[1], device=scores.device) == target[:, None]
    return largest, total, (torch.exp(less - torch.log(total)[:, None]) - hit.to(less.dtype)).to(scores.dtype)


@pytest.mark.parametrize(("rows", "columns"), [(5, 129), (3, 1000), (2, 9000)])
def test_exponentials_that_are_rounded_or_of_differences_are_short(rows: int, columns: int) -> None:
    """Those of a softmax whose differences another map makes, too; a target that no 32 bits hold is no column."""
    scores = (4 * torch.randn(rows, columns)).bfloat16()
    target = torch.randint(0, columns, (rows,))
    scores[0, target[0]] = 40.0  # all but certain: the gradient is a small difference
    target[-1] += 1 << 32
    program = compiled(loss_and_gradient, (scores, target))
    like = [torch.empty(rows), torch.empty(rows), torch.empty_like(scores)]
    largest, total, gradient = emulated(program, (scores, target), like)
    exact = loss_and_gradient(scores.double(), target)
    assert torch.equal(largest.double(), scores.double().amax(-1))
    assert ((total.double() - exact[1]).abs() / exact[1]).max() < 1e-6
    assert ((gradient.double() - exact[2]).abs() <= 0.005 * exact[2].abs() + 3e-7).all()


def test_no_exponential_of_a_loss_is_exact_to_the_last_bit() -> None:
    """Neither the one of differences that another map makes, nor the one that is rounded to 16 bits."""

    def both(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.ops.aten._log_softmax(scores.float(), -1, False)
        loss, total = torch.ops.aten.nll_loss_forward(logs, target, None, 1, -100)
        given = torch.ops.aten.nll_loss_backward(torch.ones_like(loss), logs, target, None, 1, -100, total)
        return loss, torch.ops.aten._log_softmax_backward_data(given, logs, -1, torch.float32).to(scores.dtype)

    args = torch.randn(264, 9000).bfloat16(), torch.randint(0, 9000, (264,))
    code = compiled(both, args).ir("ptx")
    assert "ex2.approx.ftz" in code and "cvt.sat" not in code
