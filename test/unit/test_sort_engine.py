"""The sort engine: which sorts it takes, and its kernels on emulated blocks."""

import itertools

import pytest
import torch

from test.programs.emulated import compiled, emulated, engines
from test.rotation import todays

BF16, F32, F64, I64, I32 = torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32


def numbers(shape, dtype):
    """Few different ones, so that some are equal."""
    torch.manual_seed(0)
    found = torch.randint(-40, 40, shape)
    if not dtype.is_floating_point:
        return found.to(dtype)
    found = found.to(F64) / 8
    flat = found.view(-1)
    flat[::29], flat[::31], flat[::37], flat[::41] = float("nan"), float("inf"), float("-inf"), -0.0
    return found.to(dtype)


def check(function, x, blocks=2, **options):
    program = compiled(function, [x])
    assert engines(program) == ["sort"]
    like = function(x)
    like = list(like) if isinstance(like, tuple) else [like]
    for found, want in zip(emulated(program, [x], like, blocks, **options), like, strict=True):
        assert found.dtype == want.dtype
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        if want.dtype.is_floating_point:
            assert torch.equal(torch.signbit(found), torch.signbit(want))


@pytest.mark.rotated(7)
@pytest.mark.parametrize("dtype", [F32, BF16, I64, F64, I32])
@pytest.mark.parametrize("shape, descending", [((5, 13), False), ((300, 10), True), ((3, 129), False), ((2, 300), True)])
def test_values_and_places(shape, descending, dtype):
    check(lambda x: tuple(x.sort(dim=1, descending=descending, stable=True)), numbers(shape, dtype))


@pytest.mark.parametrize("length", [2, 3, 128, 1000, 1030])
def test_a_row(length):
    check(lambda x: tuple(x.sort(dim=0, stable=True)), numbers((length,), F32), 1)


def test_the_longest_rows():
    check(lambda x: tuple(x.sort(dim=1, stable=True)), torch.randn(2, 5000), 2)


def test_several_sorts():
    """Their places are counted once, in a stage of its own: the sort's engine does not store what it does not make."""
    args = torch.randn(2, 5000), torch.randn(2, 5000)
    program = compiled(lambda x, y: (*x.sort(dim=-1, stable=True), *y.sort(dim=-1, stable=True)), args)
    assert sorted(engines(program)) == ["simt", "sort", "sort"]


def test_along_another_dimension():
    program = compiled(lambda x: x.sort(0)[0], [torch.randn(40, 33)])
    assert "generic" not in engines(program)


def test_places_alone_and_what_is_made_of_them():
    check(lambda x: x.argsort(dim=1, stable=True) * 2 + 1, numbers((4, 100), F32))
    check(lambda x: (x * 2 + 1).sort(dim=1, stable=True)[0] * 0.5, torch.randn(4, 100))


WIDE = [((2, 5000), False), ((3, 1100), True), ((1, 4096), False)]


@pytest.mark.parametrize("lines, dtype", todays([*itertools.product(WIDE, [F32, I64])], 2))
def test_more_lanes_than_threads(lines, dtype):
    shape, descending = lines
    check(lambda x: tuple(x.sort(dim=1, descending=descending, stable=True)), numbers(shape, dtype), threads=384)


def test_beside_an_engine_whose_registers_leave_a_kernel_few_threads():
    program = compiled(lambda x, y, w: (x.sort(dim=1)[0], y @ w), [torch.randn(8, 4096), *torch.randn(2, 64, 64).bfloat16()])
    assert sorted(engines(program)) == ["mma", "sort"]
