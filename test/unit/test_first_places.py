"""Places of maxima in windows are the least of the places where they are: no engine for anything is needed."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir
from bench.sweeps import Function
from test.programs.emulated import compiled, emulated, engines
from test.rotation import in_turn

CASES = {
    "apart": (lambda x: F.max_pool2d(x, 2, return_indices=True), (2, 3, 12, 10)),
    "overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (1, 4, 9, 7)),
    "dilated": (lambda x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True), (1, 1, 7, 129)),
    "one element": (lambda x: F.max_pool2d(x, 1, return_indices=True), (1, 1, 1, 1)),
    "volumes": (lambda x: F.max_pool3d(x, 2, return_indices=True), (2, 1, 4, 6, 8)),
    "one volume": (lambda x: F.max_pool3d(x, 3, return_indices=True), (2, 3, 7, 9)),
}


@pytest.mark.parametrize("name, dtype", in_turn([*itertools.product(CASES, [torch.float32, torch.bfloat16])], 5), ids=str)
def test_places_of_equal_maxima_are_the_first(name, dtype):
    function, shape = CASES[name]
    torch.manual_seed(len(name))
    x = torch.randint(-2, 3, shape).to(dtype)  # many are equal
    values, places = function(x)
    host = kitsune_mlir.compile(Function(function), (x,), target="host")(x)
    assert torch.equal(host[0], values) and torch.equal(host[1], places)
    if "volume" in name:
        return  # they arrive in another form, which is left as it is
    program = compiled(function, [x])
    assert "generic" not in engines(program)
    found = emulated(program, [x], [values, places])
    assert torch.equal(found[0], values) and torch.equal(found[1], places)


def test_what_chooses_otherwise_stays():
    """A number that is not -1 at first, and one that any element may replace."""
    x = torch.randn(4, 5)
    text = kitsune_mlir.compile(Function(lambda x: x.argmax(1)), (x,), target="host").ir("linalg")
    assert str((1 << 63) - 1) not in text
