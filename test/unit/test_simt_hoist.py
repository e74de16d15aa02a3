"""What a block of the simt engine makes once for all rows, and which divisions and sums of pairs it makes otherwise."""

import pytest
import torch

from kitsune_mlir.codegen.gpu.engines.simt.schedule import levels_of
from kitsune_mlir.codegen.gpu.interface import memory_tiles as tiles_simt
from test.gpu.simt_cases import Case, rows
from test.gpu.simt_programs import compile_case
from test.unit.test_simt_engine import check
from test.unit.test_simt_math import ptx_of


@pytest.fixture
def tiles_of_eight_rows(monkeypatch):
    """As with many rows; the emulator is to run few."""
    monkeypatch.setattr(tiles_simt, "tile_of", lambda figures, target: [8])


def kept(run, *inputs) -> int:
    """How many values a block keeps for all rows."""
    ((_, emitted),) = compile_case(Case(run, inputs))
    return emitted.decisions[0].plan.parameters.get("kept", 0)


def gated(x, b):
    return torch.softmax(x * torch.sigmoid(b), -1)


ROW = ("bf16", (256,))


def test_a_function_of_a_vector_is_made_once_a_block():
    x = rows("bf16", 4096, 256)
    assert kept(gated, x, ROW) == 1
    text = ptx_of(gated, x, ROW)
    points = text.count("rcp.approx.ftz")
    assert points < text.count("ex2.approx.ftz") / 2  # a sigmoid for every point of every row would be as many


@pytest.mark.parametrize(
    "run, inputs",
    [
        (lambda x, b: torch.softmax(x * b + 1, -1), (rows("bf16", 4096, 256), ROW)),  # cheap
        (
            lambda x, y: torch.softmax(x * torch.sigmoid(y), -1),
            (rows("bf16", 4096, 256), rows("bf16", 4096, 256)),
        ),  # of the row
        (gated, (rows("bf16", 256, 256), ROW)),  # few rows
        (gated, (rows("bf16", 4096, 32768), ("bf16", (32768,)))),  # too much to keep
        (lambda x, b: torch.softmax(x * torch.sigmoid(b), 0), (rows("bf16", 256, 64), ("bf16", (64,)))),  # rows are columns
    ],
    ids=["cheap", "rows", "few", "long", "columns"],
)
def test_nothing_is_kept_where_it_does_not_pay(run, inputs):
    assert kept(run, *inputs) == 0


@pytest.mark.rotated(3)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("columns", [129, 256, 1000])
def test_kept_values_are_right_and_there_when_they_are_read(dtype, columns, tiles_of_eight_rows):
    """The emulator finds reads before the barrier; 129 columns go one by one, 37 rows take a ragged last tile."""

    def run(x, b, c):
        h = torch.layer_norm(x, (columns,)) * torch.sigmoid(b) + torch.tanh(c)
        return torch.softmax(h, -1) + h

    emitted = check(Case(run, (rows(dtype, 37, columns), (dtype, (columns,)), (dtype, (columns,)))))
    assert emitted.decisions[0].plan.parameters["kept"] == 2


def weighted(x, y):
    return (torch.softmax(x, -1) * y).sum(-1, keepdim=True) + y


def test_a_sum_weighted_by_a_softmax_is_divided_once_a_row():
    """The weighted sum is then made beside the sum of the exponentials."""
    shape = rows("bf16", 4096, 1024)
    ((_, emitted),) = compile_case(Case(weighted, (shape, shape)))
    (schedule,) = emitted.decisions[0].plan.private.schedules
    levels = levels_of(emitted.decisions[0].plan.private.graph, schedule.space)
    assert [len(level) for level in levels] == [1, 2]
    check(Case(weighted, (rows("bf16", 37, 1024),) * 2))


@pytest.mark.parametrize("columns", [4, 200])
def test_weighted_sums_of_short_rows_and_over_columns(columns):
    check(Case(weighted, (rows("bf16", 37, columns),) * 2))
    check(Case(lambda x, y: (torch.softmax(x, 0) * y).sum(0), (rows("bf16", columns, 40),) * 2))


def test_other_quotients_stay_as_they_are():
    """Numbers that are no weights could overflow, and f32 is divided as the program says."""
    shape = rows("bf16", 4096, 1024)
    ((_, emitted),) = compile_case(Case(lambda x, y: (x / x.sum(-1, keepdim=True) * y).sum(-1), (shape, shape)))
    assert not emitted.decisions[0].plan.private.graph.left_out
    shape = rows("f32", 4096, 1024)
    ((_, emitted),) = compile_case(Case(weighted, (shape, shape)))
    assert not emitted.decisions[0].plan.private.graph.left_out


def test_sums_of_bf16_that_are_rounded_are_made_in_pairs():
    def run(x, y):
        return torch.tanh(x + y)

    pair = rows("bf16", 4096, 256)
    assert "add.rn.bf16x2" in ptx_of(run, pair, pair) or "add.bf16x2" in ptx_of(run, pair, pair)
    assert "bf16x2" not in ptx_of(run, *[rows("f32", 4096, 256)] * 2)
    few = rows("bf16", 7, 1000)
    check(Case(run, (few, few)))
    check(Case(lambda x, y: torch.exp(x - y), (few, few)))


def test_a_normalization_and_a_gate_are_one_fma_an_element():
    """(x w + b) s is x (w s) + b s, with both coefficients kept in f32; without the sigmoid, there is nothing to gain."""

    def run(x, w, b, s):
        return torch.softmax(torch.layer_norm(x, (256,), w, b) * torch.sigmoid(s), -1)

    x = rows("bf16", 4096, 256)
    assert kept(run, x, ROW, ROW, ROW) == 2
    assert kept(lambda x, w, b: torch.softmax(torch.layer_norm(x, (256,), w, b), -1), x, ROW, ROW) == 0


@pytest.mark.parametrize("columns", [256, 1000, 132])
def test_coefficients_are_right_in_vectors_of_any_width(columns, tiles_of_eight_rows):
    def run(x, w, b, s):
        return torch.softmax(torch.layer_norm(x, (columns,), w, b) * torch.sigmoid(s) + s, -1)

    emitted = check(Case(run, (rows("bf16", 37, columns), *[("bf16", (columns,))] * 3)))
    assert emitted.decisions[0].plan.parameters["kept"] == 2


def test_rounding_that_shows_is_not_left_out():
    def run(x, w, b, s):
        return torch.softmax(torch.floor(torch.layer_norm(x, (256,), w, b) * torch.sigmoid(s)), -1)

    assert kept(run, rows("bf16", 4096, 256), ROW, ROW, ROW) == 1
