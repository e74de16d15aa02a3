"""The benchmark of training: a case on the host, what its errors say, and that models start alike."""

import pytest
import torch

from bench.training import Case, error_of, learned, made, measure, parameters_of
from bench.training_cases import CASES


@pytest.mark.rotated(1)
@pytest.mark.parametrize("what", ["gradients", "step"])
def test_a_case_on_the_host(what: str) -> None:
    found = measure("dlrm", what, "cpu", "f32", "small", ("eager",))
    assert found["right"] and 0 < found["error"] < 1e-4, found
    assert found["programs"] == [1] * (2 if what == "gradients" else 1) and not found["in_pytorch"]
    assert {*found["milliseconds"]} == {"kitsune", "eager"} and found["speedup"] > 0


def test_a_peer_that_is_wrong_is_seen() -> None:
    case = Case(CASES["mgn"], "small", "f32", "cpu")
    objective, call = made(case, "gradients", "eager", [])
    call()
    exact = [one.clone() for one in learned(case, "gradients", objective)]
    assert error_of(learned(case, "gradients", objective), exact) == 0.0
    parameters = parameters_of(objective)
    last = parameters[-1].grad
    assert last is not None
    last.mul_(1.01)
    assert error_of(learned(case, "gradients", objective), exact) == pytest.approx(0.01, rel=1e-3)
    parameters[0].grad = None
    assert error_of(learned(case, "gradients", objective), exact) == pytest.approx(1.0)


def test_a_step_is_what_it_adds_and_models_start_alike() -> None:
    case = Case(CASES["dlrm"], "small", "bf16", "cpu")
    first, call = made(case, "step", "eager", [])
    call()
    (moved,) = learned(case, "step", first)
    assert moved.abs().max() > 1e-4
    again, _ = made(case, "step", "eager", [])
    assert not learned(case, "step", again)[0].any()
    assert all(p.dtype == torch.bfloat16 for p in parameters_of(again))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.library and name not in ("dlrm", "mgn")])
def test_models_of_the_zoo_learn(name: str) -> None:
    case = Case(CASES[name], "small", "f32", "cpu")
    objective, call = made(case, "step", "eager", [])
    losses = [float(call()) for _ in range(5)]
    assert losses[-1] < losses[0] and len(learned(case, "gradients", objective)) == len(parameters_of(objective))
