"""Slices, concatenations and rolls along all that is wide, permutations with short dimensions: right, and on many blocks."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu
from test.programs.emulated import compiled, emulated
from test.rotation import in_turn

MATRIX, LONG = (129, 1001), (100_003,)
CASES: dict[str, tuple[Callable, tuple[tuple[int, ...], ...]]] = {
    "head of a vector": (lambda x: x[:77_777] * 2, (LONG,)),
    "tail of a vector": (lambda x: x[7:].clone(), (LONG,)),
    "head of what is made": (lambda x: (x.sort(0)[0] * 2)[:100_000].clone(), (LONG,)),
    "every third": (lambda x: x[2::3] + 1, (LONG,)),
    "differences": (lambda x: x[1:] - x[:-1], (LONG,)),
    "slice of a slice": (lambda x: x[5:][11:-3].exp(), (LONG,)),
    "inside of a matrix": (lambda x: x[1:-1, 3:-5].clone(), (MATRIX,)),
    "few rows": (lambda x: x[:, 1:-1] + x[:, 2:], ((3, 40_000),)),
    "checkered": (lambda x: x[::2, 1::2].clone(), ((400, 301),)),
    "vectors": (lambda x, y, z: torch.cat([x, y, z]), (LONG, (7,), (65_536,))),
    "made vectors": (lambda x, y: torch.cat([x.relu(), y * y]), (LONG, (9_001,))),
    "with a constant": (lambda x: torch.cat([x, torch.ones(129, 1, dtype=x.dtype), x.sum(1, keepdim=True)], 1), (MATRIX,)),
    "rows joined": (lambda x, y: torch.cat([x, y]), ((200, 128), (61, 128))),
    "stacked": (lambda x, y: torch.stack([x, y]), ((129, 101), (129, 101))),
    "channels joined": (lambda *x: torch.cat(x, 1), ((3, 4, 40, 41), (3, 2, 40, 41), (3, 1, 40, 41))),
    "rows written": (lambda x, y: torch.slice_scatter(x, y, 0, 3, 3 + len(y)), ((200, 128), (61, 128))),
    "parts swapped": (lambda x: torch.cat([x[60_000:], x[:60_000]]), (LONG,)),
    "rolled": (lambda x: x.roll(1001), (MATRIX,)),
    "rolled vector": (lambda x: x.roll(-5) - x, (LONG,)),
    "shuffled pixels": (lambda x: F.pixel_shuffle(x, 2), ((2, 8, 33, 34),)),
    "apart pixels": (lambda x: F.pixel_unshuffle(x, 2), ((2, 3, 66, 34),)),
    "repeated elements": (lambda x: x.repeat_interleave(2, 1), (MATRIX,)),
    "frames": (lambda x: x.unfold(-1, 40, 16).clone(), ((3, 2001),)),
    "rows of a weight": (lambda x, w: x @ w[257:769].t(), ((1000, 64), (1024, 64))),
    "rows and columns": (lambda x, w: (x[7:, 3:] * 2) @ w[129:458, 3:].t() + w[400:729, 1], ((777, 128), (800, 128))),
    "middle rows": (lambda x, y: x[1000:3000] + y, ((4000, 40), (2000, 40))),
    "overlapping windows": (lambda x: x.unfold(1, 5, 1).clone(), ((9, 601),)),
}


def inputs(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(len(shapes))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


@pytest.mark.parametrize("name", in_turn([*CASES], 4))
def test_planned_for_a_gpu(name: str) -> None:
    function, shapes = CASES[name]
    args = inputs(shapes, torch.float32)
    found = planned_for_gpu(Function(function), *args)(*args)
    torch.testing.assert_close(found, function(*args), rtol=1e-5, atol=1e-5)


KERNELS = ["every third", "inside of a matrix", "rows joined", "rows written", "parts swapped", "shuffled pixels", "frames"]


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    """On emulated blocks, which check every access."""
    function, shapes = CASES[name]
    args = inputs(shapes, torch.bfloat16)
    wanted = function(*args)
    (found,) = emulated(compiled(function, list(args)), list(args), [wanted], 5)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(("name", "dtype"), in_turn([*itertools.product(CASES, [torch.bfloat16, torch.float32])], 5), ids=str)
def test_no_stage_is_one_block(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    with unassembled():
        program = kitsune_mlir.compile(Function(function), inputs(shapes, dtype), target="h200", options={"cache": False})
    assert not program.summary["slow"]
    lines = str(program.explain()).splitlines()
    assert not [line for line in lines if "one block of work" in line]
    assert any("shared by" in line for line in lines) == (name == "head of what is made")  # by all blocks together


@pytest.mark.parametrize(
    "move",
    [
        lambda x, y: x[5:].clone(),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.roll(3, 0),
        lambda x, y: torch.slice_scatter(x, y, 0, 7, 7 + y.shape[0]),
    ],
)
def test_movements_along_rows_have_vectors_of_columns(move) -> None:
    """What cannot be cut along rows is cut into columns of many bytes."""
    x, y = torch.randn(3000, 1024), torch.randn(100, 1024)
    with unassembled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = kitsune_mlir.compile(Function(move), (x, y), target="h200")
    for engine in program.summary["engines"]:
        assert engine["engine"] == "simt" and engine["parameters"]["width"] == 4 and engine["tiles"] >= 64
