"""What the stages of a training step store: nothing that is made again in no time, and nothing across long rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.stages.grouping import Grouping
from kitsune_mlir.pipeline import plan
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu

aten = torch.ops.aten


def stages(function: Callable[..., Any], *args: Tensor) -> list[dict[str, Any]]:
    """The stages of a function's plan."""
    return plan(import_model(function, args, context=new_context()), find_target("h200")).summary["stages"]


def layer(x: Tensor, weight: Tensor, bias: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """A linear layer, and its bias as an optimizer changes it: both widen the bias."""
    return F.gelu(F.linear(x, weight, bias)), (bias.float() - change).bfloat16()


def test_a_bias_that_is_changed_goes_into_the_product() -> None:
    args = torch.randn(2048, 768), torch.randn(3072, 768), torch.randn(3072)
    found = stages(layer, *(one.bfloat16() for one in args), torch.randn(3072))
    (product,) = (stage for stage in found if "product" in stage["ops"])
    assert [stage["sizes"] for stage in found if stage is not product] == [[3072]]
    assert product["writes"] == [2048 * 3072 * 2]


def loss_and_gradients(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Cross-entropy of scores over a vocabulary, as AOTAutograd has it, and the gradients of both factors."""
    scores = x @ weight.T
    logs = aten._log_softmax(scores.float(), -1, False)
    loss, total = aten.nll_loss_forward(logs, target, None, 1, -100)
    given = aten.nll_loss_backward(torch.ones_like(loss), logs, target, None, 1, -100, total)
    given = aten._log_softmax_backward_data(given, logs, -1, torch.float32).to(scores.dtype)
    return loss, given @ weight, given.T @ x


@pytest.mark.parametrize("words", [30522, 5000])
def test_scores_over_a_vocabulary_are_not_stored_wide_or_across_in_a_softmax(words: int) -> None:
    found = stages(
        loss_and_gradients,
        torch.randn(512, 64).bfloat16(),
        torch.randn(words, 64).bfloat16(),
        torch.randint(0, words, (512,)),
    )
    assert max(size for stage in found for size in stage["writes"]) <= 2 * 512 * (words + 8)
    (softmax,) = (stage for stage in found if stage["name"].startswith("reduce") and stage["sizes"] == [512])
    assert sorted(softmax["writes"])[-2:] == [512 * 4, 2 * 512 * words]


@pytest.mark.parametrize("words", [129, 1000])
def test_a_loss_over_a_vocabulary_is_right(words: int) -> None:
    x, weight, target = torch.randn(7, 24), torch.randn(words, 24), torch.randint(0, words, (7,))
    target[3] = -100
    found = kitsune_mlir.compile(loss_and_gradients, (x, weight, target), target="host")(x, weight, target)
    wide = x.double().requires_grad_(), weight.double().requires_grad_()
    loss = F.cross_entropy(wide[0] @ wide[1].T, target)
    loss.backward()
    for one, wanted in zip(found, (loss, wide[0].grad, wide[1].grad), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8192, 4096), (4096, 16384)])
def test_rows_with_a_number_each_stay_in_one_stage(shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape).bfloat16(), torch.randn(shape[1]).bfloat16()
    assert len(stages(lambda x: F.softmax(x, -1), x)) == 1
    assert len(stages(lambda x, w: F.layer_norm(x, w.shape, w), x, weight)) == 1


def with_a_bias(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """The same of scores with a bias, which has a gradient, too."""
    scores = F.linear(x, weight, bias)
    logs = aten._log_softmax(scores.float(), -1, False)
    loss, total = aten.nll_loss_forward(logs, target, None, 1, -100)
    given = aten.nll_loss_backward(torch.ones_like(loss), logs, target, None, 1, -100, total)
    given = aten._log_softmax_backward_data(given, logs, -1, torch.float32).to(scores.dtype)
    return loss, given @ weight, (given.T @ x).float() * 2, given.float().sum(0)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("words", [1501, 2047])
def test_an_odd_vocabulary_has_wider_rows(words: int) -> None:
    x, weight, bias = torch.randn(1031, 24), torch.randn(words, 24), torch.randn(words)
    x, weight, bias = x.bfloat16(), (0.3 * weight).bfloat16(), bias.bfloat16()
    target = torch.randint(0, words, (1031,))
    target[3] = -100
    program = planned_for_gpu(with_a_bias, x, weight, bias, target)
    found = program(x, weight, bias, target)
    wide = [one.double().requires_grad_() for one in (x, weight, bias)]
    loss = F.cross_entropy(F.linear(*wide), target)
    loss.backward()
    exact = (loss, wide[0].grad, 2 * wide[1].grad, wide[2].grad)
    for one, wanted in zip(found, exact, strict=True):
        assert wanted is not None and (one.double() - wanted).abs().max() < 0.02 * wanted.abs().max()
    row = 2 * 1031 * (-(-words // 8) * 8)
    assert [size for stage in program.summary["stages"] for size in stage["writes"] if size > row // 2] == [row, row]


def attended(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """A projection of what an attention makes, and what its gradient needs of that: sums of products with what is given."""
    found = F.scaled_dot_product_attention(q, k, v)
    rows = found.transpose(1, 2).reshape(-1, weight.shape[1])
    return rows @ weight.T, (found.float() * given.float()).sum(-1)


@pytest.mark.parametrize("rows", [64, 129])
def test_an_attention_whose_result_is_read_twice_is_stored_in_one_order(rows: int) -> None:
    q, k, v, given = (torch.randn(2, 3, rows, 64).bfloat16() for _ in range(4))
    weight = torch.randn(192, 192).bfloat16()
    program = planned_for_gpu(attended, q, k, v, weight, given)
    wanted = attended(*(one.double() for one in (q, k, v, weight, given)))
    for one, exact in zip(program(q, k, v, weight, given), wanted, strict=True):
        assert (one.double() - exact).abs().max() < 0.02 * exact.abs().max()
    written = [size for stage in program.summary["stages"] for size in stage["writes"]]
    assert sorted(written) == sorted([2 * rows * 192 * 2, 2 * rows * 192 * 2, 2 * 3 * rows * 4])


def test_long_rows_are_read_from_shared_memory_by_several_blocks() -> None:
    def difference(x: Tensor, target: Tensor) -> Tensor:
        hit = torch.arange(x.shape[1]) == target[:, None]
        return (F.softmax(x.float(), -1) - hit.float()).bfloat16()

    args = torch.randn(264, 30528).bfloat16(), torch.randint(0, 30528, (264,))
    with unassembled():
        (task,) = kitsune_mlir.compile(difference, args, target="h200", options={"cache": False}).summary["engines"]
    assert task["engine"] == "simt" and task["parameters"]["threads"] == 256 and not task["parameters"]["resident"]


UPDATES = """
#all = affine_map<(i) -> (i)>
#one = affine_map<(i) -> ()>
#no = affine_map<() -> ()>
func.func @updates(%rate: tensor<f32>, %given: tensor<4096x768xf32>, %a: tensor<768xf32>, %b: tensor<768xf32>)
    -> (tensor<768xf32>, tensor<768xf32>) {
  %zero = arith.constant 0.0 : f32
  %row = tensor.empty() : tensor<768xf32>
  %point = tensor.empty() : tensor<f32>
  %start = linalg.fill ins(%zero : f32) outs(%row : tensor<768xf32>) -> tensor<768xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%given : tensor<4096x768xf32>) outs(%start : tensor<768xf32>) {
  ^bb0(%x: f32, %y: f32):
    %z = arith.addf %x, %y : f32
    linalg.yield %z : f32
  } -> tensor<768xf32>
  %size = linalg.generic {indexing_maps = [#no, #no], iterator_types = []} ins(%rate : tensor<f32>) outs(%point : tensor<f32>) {
  ^bb0(%x: f32, %y: f32):
    %z = math.sqrt %x : f32
    linalg.yield %z : f32
  } -> tensor<f32>
  %first = linalg.generic {indexing_maps = [#all, #one, #all], iterator_types = ["parallel"]}
      ins(%FIRST, %size : tensor<768xf32>, tensor<f32>) outs(%row : tensor<768xf32>) {
  ^bb0(%x: f32, %n: f32, %y: f32):
    %z = arith.mulf %x, %n : f32
    linalg.yield %z : f32
  } -> tensor<768xf32>
  %second = linalg.generic {indexing_maps = [#all, #one, #all], iterator_types = ["parallel"]}
      ins(%b, %SECOND : tensor<768xf32>, tensor<f32>) outs(%row : tensor<768xf32>) {
  ^bb0(%x: f32, %n: f32, %y: f32):
    %z = arith.mulf %x, %n : f32
    linalg.yield %z : f32
  } -> tensor<768xf32>
  return %first, %second : tensor<768xf32>, tensor<768xf32>
}"""


@pytest.mark.parametrize(("first", "second", "apart"), [("sum", "size", True), ("a", "size", False), ("sum", "rate", False)])
def test_a_number_that_several_updates_read_waits_for_no_gradient(first: str, second: str, apart: bool) -> None:
    """In one stage with the first bias's update it would wait for that bias's gradient, and all updates for it."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(UPDATES.replace("%FIRST", f"%{first}").replace("%SECOND", f"%{second}"))
        *ops, end = [op.operation for op in module.body.operations[0].regions[0].blocks[0].operations]
        grouping = Grouping(ops, list(end.operands), find_target("h200"), "cost")
        grouping.order_groups()
        size, update, _ = (grouping.group_of[hash(op)] for op in ops if is_generic(op) and "reduction" not in str(op))
        reason = grouping.try_merge(size, update)
    assert (reason == "others read its numbers, and would wait for what this one waits for") == apart


def gradients_of_a_norm(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    """Of rows and of the weight; both read the rows as they were normalised."""
    made, given = (x.float() - mean) * scale, given.float()
    wide = given * weight.float()
    row = scale * (wide - wide.mean(1, True) - made * (wide * made).mean(1, True))
    return row.bfloat16(), (given * made).sum(0).bfloat16()


def test_rows_that_a_norm_has_made_of_saved_ones_are_made_again() -> None:
    rows, numbers, weight = torch.randn(30000, 512).bfloat16(), torch.rand(30000, 1), torch.rand(512).bfloat16()
    found = stages(gradients_of_a_norm, rows, numbers, numbers + 1, weight, rows.clone())
    assert all(size < 4 * rows.numel() for stage in found for size in stage["writes"])
