"""Tensors made of a number, or of nothing: every operator that some version of torch leaves in a decomposed graph."""

import pytest
import torch

import kitsune_mlir

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)


class Fills(torch.nn.Module):
    def __init__(self, dtype: torch.dtype, whole: bool):
        super().__init__()
        self.given = {"dtype": dtype}
        if whole:  # as decompositions write it
            self.given |= {"layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}

    def forward(self, x):
        dtype = self.given["dtype"]
        number = aten.scalar_tensor(1, **self.given)
        strided = aten.empty_strided([3, 7], [1, 3], **self.given)
        another = aten.new_empty_strided(x, [3, 7], [1, 3], **self.given)
        strided.copy_(x * 2)
        another.fill_(1)
        fractional = torch.full((3, 7), -2.5, dtype=dtype)
        return torch.where(x > 0, x.to(dtype), number), strided, another, fractional, torch.zeros(7, dtype=dtype) + number


@pytest.mark.rotated(4)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fills_are_lowered(dtype, whole):
    model, x = Fills(dtype, whole), torch.randn(3, 7)
    for got, want in zip(kitsune_mlir.compile(model, (x,), target="host")(x), model(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_number_is_held_as_its_type_holds_it():
    """2 is True; torch-mlir alone would cut it down to its lowest bit."""

    def twos(x):
        return torch.full((5,), 2, dtype=torch.bool) & x, torch.full((5,), 2), aten.scalar_tensor(True), torch.full((2,), 2.0)

    x = torch.ones(5, dtype=torch.bool)
    for got, want in zip(kitsune_mlir.compile(twos, (x,), target="host")(x), twos(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
