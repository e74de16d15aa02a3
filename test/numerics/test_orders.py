"""Sorts, searches and scans of short, odd and long rows on the host, beside torch's."""

import pytest
import torch

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.frontend import orders
from test.rotation import in_turn

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64


def numbers(*shape, dtype=F32):
    """With equal ones, infinities, zeros of both signs, and a NaN in every second row."""
    found = torch.randint(-50, 50, shape)
    if not dtype.is_floating_point:
        return found.to(dtype)
    found = found.to(F32) / 4
    flat = found.view(-1)
    flat[::97], flat[::89], flat[::83] = float("inf"), float("-inf"), -0.0
    found[..., ::2, shape[-1] // 2] = float("nan")
    return found.to(dtype)


def check(function, *args, **limits):
    found = kitsune_mlir.compile(Function(function), args, target="host")(*args)
    want = function(*args)
    for one, reference in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, want)), strict=True):
        assert one.dtype == reference.dtype and one.shape == reference.shape
        torch.testing.assert_close(one, reference, equal_nan=True, **(limits or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("length", in_turn([1, 7, 29, 33, 500, 1025], 2))
def test_sorts(length):
    def model(x, y, z):
        up, down = (torch.sort(t, dim=1, descending=d, stable=True) for t, d in ((x, False), (z, True)))
        return *up, *down, *torch.sort(y, dim=1, stable=True), *torch.sort(x, dim=1, descending=True, stable=True)

    check(model, *(numbers(2, length, dtype=dtype) for dtype in (F32, I64, BF16)))


def test_a_sort_along_the_first_dimension_of_a_slice():
    check(lambda x: tuple(torch.sort(x[:, 1], dim=0, stable=True)), numbers(70, 2, 3))


@pytest.mark.rotated(2)
@pytest.mark.parametrize("k, length", [(1, 1025), (9, 100), (13, 700), (8, 1100)])
def test_topk(monkeypatch, k, length):
    monkeypatch.setattr(orders, "PART", 256)
    x = torch.randn(2, length)  # torch does not say which of equal elements it takes
    x[0, 5] = float("nan")
    check(lambda x: (*x.topk(k, 1), *x.topk(k, 1, False)), x)


@pytest.mark.rotated(2)
@pytest.mark.parametrize("shape, dim", [((5, 31), 1), ((31, 5), 0), ((2, 3, 64), -1), ((1,), 0)])
def test_median_kthvalue_and_mode(shape, dim):
    x = torch.rand(shape)
    whole = torch.randint(0, 9, shape)

    def model(x, whole):
        value, place = whole.mode(dim, True)
        third = x.kthvalue(min(3, x.shape[dim]), dim, True)
        return *x.median(dim), *third, x.median(), x.nanmedian(), value, whole.gather(dim, place)

    check(model, x, whole)


def test_medians_of_numbers_beside_nan():
    x = numbers(6, 33)
    check(lambda x: (x.median(1)[0], x.nanmedian(1)[0]), x)


@pytest.mark.rotated(3)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 7, 1024])
def test_searches(count, right):
    bounds = torch.randint(-50, 50, (count,)).float().sort()[0]
    values = torch.cat([bounds, bounds + 0.5, torch.tensor([float("nan"), float("inf"), float("-inf"), -1e9])])
    rows, others = torch.stack([bounds, bounds * 2]), torch.randn(2, 13) * 50

    def model(b, v, rows, others):
        many = torch.searchsorted(rows, others, right=right, out_int32=True)
        shaped = torch.bucketize(v.reshape(-1, 2), b, right=right)
        return torch.searchsorted(b, v, right=right), shaped, many, torch.searchsorted(b, 3.0, right=right)

    check(model, bounds, values, rows, others)


@pytest.mark.rotated(3)
@pytest.mark.parametrize("length", [1, 5, 128, 129, 4100])
def test_running_extremes(length):
    check(lambda x, y: (*x.cummax(1), *x.cummin(1), *y.cummax(1)), numbers(2, length), numbers(2, length, dtype=I64))


@pytest.mark.parametrize("shape, dim", [((3, 7), 1), ((65, 3), 0), ((2, 1000, 3), 1), ((4100,), 0)])
def test_running_logsumexp(shape, dim):
    x = 30 * torch.randn(shape)
    flat = x.view(-1)
    flat[::71] = float("-inf")
    flat[:1] = float("-inf")
    want = x.double().logcumsumexp(dim).float()
    found = kitsune_mlir.compile(Function(lambda x: x.logcumsumexp(dim)), (x,), target="host")(x)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-4)
    flat[len(flat) // 2] = float("inf")
    check(lambda x: x.logcumsumexp(dim), x, rtol=1e-5, atol=1e-4)
