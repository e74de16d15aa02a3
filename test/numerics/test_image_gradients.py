"""Gradients of convolutions and pools, planned for a GPU and run on the host: right, and with channels innermost throughout."""

import pytest
import torch
from torch import Tensor

from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

aten = torch.ops.aten
ONE, WHICH = [1, 1], [True, True, False]


def step(x: Tensor, first: Tensor, second: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """A convolution, a ReLU, a pool, a strided convolution of one tap; and the way back."""
    taps = first.shape[2]
    padding = [taps // 2] * 2
    seen = torch.relu(aten.convolution(x, first, None, ONE, padding, ONE, False, [0, 0], 1))
    pooled, places = aten.max_pool2d_with_indices(seen, [3, 3], [2, 2], ONE)
    made = aten.convolution(pooled, second, None, [2, 2], [0, 0], ONE, False, [0, 0], 1)
    of_pooled, of_second, _ = aten.convolution_backward(
        grad, pooled, second, None, [2, 2], [0, 0], ONE, False, [0, 0], 1, WHICH
    )
    of_seen = aten.max_pool2d_with_indices_backward(of_pooled, seen, [3, 3], [2, 2], ONE, ONE, False, places)
    of_sum = torch.where(seen > 0, of_seen, 0.0)
    of_x, of_first, _ = aten.convolution_backward(of_sum, x, first, None, ONE, padding, ONE, False, [0, 0], 1, WHICH)
    return made, of_x, of_first, of_second


def arguments(batch: int, height: int, width: int, taps: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    def normal(*shape: int) -> Tensor:
        return (0.3 * torch.randn(*shape)).to(dtype).contiguous(memory_format=torch.channels_last)

    counts = [((size - 1) // 2) // 2 + 1 for size in (height, width)]
    return normal(batch, 16, height, width), normal(32, 16, taps, taps), normal(24, 32, 1, 1), normal(batch, 24, *counts)


@pytest.mark.parametrize(
    ("size", "taps", "dtype"),
    in_turn(
        [
            *[((2, 13, 16), taps, dtype) for taps in (1, 3) for dtype in (torch.bfloat16, torch.float32)],
            *[(size, 3, torch.bfloat16) for size in ((1, 7, 7), (7, 8, 15), (3, 16, 9))],
        ],
        3,
    ),
)
def test_against_float64(size: tuple[int, int, int], taps: int, dtype: torch.dtype) -> None:
    model, args = Function(step), arguments(*size, taps, dtype)
    program = planned_for_gpu(model, *args)
    assert problems(program(*args), exact(model, args), model(*args)) == []
    if taps == 1:  # a wider convolution's weight gradient reads copies with the batch innermost
        image = args[0].numel() * dtype.itemsize
        places = image // dtype.itemsize // 2 * 4
        stored = sum(sum(stage["writes"]) for stage in program.summary["stages"])
        # The ReLU and its gradient, twice as wide as the input, and the input's; pooled and its gradient; places; the result.
        assert stored <= 1.2 * (5 * image + image + places + image)


def test_longer_strides_than_kernels_multiply_no_zeros() -> None:
    """Three of four places of the input's gradient are zeros, which no product makes."""

    def gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution_backward(grad, x, weight, None, [2, 2], [0, 0], ONE, False, [0, 0], 1, [True, False, False])[0]

    x, grad = torch.randn(2, 32, 15, 16, dtype=torch.bfloat16), torch.randn(2, 64, 8, 8, dtype=torch.bfloat16)
    args = (grad, x, torch.randn(64, 32, 1, 1, dtype=torch.bfloat16))
    program = planned_for_gpu(Function(gradient), *args)
    assert problems(program(*args), exact(Function(gradient), args), gradient(*args)) == []
    assert sum(stage["operations"] for stage in program.summary["stages"]) == 2 * 2 * 8 * 8 * 64 * 32


@pytest.mark.parametrize(
    ("images", "stride", "dilation", "dtype"),
    in_turn([(1, 1, 1, torch.bfloat16), (3, 2, 1, torch.bfloat16), (2, 1, 2, torch.float32), (4, 2, 2, torch.bfloat16)], 2),
)
def test_few_images_are_multiplied_as_what_each_place_sees(images: int, stride: int, dilation: int, dtype: torch.dtype) -> None:
    given = [stride] * 2, ONE, [dilation] * 2, False, [0, 0], 1

    def gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution_backward(grad, x, weight, None, *given, [False, True, False])[1]

    x, weight = torch.randn(images, 64, 9, 7, dtype=dtype), torch.randn(24, 64, 3, 3, dtype=dtype)
    args = (torch.randn_like(aten.convolution(x.float(), weight.float(), None, *given)).to(dtype), x, weight)
    program = planned_for_gpu(Function(gradient), *args)
    assert problems(program(*args), exact(Function(gradient), args), gradient(*args)) == []
    places = args[0][:, 0].numel()
    assert sum(stage["operations"] for stage in program.summary["stages"]) == 2 * places * weight.numel()
