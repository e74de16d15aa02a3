"""The sort engine: which sorts it takes, and its kernels on emulated blocks."""

import itertools

import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.sort import radix_layout
from kitsune_mlir.codegen.gpu.engines.sort.radix_layout import Layout, layout_of
from kitsune_mlir.dialects import new_context
from test.emulators.warp import Warps
from test.programs.emulated import compiled, emulated, engines
from test.rotation import in_turn

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


def check(function, x, blocks=2, engine="sort", **options):
    without = {"kitsune-partition-streams": "without=radix_sort"} if engine == "sort" else {}
    program = compiled(function, [x], passes=without)
    assert engines(program) == [engine]
    like = function(x)
    like = list(like) if isinstance(like, tuple) else [like]
    for found, want in zip(emulated(program, [x], like, blocks, Warps, **options), like, strict=True):
        assert found.dtype == want.dtype
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        if want.dtype.is_floating_point:
            assert torch.equal(torch.signbit(found), torch.signbit(want))


@pytest.mark.rotated(5)
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
    args = torch.randn(80, 1500), torch.randn(80, 1500)
    program = compiled(lambda x, y: (*x.sort(dim=-1, stable=True), *y.sort(dim=-1, stable=True)), args)
    assert sorted(engines(program)) == ["simt", "sort", "sort"]


def test_along_another_dimension():
    program = compiled(lambda x: x.sort(0)[0], [torch.randn(40, 33)])
    assert "generic" not in engines(program)


def test_places_alone_and_what_is_made_of_them():
    check(lambda x: x.argsort(dim=1, stable=True) * 2 + 1, numbers((4, 100), F32))
    check(lambda x: (x * 2 + 1).sort(dim=1, stable=True)[0] * 0.5, torch.randn(4, 100))


WIDE = [((2, 5000), False), ((3, 1100), True), ((1, 4096), False)]


@pytest.mark.parametrize("lines, dtype", in_turn([*itertools.product(WIDE, [F32, I64])], 1))
def test_more_lanes_than_threads(lines, dtype):
    shape, descending = lines
    check(lambda x: tuple(x.sort(dim=1, descending=descending, stable=True)), numbers(shape, dtype), threads=384)


def test_beside_an_engine_whose_registers_leave_a_kernel_few_threads():
    program = compiled(lambda x, y, w: (x.sort(dim=1)[0], y @ w), [torch.randn(80, 1500), *torch.randn(2, 64, 64).bfloat16()])
    assert sorted(engines(program)) == ["mma", "sort"]


LONG = [((2500,), False), ((2, 2051), True)]


@pytest.mark.parametrize("lines, dtype", in_turn([*itertools.product(LONG, [F32, BF16, I64, F64, I32, torch.uint8])], 2))
def test_rows_that_blocks_share(lines, dtype):
    shape, descending = lines
    x = numbers(shape, dtype) if dtype != torch.uint8 else numbers(shape, I32).abs().to(dtype)
    check(lambda x: tuple(x.sort(dim=-1, descending=descending, stable=True)), x, 3, "radix_sort", threads=256)


def test_parts_in_several_chunks_and_bytes_that_are_the_same_everywhere(monkeypatch):
    """Each of two blocks has more than it sorts at once; of keys of 64 bits two bytes differ."""
    monkeypatch.setattr(radix_layout, "CHUNK", 512)
    x = torch.randint(0, 40_000, (2501,)) * 256
    check(lambda x: x.argsort(dim=-1, stable=True), x, 2, "radix_sort")


def test_equal_numbers():
    check(lambda x: tuple(x.sort(dim=-1, stable=True)), torch.full((2049,), 0.5), 2, "radix_sort", threads=256)


def test_how_a_row_is_shared():
    f32 = ir.F32Type.get
    with new_context():
        one, some = layout_of(1 << 20, 1, f32(), 132, 1024), layout_of(20_000, 7, f32(), 132, 1024)
        assert isinstance(one, Layout) and isinstance(some, Layout)
        assert (one.pieces, one.part, one.passes) == (132, 7968, 4) and 2 <= some.pieces <= 18
        assert one.shared_bytes < 120_000 and one.part * one.pieces >= 1 << 20
        assert isinstance(layout_of(5000, 500, f32(), 132, 1024), str) and isinstance(layout_of(1000, 1, f32(), 132, 1024), str)
        assert isinstance(layout_of(9000, 500, f32(), 132, 1024), Layout)  # no block sorts that alone
