"""Convolutions planned for the GPU, run on the host: channels-last forms, halos, tiles and memory orders are right."""

import pytest
import torch

from test.gpu.conv_programs import CASES, Case
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

SMALL = [name for name, case in CASES.items() if case.batch * case.height * case.width * case.channels < 40_000]


def on_host(case: Case):
    """A program with the GPU's plan and the host's code."""
    model, inputs = case.model(), case.inputs()
    return model, planned_for_gpu(model, *inputs)


@pytest.mark.parametrize("name", in_turn(SMALL, 6))
def test_against_float64(name: str) -> None:
    case = CASES[name]
    model, program = on_host(case)
    inputs = case.inputs()
    got = program(*inputs)
    assert problems(got, exact(model, inputs)) == []
    assert got.dim() != 4 or not case.last or got.is_contiguous(memory_format=torch.channels_last)


def test_weights_changed_in_place_are_seen() -> None:
    """The program has its own copy of a weight in another order; a change of the model's reaches it at the next call."""
    case = Case(2, 16, 8, 8, 32, last=False)
    model, program = on_host(case)
    assert program.signature.weights[0].order == (0, 2, 3, 1)
    inputs = case.inputs()
    before = program(*inputs)
    with torch.no_grad():
        model.convolution.weight.mul_(2)
    assert problems(program(*inputs), exact(model, inputs)) == []
    assert not torch.allclose(before, program(*inputs))


def test_channels_last_memory_is_used_where_it_is() -> None:
    case = Case(2, 16, 8, 8, 32)
    model, program = on_host(case)
    assert program._weight_tensors[0].data_ptr() == model.convolution.weight.data_ptr()
    assert program.signature.inputs[0].order == (0, 2, 3, 1) and program.signature.result_orders == {0: (0, 2, 3, 1)}
    usual = tuple(x.contiguous() for x in case.inputs())
    assert problems(program(*usual), exact(model, usual)) == []  # another order is copied


class Joined(torch.nn.Module):
    """Convolutions with a concatenation of channels, and one of rows, between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.Conv2d(32, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.cat([torch.cat([y, y.relu()], 1), torch.cat([y.sigmoid(), y], 1)], 2))


def test_images_are_joined_with_channels_innermost() -> None:
    model, inputs = Joined().bfloat16().eval(), (torch.randn(2, 8, 9, 7).bfloat16(),)
    program = planned_for_gpu(model, *inputs)
    assert problems(program(*inputs), exact(model, inputs)) == []
    assert [2, 32, 18, 7] not in [stage["sizes"] for stage in program.summary["stages"]]
