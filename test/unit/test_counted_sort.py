"""Long vectors of 16-bit floats: their values are counted, their places merged."""

import itertools
import math

import pytest
import torch

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.frontend import counted_sort, orders
from test.emulators.atomics import AtomicBlock
from test.programs.emulated import compiled, emulated, engines
from test.rotation import todays

BF16, F16 = torch.bfloat16, torch.float16


def numbers(count, dtype):
    torch.manual_seed(count)
    x = torch.randn(count).to(dtype)
    x[:8] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-7, -math.nan]).to(dtype)
    return x[torch.randperm(count)]


def equal(found, want):
    assert torch.equal(found.isnan(), want.isnan())
    assert torch.equal(found[~found.isnan()], want[~want.isnan()])


@pytest.mark.rotated(1)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_on_the_host(dtype, descending):
    x = numbers(counted_sort.LEAST + 7, dtype)
    program = kitsune_mlir.compile(Function(lambda x: x.sort(descending=descending).values * 1), (x,), target="host")
    equal(program(x), x.sort(descending=descending).values)


@pytest.mark.parametrize("dtype, descending", todays([*itertools.product([BF16, F16], [False, True])], 1), ids=str)
def test_on_emulated_blocks(monkeypatch, dtype, descending):
    monkeypatch.setattr(counted_sort, "LEAST", 1000)
    monkeypatch.setattr(orders, "WHOLE", 500)
    x = numbers(1001, dtype)
    program = compiled(lambda x: x.sort(descending=descending).values, [x])
    assert "scatter" in engines(program) and "sort" not in engines(program)
    want = x.sort(descending=descending).values
    (found,) = emulated(program, [x], [want], block=AtomicBlock)
    equal(found, want)


def test_places_are_merged(monkeypatch):
    monkeypatch.setattr(counted_sort, "LEAST", 1000)
    monkeypatch.setattr(orders, "WHOLE", 500)
    x = numbers(1001, BF16)
    program = compiled(lambda x: x.sort(stable=True).indices, [x])
    assert "scatter" not in engines(program) and "sort" in engines(program)
    host = kitsune_mlir.compile(Function(lambda x: tuple(x.sort(stable=True))), (x,), target="host")(x)
    want = x.sort(stable=True)
    equal(host[0], want.values)
    assert torch.equal(host[1], want.indices)


@pytest.mark.parametrize(
    "x", [torch.randn(70000), torch.randn(2, 70000).bfloat16(), torch.randn(9000).bfloat16()], ids=["f32", "rows", "few"]
)
def test_others_are_not_counted(x):
    assert not counted_sort.is_counted(x)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_keys_are_in_the_order_of_all_numbers(dtype, descending):
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    known = every[~every.isnan()]
    keys = counted_sort.sort_keys(known, descending)
    assert torch.equal(counted_sort.from_keys(keys, known, descending).view(torch.int16), known.view(torch.int16))
    order = keys.argsort()
    want = known.double().sort(descending=descending).values
    assert torch.equal(known[order].double(), want)
    assert keys.unique().numel() == known.numel() and int(keys.min()) >= 0 and int(keys.max()) < counted_sort.KEYS
