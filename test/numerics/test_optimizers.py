"""Optimizers' steps as torch.compile traces them, and the operators on lists that they are made of, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

import kitsune_mlir
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.decompositions import decomposition_table
from test.numerics.compare import problems, widened
from test.numerics.gradients import HOST, wrong_alone
from test.rotation import in_turn

aten = torch.ops.aten
SHAPES = [(7, 129), (1,), (3, 5, 2)]
STEPS: dict[str, Callable[[Sequence[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda w: torch.optim.SGD(w, lr=0.1),
    "SGD, weight decay, maximize": lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.01, maximize=True),
    "SGD, momentum": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, dampening=0.1),
    "SGD, Nesterov, foreach": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "Adam": lambda w: torch.optim.Adam(w, lr=0.01, foreach=False),
    "Adam, foreach": lambda w: torch.optim.Adam(w, lr=0.01, foreach=True, weight_decay=0.01),
    "Adam, amsgrad": lambda w: torch.optim.Adam(w, lr=0.01, foreach=True, amsgrad=True),
    "AdamW": lambda w: torch.optim.AdamW(w, lr=0.01, foreach=False),
    "AdamW, foreach": lambda w: torch.optim.AdamW(w, lr=0.01, foreach=True),
    "RMSprop": lambda w: torch.optim.RMSprop(w, lr=0.01, foreach=False),
    "RMSprop, foreach": lambda w: torch.optim.RMSprop(w, lr=0.01, foreach=True, momentum=0.9, centered=True),
    "Adagrad": lambda w: torch.optim.Adagrad(w, lr=0.01, foreach=False),
    "Adagrad, foreach": lambda w: torch.optim.Adagrad(w, lr=0.01, foreach=True, lr_decay=0.1),
    "Adamax": lambda w: torch.optim.Adamax(w, lr=0.01, foreach=True),
    "NAdam": lambda w: torch.optim.NAdam(w, lr=0.01, foreach=True),
    "Adadelta": lambda w: torch.optim.Adadelta(w, foreach=True),
}


def compiled(graph: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """A graph of AOTAutograd's as a program."""
    run = fx.Interpreter(graph)

    def flat(*given: Any) -> Any:
        return run.run(*given, enable_io_processing=False)

    with unset_fake_temporarily(), _disable_current_modes(), torch._guards.tracing(None), torch.no_grad():
        real = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) if isinstance(a, Tensor) else a for a in args]
        program = kitsune_mlir.compile(flat, real, target="host", options=HOST)
    programs.append(program)
    return make_boxed_func(lambda *given: list(program(*given)))


programs: list[kitsune_mlir.Program] = []


def backend(graph: fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """Of torch.compile: no part of a graph runs in PyTorch."""
    # torch.export, through which graphs go here, cannot trace this one again.
    table = {op: way for op, way in traced_table(late=False).items() if "squeeze" not in str(op)}
    return aot_autograd(fw_compiler=compiled, decompositions=table)(graph, args)


@pytest.mark.parametrize("name", in_turn(list(STEPS), 2))
def test_steps(name: str) -> None:
    """Two steps: weights and all state as in float64, in one program."""
    torch._dynamo.reset()
    programs.clear()
    weights = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    own, plain, wide = ([widened(w.detach()) if n == 2 else w.detach().clone() for w in weights] for n in range(3))
    optimizers = [STEPS[name]([w.requires_grad_() for w in each]) for each in (own, plain, wide)]
    step = torch.compile(optimizers[0].step, backend=backend)
    for _ in range(2):
        grads = [torch.randn(shape) for shape in SHAPES]
        for each in (own, plain, wide):
            for weight, grad in zip(each, grads, strict=True):
                weight.grad = grad.to(weight.dtype)
        step()
        for optimizer in optimizers[1:]:
            optimizer.step()
    assert programs
    states = [[o.state[w][k] for w in o.state for k in sorted(o.state[w])] for o in optimizers]
    states = [[v for v in state if isinstance(v, Tensor)] for state in states]
    results = [[*each, *state] for each, state in zip((own, plain, wide), states, strict=True)]
    found = problems(
        results[0],
        [r.to(p.dtype) if not p.is_floating_point() else r for r, p in zip(results[2], results[1], strict=True)],
        results[1],
    )
    assert not found, found


def lists(count: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Numbers of at least one half, so that roots and quotients of them are of use."""
    return [[(0.5 + torch.rand(shape)).to(dtype) for shape in SHAPES] for _ in range(count)]


LEFT_OUT = (
    "aten._foreach_mm.default",  # of matrices; PyTorch 2.11 has none
    "aten._foreach_addcdiv.Tensor",  # PyTorch does not export it: its scalars are on no CPU then
    "aten._foreach_addcmul.Tensor",
)


def calls() -> dict[str, tuple[Any, Callable[[torch.dtype], tuple[Any, ...]]]]:
    """Each operator on lists, with arguments of all kinds that it takes."""
    found: dict[str, tuple[Any, Callable[[torch.dtype], tuple[Any, ...]]]] = {}
    for op in [op for op in decomposition_table() if str(op).startswith("aten._foreach_")]:

        def args(dtype: torch.dtype, op: Any = op) -> tuple[Any, ...]:
            made = []
            for given in op._schema.arguments:
                kind = str(given.type)
                if kind == "List[Tensor]":
                    made.append(lists(1, dtype)[0])
                elif kind == "Tensor":
                    made.append(torch.rand(len(SHAPES)) if given.name == "scalars" else torch.rand(()).to(dtype))
                elif kind == "List[number]":
                    made.append([0.25 * n + 0.5 for n in range(len(SHAPES))])
                elif not given.kwarg_only and not given.has_default_value():
                    made.append(0.75)
            return tuple(made)

        if str(op) in LEFT_OUT:
            continue
        found[str(op)] = (op, args)
    return found


CALLS = calls()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("name", in_turn(list(CALLS), 4))
def test_lists(name: str, dtype: torch.dtype) -> None:
    op, args = CALLS[name]
    found = wrong_alone(op, args(dtype), {})
    assert not found, found


FUSED = {
    "Adam": (aten._fused_adam.default, 2, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}),
    "AdamW, amsgrad": (aten._fused_adamw.default, 3, {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": True}),
    "SGD": (aten._fused_sgd.default, 1, {"momentum": 0.9, "dampening": 0.1, "nesterov": True, "is_first_step": False}),
    "SGD, first step": (
        aten._fused_sgd.default,
        1,
        {"momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": True},
    ),
    "SGD, plain": (aten._fused_sgd.default, 0, {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "is_first_step": True}),
    "Adagrad": (aten._fused_adagrad.default, 1, {"lr_decay": 0.1, "eps": 1e-8}),
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("scaled", (None, 0.0, 1.0), ids=("", "scaled", "skipped"))
@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str, scaled: float | None) -> None:
    op, states, given = FUSED[name]
    weights, grads, *state = lists(2 + states, torch.float32)
    if "SGD" in name:
        state = state or [[]]
    if "Adam" in name and states == 2:
        state.append([])
    if "Ada" in name:
        state.append([torch.tensor(float(n + 1)) for n in range(len(SHAPES))])
    given = {"lr": 0.01, "weight_decay": 0.1, "maximize": scaled is None, **given}
    if scaled is not None:
        given |= {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(scaled)}
    found = wrong_alone(op, (weights, grads, *state), given)
    assert not found, found


def test_scaled_gradients() -> None:
    """What GradScaler calls; PyTorch's own has no form in float64."""
    grads, found_inf, inverse = lists(1, torch.float32)[0], torch.tensor([0.0]), torch.tensor([0.125])
    unscale = aten._amp_foreach_non_finite_check_and_unscale.default
    for bad in (False, True):
        if bad:
            grads[1][0] = float("inf")
        program = kitsune_mlir.compile(unscale, (grads, found_inf, inverse), target="host", options=HOST)
        got, found = program(grads, found_inf, inverse)
        assert found.item() == bad
        assert all(torch.equal(g, 0.125 * grad) for g, grad in zip(got, grads, strict=True))
    for tracker, inf in ((3, 0.0), (4, 0.0), (2, 1.0)):
        state = torch.tensor([4.0]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([inf])

        def update(*state: Tensor) -> Any:
            return aten._amp_update_scale.default(*state, 2.0, 0.5, 5)

        program = kitsune_mlir.compile(update, state, target="host", options=HOST)
        assert not problems(program(*state), update(*state))
