"""Attention's scores are made again in a backward graph, not saved; others stay as PyTorch's partitioner wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from kitsune_mlir.dynamo import recomputed
from kitsune_mlir.dynamo.backend import kitsune
from kitsune_mlir.frontend.aten import traced_table


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax((q * 0.25) @ k.mT, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    return torch.softmax(((q @ k.mT) * 0.25).masked_fill(~keep, float("-inf")), -1) @ v


def returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


def no_second_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1).sum() * v.sum()


def mlp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.relu(q @ k[:, :8].mT @ v[:, :8]) @ k.mT @ v


def relus(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.linear(F.relu(F.linear(F.relu(F.linear(q, k[0])), v[0].mT)), k[0])


def skipped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A layer of what a layer made, and of its input."""
    return F.linear(torch.cat([F.relu(F.linear(q, k[0])), q], -1), torch.cat([k[1], v[0]], -1)[:, :1].expand(-1, 112))


def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A layer of rows that are looked up, and of others."""
    rows = torch.arange(95, -1, -1)
    return F.linear(torch.cat([q[0][rows], v[0]], -1), k[0][:, :1].expand(-1, 32))


def far_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Losses in f32 of rows, and of what layers make of sums of them."""
    q, k, v = (x.bfloat16() for x in (q, k, v))
    rows = q + F.layer_norm(F.linear(q, k[0, :16]), (16,))
    sums = rows[:, ::3].sum(1)
    for _ in range(3):
        sums = F.relu(F.linear(sums, k[0, :16]))
    return F.mse_loss(sums.float(), v[:, 0].float()) + F.mse_loss(rows.float(), v.float())


def elements(value: Tensor) -> Any:
    return value.numel()


def dtype(value: Tensor) -> Any:
    return value.dtype


def saved(
    function: Callable[..., Tensor],
    args: tuple[Tensor, ...],
    partition: Callable[..., object],
    about: Callable[[Tensor], Any] = elements,
) -> list[Any]:
    """Elements of what a forward graph gives to its backward graph, or another fact `about` each."""
    found: list[Any] = []

    def keep(gm: fx.GraphModule, example_inputs: object) -> fx.GraphModule:
        if not found:
            outputs = next(iter(gm.graph.find_nodes(op="output"))).args[0]
            found.extend(about(node.meta["val"]) for node in outputs if isinstance(node, fx.Node) and "val" in node.meta)
        return gm

    def same(gm: fx.GraphModule, example_inputs: object) -> fx.GraphModule:
        return gm

    parts = {"fw_compiler": keep, "bw_compiler": same, "partition_fn": partition, "decompositions": traced_table(late=False)}
    made = aot_function(function, **parts)(*args)
    (made[0] if isinstance(made, tuple | list) else made).sum().backward()
    return found


def arguments(length: int = 96, width: int = 16) -> tuple[Tensor, ...]:
    return tuple(torch.randn(3, length, width, requires_grad=True) for _ in range(3))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputed, "LEAST", 1 << 10)
    monkeypatch.setattr(recomputed, "TIMES_LARGER", 2)


@pytest.mark.parametrize("function", [attention, causal])
def test_no_scores_are_saved(function: Callable[..., Tensor]) -> None:
    args, wide = arguments(), 3 * 96 * 96
    assert wide in saved(function, args, min_cut_rematerialization_partition)
    assert wide not in saved(function, args, recomputed.partitioned)


@pytest.mark.parametrize("function", [returned, no_second_product, mlp])
def test_others_stay(function: Callable[..., Tensor]) -> None:
    ours, plain = (saved(function, arguments(), by) for by in (recomputed.partitioned, min_cut_rematerialization_partition))
    assert ours.count(3 * 96 * 96) == plain.count(3 * 96 * 96) and sum(ours) <= sum(plain)


def test_what_is_too_small_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputed, "LEAST", 1 << 20)
    assert 3 * 96 * 96 in saved(attention, arguments(), recomputed.partitioned)


def assert_exact(function: Callable[..., Tensor], args: tuple[Tensor, ...]) -> None:
    """Gradients are those of float64, but for a millionth of the largest number of each."""
    torch._dynamo.reset()
    found = torch.autograd.grad(torch.compile(function, backend=kitsune)(*args).square().sum(), args)
    exact = [a.detach().double().requires_grad_() for a in args]
    for one, other in zip(found, torch.autograd.grad(function(*exact).square().sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-6 * float(other.abs().max()))


@pytest.mark.rotated(2)
@pytest.mark.parametrize("function", [attention, causal])
@pytest.mark.parametrize("length", [7, 96])
def test_gradients_are_eager_s(function: Callable[..., Tensor], length: int) -> None:
    assert_exact(function, arguments(length))


def test_what_a_weight_gradient_reads_says_which_numbers_of_a_relu_are_positive() -> None:
    """Rows of all samples are a view of it; saved are the results of two ReLUs, and no masks of them."""
    args = arguments()
    plain, ours = (saved(relus, args, by, dtype) for by in (min_cut_rematerialization_partition, recomputed.partitioned))
    assert (plain.count(torch.bool), ours.count(torch.bool)) == (2, 0)
    assert_exact(relus, args)


def test_what_is_joined_from_what_is_there_is_not_saved() -> None:
    """But for rows that would be looked up again."""
    args, joined, looked_up = arguments(), 3 * 96 * 112, 96 * 32
    plain, ours = (saved(skipped, args, by) for by in (min_cut_rematerialization_partition, recomputed.partitioned))
    assert joined in plain and joined not in ours
    assert looked_up in saved(gathered, args, recomputed.partitioned)
    assert_exact(skipped, args)


def test_a_tangent_is_made_of_what_is_saved_even_if_that_was_made_long_before() -> None:
    args, every = arguments(), lambda value: (value.numel(), value.dtype)
    plain, ours = (saved(far_apart, args, by, every) for by in (min_cut_rematerialization_partition, recomputed.partitioned))
    tangent = (args[0].numel(), torch.float32)
    assert tangent in plain and tangent not in ours


@pytest.mark.parametrize("decided", [None, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_what_a_checkpoint_decides_of_a_concatenation_stays(decided: CheckpointPolicy | None) -> None:
    graph = fx.Graph()
    x, tangents = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    joined = graph.call_function(torch.ops.aten.cat.default, ([x, x],))
    graph.output((joined, graph.call_function(torch.ops.aten.mm.default, (tangents, joined))))
    if decided is not None:
        joined.meta |= {"recompute": decided, "ac_graph_id": 3}
    assert recomputed.recompute_joined(graph) == (decided is None)
    assert joined.meta["recompute"] == (decided or CheckpointPolicy.MUST_RECOMPUTE)
    assert joined.meta["ac_graph_id"] == (0 if decided is None else 3)
