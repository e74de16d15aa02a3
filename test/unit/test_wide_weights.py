"""Weights that a program takes with more columns than the model has: how they are marked, placed and brought up to date."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import Signature
from test.programs.compiled import planned

BF16 = torch.bfloat16


class Joined(nn.Module):
    """A layer of what two tensors of 99 columns together are; `times` it is done."""

    def __init__(self, times: int = 1):
        super().__init__()
        self.layer, self.times = nn.Linear(99, 300, bias=False), times

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.relu(self.layer(torch.cat([a + n, b], 1))) for n in range(self.times))


class Recorder:
    """A runner that keeps what the first argument points to."""

    device = "cpu"

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def run(self, pointers, stream: int) -> None:
        raw = (ctypes.c_int16 * (300 * 104)).from_address(pointers[0])
        self.seen.append(torch.frombuffer(bytearray(raw), dtype=torch.int16).view(BF16).reshape(300, 104))


def compiled(model: nn.Module, target: str = "sm_90a") -> Program:
    args = torch.randn(512, 64).to(BF16), torch.randn(512, 35).to(BF16)
    return planned(model, *args, target=target)


def test_a_models_weight_is_taken_with_wider_rows():
    program = compiled(Joined().to(BF16))
    (weight,) = program.signature.weights
    assert weight.shape == (300, 99) and weight.wide == (300, 104)
    assert Signature.from_dict(program.signature.to_dict()) == program.signature
    assert "tensor<300x104xbf16>" in program.ir("stages") and "tensor<300x99xbf16>" not in program.ir("stages")


def test_a_weight_that_is_read_twice_is_copied_by_a_stage():
    program = compiled(Joined(2).to(BF16))
    assert program.signature.weights[0].wide == () and "tensor<300x99xbf16>" in program.ir("stages")


def test_the_host_takes_weights_as_they_are():
    assert compiled(Joined().to(BF16), "host").signature.weights[0].wide == ()


def test_a_wide_weight_is_placed_with_zeros_and_again_when_it_was_changed():
    model, runner = Joined().to(BF16), Recorder()
    plan = compiled(model)
    program = Program("test", plan.signature, plan.weights, runner, {}, {}, {})
    args = torch.randn(512, 64).to(BF16), torch.randn(512, 35).to(BF16)
    program(*args)
    with torch.no_grad():
        model.layer.weight.mul_(2)
    program(*args)
    for seen, factor in zip(runner.seen, (0.5, 1), strict=True):
        assert torch.equal(seen[:, :99], model.layer.weight.detach() * factor) and not seen[:, 99:].any()
