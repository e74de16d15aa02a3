"""The scatter engine: which reductions it uses, and what it leaves to others."""

import re

import pytest
import torch

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.contraction.row_addition import widest
from test.emulators.atomics import AtomicBlock
from test.programs import emulated
from test.programs.scatters import FLOATS, forms
from test.rotation import in_turn
from test.unit.test_scatter_ordered import Sum


def compiled(columns: int, dtype: torch.dtype, updates: int = 1000):
    args = (torch.randn(updates, columns).to(dtype), torch.randint(0, 50, (updates,)))
    return kitsune_mlir.compile(Sum(50, columns, dtype), args, target="sm_90a")


@pytest.mark.parametrize(
    "columns, dtype, reduction",
    [
        (128, torch.bfloat16, "v4.bf16x2"),
        (4, torch.bfloat16, "v2.bf16x2"),
        (6, torch.float16, "f16x2"),
        (128, torch.float32, "v4.f32"),
        (7, torch.float32, "f32"),
    ],
)
def test_the_widest_reduction_that_fits(columns: int, dtype: torch.dtype, reduction: str) -> None:
    program = compiled(columns, dtype)
    engines = {e["task"]: e["engine"] for e in program.summary["engines"]}
    assert engines["scatter_0"] == "scatter"
    assert {
        r.split(".add.")[-1].removeprefix("noftz.") for r in re.findall(r"red\.relaxed\.[a-z0-9._]*", program.ir("ptx"))
    } == {reduction}
    assert program.summary["kernels"][0]["spill_store_bytes"] == 0


def test_odd_rows_are_added_by_vectors_of_f32() -> None:
    """Vectors that are aligned in the result; those at a row's ends are added one by one."""
    for dtype in (torch.bfloat16, torch.float32):
        text = compiled(63, dtype).ir("ptx")
        assert "red.relaxed.gpu.global.add.v4.f32" in text and "red.relaxed.gpu.global.add.f32" in text
        assert "bf16" not in "".join(re.findall(r"red\.\S*", text))


def test_offsets_limit_the_width() -> None:
    assert widest("bf16", 64, [0, 256]) == 8
    assert widest("bf16", 64, [8]) == 4
    assert widest("f32", 6, [0]) == 2
    assert widest("bf16", 3, [0]) is None
    assert widest("i1", 4, [0]) is None


OTHER_TYPES = (torch.bfloat16, torch.float16, torch.int64, torch.float64)
KINDS = ("amax alone of rows", "amin with self", "prod with self of rows", "accumulate", "index_put of columns", "index_copy")


@pytest.mark.rotated(6)
@pytest.mark.parametrize(
    "columns, dtype, name",
    [
        *[(4, torch.float32, name) for name in KINDS],
        *[(columns, torch.float32, "accumulate") for columns in (8, 9, 63)],
        (11, torch.bfloat16, "mean alone of rows"),
        (5, torch.float32, "expanded slice"),
        (8, torch.bfloat16, "rows by a slice"),
        *in_turn([(c, t, name) for name in KINDS for c in (1, 3, 8) for t in OTHER_TYPES], 6),
    ],
    ids=str,
)
def test_kernels_of_every_kind_are_right(columns: int, dtype: torch.dtype, name: str) -> None:
    torch.manual_seed(columns)
    function, args = forms(9, 40, columns, dtype)[name]
    want = function(*(a.double() if a.is_floating_point() else a for a in args)).to(dtype)
    program = emulated.compiled(function, args)
    assert "generic" not in emulated.engines(program)
    # a scatter engine's own stage, or put by the map that makes the rows
    assert "scatter" in emulated.engines(program) or "into = " in program.ir("stages")
    (found,) = emulated.emulated(program, args, [want], block=AtomicBlock)
    limit = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(dtype, 1e-12)
    torch.testing.assert_close(found.double(), want.double(), rtol=limit, atol=limit * float(want.double().abs().max()))


MESSAGES = [name for name in forms(3, 2, 4, torch.float32) if "messages" in name or name == "weights"]


@pytest.mark.parametrize(
    "columns, dtype, name",
    [
        (8, torch.bfloat16, "messages of both ends"),
        (4, torch.float32, "largest messages"),
        (1, torch.float32, "mean messages"),
        (3, torch.float32, "weights"),
        *in_turn([(c, t, name) for name in MESSAGES for c in (1, 3, 8, 11) for t in FLOATS], 3),
    ],
    ids=str,
)
def test_rows_are_put_where_they_are_made(columns: int, dtype: torch.dtype, name: str) -> None:
    """Gathered rows, and what maps make of them, go to their places from registers."""
    torch.manual_seed(columns)
    function, args = forms(9, 40, columns, dtype)[name]
    want = function(*(a.double() if a.is_floating_point() else a for a in args)).to(dtype)
    program = emulated.compiled(function, args)
    assert "generic" not in emulated.engines(program)
    (found,) = emulated.emulated(program, args, [want], block=AtomicBlock)
    limit = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}.get(dtype, 1e-12)
    torch.testing.assert_close(found.double(), want.double(), rtol=limit, atol=limit * float(want.double().abs().max()))


def test_messages_are_never_in_memory() -> None:
    """Rows of nodes are read by one index and added by another; those that no vector divides are added from memory."""
    for columns, dtype, reduction, engines in (
        (64, torch.bfloat16, "red.relaxed.gpu.global.add.noftz.v4.bf16x2", {"simt"}),
        (12, torch.float32, "red.relaxed.gpu.global.add.v4.f32", {"simt"}),
        (63, torch.float32, "red.relaxed.gpu.global.add.v4.f32", {"simt", "scatter"}),
    ):
        function, args = forms(500, 3000, columns, dtype)["messages"]
        program = kitsune_mlir.compile(Function(function), args, target="sm_90a")
        assert {entry["engine"] for entry in program.summary["engines"]} == engines
        assert reduction in program.ir("ptx")
        arena = program.summary["arena_bytes"]
        assert (arena == 0) == (engines == {"simt"}), arena
        assert all(kernel["spill_store_bytes"] == 0 for kernel in program.summary["kernels"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nothing_takes_the_place_of_nan(reduce: str, dtype: torch.dtype) -> None:
    """NaN of either sign stays, whether it was there or came; zeros and infinities are ordered as in torch."""
    torch.manual_seed(3)
    special = torch.tensor([float("nan"), -float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -1.5])
    special[1] = torch.tensor(-4194304, dtype=torch.int32).view(torch.float32)  # NaN with a sign
    start = special.repeat(8)[:, None].to(dtype).repeat(1, 2).contiguous()
    updates = special.repeat_interleave(8)[:, None].to(dtype).repeat(1, 2).contiguous()
    indices = torch.randperm(64)

    def function(x, i, y):
        return x.scatter_reduce(0, i[:, None].expand(-1, 2), y, reduce)

    args = (start, indices, updates)
    want = function(*args)
    (found,) = emulated.emulated(emulated.compiled(function, args), args, [want], block=AtomicBlock)
    assert torch.equal(found.isnan(), want.isnan())
    torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)


def test_the_largest_is_kept_without_reading_back() -> None:
    """Integers and floats by `red`, 16-bit floats as f32."""
    for columns, dtype, wanted in (
        (4, torch.int64, "red.relaxed.gpu.global.max.s64"),
        (4, torch.float32, "red.relaxed.gpu.global.min.u32"),
        (4, torch.bfloat16, "red.relaxed.gpu.global.max.s32"),
        (3, torch.float16, "red.relaxed.gpu.global.max.s32"),
    ):
        function, args = forms(50, 300, columns, dtype)["amax with self of rows"]
        program = kitsune_mlir.compile(Function(function), args, target="sm_90a")
        assert wanted in program.ir("ptx")
        assert all(kernel["spill_store_bytes"] == 0 for kernel in program.summary["kernels"])


@pytest.mark.parametrize(
    "updates, columns, reduction", [(5, 38, "noftz.bf16x2"), (30, 36, "noftz.bf16x2"), (5, 37, "noftz.bf16"), (50, 37, "f32")]
)
def test_few_single_elements_of_16_bits_are_added_as_they_are(updates: int, columns: int, reduction: str) -> None:
    """As halves of words, where the result is whole words. More of them than there are in the result are added in f32."""
    torch.manual_seed(updates)
    x, y = torch.randn(3, columns).bfloat16(), torch.randn(3, updates).bfloat16()
    x[:, :4] = -0.0  # nothing is added to its sign
    index = torch.randint(4, columns, (3, updates))

    def function(x, index, y):
        return x.scatter_add(1, index, y)

    program = emulated.compiled(function, [x, index, y])
    assert set(re.findall(r"red\.relaxed\.gpu\.global\.add\.(\S+)", program.ir("ptx"))) - {"u32"} == {reduction}
    (found,) = emulated.emulated(program, [x, index, y], [x], block=AtomicBlock)
    exact = function(x.double(), index, y.double())
    own = (function(x, index, y).double() - exact).norm()
    assert (found.double() - exact).norm() <= 2 * own
    assert torch.signbit(found[:, :4]).all() or reduction == "f32"
