"""Dropout inside of attention: which probabilities stay, gradients through the same choice, and what the engines take."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kitsune_mlir
from kitsune_mlir.frontend.attention_dropout import MULTIPLIER, attention_keep, keep_factor, new_seed
from kitsune_mlir.frontend.gradients import attention as gradients
from kitsune_mlir.frontend.gradients.attention import (
    Dropout,
    attention_gradients,
    attention_with_statistics,
    trained_attention,
)
from test.gpu.attention_cases import Case
from test.gpu.attention_gradient_programs import exact_results, model_of, trained_inputs
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

SEED = torch.tensor(0x0123_4567_89AB_CDEF)
CASES = {
    "plain": Case(1, 2, 2, 70, 90, 64, dropout=0.1),
    "grouped": Case(1, 4, 2, 50, 50, 64, causal=True, dropout=0.3),
    "mask": Case(2, 2, 2, 33, 40, 40, mask="rows", dropout=0.5),
    "wide": Case(1, 1, 1, 40, 40, 136, causal=True, dropout=0.2),
}


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_wanted_and_none_depends_on_another(p: float) -> None:
    keep = attention_keep(SEED, [2, 3, 257, 300], p).double()
    deviation = (p * (1 - p)) ** 0.5
    assert abs(keep.mean().item() - (1 - p)) < 4 * deviation * keep.numel() ** -0.5
    assert abs(keep.mean(-1).std().item() / (deviation * 300**-0.5) - 1) < 0.1
    assert abs(keep.mean(-2).std().item() / (deviation * 257**-0.5) - 1) < 0.1
    centred = (keep - (1 - p)) / deviation
    pairs = [(centred[..., :-n], centred[..., n:]) for n in (1, 7, 8, 16)]
    pairs += [(centred[..., :-n, :], centred[..., n:, :]) for n in (1, 8, 16)]
    pairs += [(centred[..., :-8, :-8], centred[..., 8:, 8:]), (centred[:, 0], centred[:, 1]), (centred[0], centred[1])]
    for one, other in pairs:
        assert abs((one * other).mean().item()) < 5 * one.numel() ** -0.5


def test_a_seed_gives_the_same_again_and_another_one_others() -> None:
    size = [1, 2, 64, 64]
    first = attention_keep(SEED, size, 0.5)
    assert torch.equal(first, attention_keep(SEED, size, 0.5))
    for change in (1, 1 << 40):
        assert 0.4 < (first == attention_keep(SEED + change, size, 0.5)).double().mean() < 0.6
    # More are kept of the same: a place does not depend on the chance.
    assert not (first & ~attention_keep(SEED, size, 0.25)).any()
    torch.manual_seed(3)
    seeds = [new_seed(first) for _ in range(2)]
    torch.manual_seed(3)
    assert seeds == [new_seed(first) for _ in range(2)] and seeds[0] != seeds[1]
    assert keep_factor(0.25) == 4 / 3


def test_gradients_are_those_of_the_same_choice() -> None:
    """Finite differences of the result with the seed fixed."""
    torch.manual_seed(0)
    q, k, v, gradient = (torch.randn(1, 2, 9, 8, dtype=torch.float64) for _ in range(4))
    dropout = Dropout(SEED, 0.4)

    def value(q: Tensor, k: Tensor, v: Tensor) -> float:
        return (attention_with_statistics(q, k, v, None, True, 0.3, dropout)[0] * gradient).sum().item()

    out, statistics = attention_with_statistics(q, k, v, None, True, 0.3, dropout)
    found = attention_gradients(q, k, v, None, True, 0.3, out, statistics, gradient, dropout=dropout)
    assert (out == 0).all(-1).any() or not torch.equal(out, attention_with_statistics(q, k, v, None, True, 0.3)[0])
    for number in range(3):
        way = torch.randn_like(q)
        step = [torch.zeros_like(q)] * 3
        step[number] = 1e-3 * way
        ahead = value(*(x + d for x, d in zip((q, k, v), step, strict=True)))
        behind = value(*(x - d for x, d in zip((q, k, v), step, strict=True)))
        # Sums of attention are in f32.
        assert abs((ahead - behind) / 2e-3 - (found[number] * way).sum().item()) < 2e-2


@pytest.mark.parametrize("name", in_turn(list(CASES), 1))
def test_the_plan_for_the_gpu_is_right_on_the_host(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    given = trained_inputs(case, "cpu")
    program = planned_for_gpu(model_of(case), *given.values())
    engines = [program.ir("tiles").count(f'engine = "{engine}"') for engine in ("attention", "attention_gradient")]
    assert engines == [1, 2]
    exact = exact_results(case, given)
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(program(*given.values()), exact, strict=True)]
    assert max(errors) < 6e-3


class OtherChance(nn.Module):
    """Values' gradient with another choice than that of the scores."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seed: Tensor, gradient: Tensor) -> list[Tensor]:
        how = (None, False, 0.125)
        out, statistics = attention_with_statistics(q, k, v, *how, Dropout(seed, 0.2))
        first = attention_gradients(q, k, v, *how, out, statistics, gradient, dropout=Dropout(seed, 0.2))
        other = attention_gradients(q, k, v, *how, out, statistics, gradient, dropout=Dropout(seed, 0.4))
        return [out, first[1], other[2]]


def test_one_call_of_philox_serves_four_elements() -> None:
    """A thread has 32 elements of a block of 64 keys or rows: eight calls of seven rounds each."""
    case = Case(1, 1, 1, 256, 256, 64, dropout=0.1)
    texts: list[str] = []
    with unassembled(texts.append):
        kitsune_mlir.compile(
            model_of(case), tuple(trained_inputs(case, "cpu").values()), target="sm_90a", options={"cache": False}
        )
    multiplier = MULTIPLIER - (1 << 32)
    loops = [len(re.findall(rf"mul\.\w+\.u32.*, {multiplier};", block)) for block in re.split(r"\n\$L\w+:", texts[0])]
    assert max(loops) <= 8 * 7


def test_two_choices_are_no_pair_of_sums() -> None:
    given = trained_inputs(Case(1, 1, 1, 64, 64, 64, dropout=0.2), "cpu")
    program = planned_for_gpu(OtherChance(), *given.values())
    want = OtherChance()(*given.values())
    errors = [((a - b).double().norm() / b.double().norm()).item() for a, b in zip(program(*given.values()), want, strict=True)]
    assert max(errors) < 2e-2


def test_on_the_host_dropout_is_pytorchs() -> None:
    q, k, v = (torch.randn(1, 2, 16, 8, requires_grad=True) for _ in range(3))
    assert trained_attention(q, k, v, dropout_p=0.5, dropout_inside=True) is NotImplemented


def test_without_the_option_dropout_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "DROPPED_INSIDE", {"cpu"})
    q, k, v = (torch.randn(1, 2, 16, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    assert trained_attention(q, k, v, dropout_p=0.5) is NotImplemented
    assert trained_attention(q, k, v, dropout_p=0.5, dropout_inside=True) is not NotImplemented


def test_a_compiled_step_repeats_with_the_generators_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: a new choice at each call, the same again from the same state, and gradients of that choice."""
    monkeypatch.setattr(gradients, "DROPPED_INSIDE", {"cpu"})
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)  # noqa: E731
    attend = torch.compile(attention, backend="kitsune", options={"attention_dropout": True})

    saved: list[Tensor] = []

    def step(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            out = attend(q, k, v)
        return [out.detach(), *torch.autograd.grad(out.sum(), (q, k, v))]

    first, again, other = step(1), step(1), step(2)
    assert saved and not any(x.dtype == torch.bool for x in saved)
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])
    # The result is linear in the values: its gradient by them gives the result's sum back.
    assert abs((first[3].double() * v).sum() - first[0].double().sum()) < 0.02 * first[0].double().abs().sum()
    torch.manual_seed(1)
    seed = new_seed(q)
    given = (None, False, 0.25, Dropout(seed, 0.3))
    assert torch.allclose(first[0], attention_with_statistics(q, k, v, *given)[0], atol=2e-2)
