"""contraction/elementwise.py: what an element-wise body may hold, and which operands it reads."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.elementwise import check_body, is_constant, read_operands
from kitsune_mlir.dialects.match_failure import MatchFailure
from test.programs.kept import kept

pytestmark = pytest.mark.usefixtures("context")


def generic(body: str) -> ir.Operation:
    """A generic of %x and %y into %z (4 x 8, elements %a, %b, %c), with scalars %s: f32 and %n: index, and a table %t."""
    text = f"""
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func @f(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>, %z: tensor<4x8xf32>, %s: f32, %n: index, %t: tensor<16x8xf32>) {{
      %one = arith.constant 1.0 : f32
      %ones = arith.constant dense<1.0> : tensor<4x8xf32>
      %all = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
      %r = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}}
          ins(%x, %y : tensor<4x8xf32>, tensor<4x8xf32>) outs(%z : tensor<4x8xf32>) {{
        ^bb0(%a: f32, %b: f32, %c: f32):
          {body}
          linalg.yield %v : f32
      }} -> tensor<4x8xf32>
      return
    }}"""
    operations = kept(text).regions[0].blocks[0].operations
    return next(op.operation for op in operations if op.operation.name == "linalg.generic")


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("%v = arith.addf %a, %b : f32", (0, 1)),
        ("%v = arith.addf %a, %a : f32", (0, 1)),  # an input counts, read or not
        ("%v = arith.addf %c, %b : f32", (0, 1, 2)),  # an init that is read
        ("%w = arith.mulf %c, %c : f32\n%v = math.exp %a : f32", (0, 1, 2)),
    ],
)
def test_operands_that_are_read(body, numbers):
    assert read_operands(generic(body)) == numbers


ROW = "%i = linalg.index 0 : index\n%j = linalg.index 1 : index\n"
HELD = {
    "arithmetic on constants from outside": "%v = arith.addf %a, %one : f32",
    "functions": "%w = math.tanh %a : f32\n%v = math.sqrt %w : f32",
    "index arithmetic from outside": "%w = arith.index_cast %n : index to i32\n%v = arith.sitofp %w : i32 to f32",
}


@pytest.mark.parametrize("name", HELD)
def test_bodies_that_are_read(name):
    for positions in (True, False):
        check_body(generic(HELD[name]), positions=positions)


def test_positions():
    op = generic("%i = linalg.index 0 : index\n%w = arith.index_cast %i : index to i32\n%v = arith.sitofp %w : i32 to f32")
    check_body(op)
    with pytest.raises(MatchFailure, match=r"holds 'linalg.index'"):
        check_body(op, positions=False)


def test_tables():
    op = generic(ROW + "%v = tensor.extract %t[%i, %j] : tensor<16x8xf32>")
    check_body(op, lambda value: value == op.parent.regions[0].blocks[0].arguments[5])
    for is_table in (None, lambda value: False):
        with pytest.raises(MatchFailure, match=r"holds 'tensor.extract'"):
            check_body(op, is_table)


def test_bodies_that_are_not_read():
    with pytest.raises(MatchFailure, match="uses a f32 that is computed outside"):
        check_body(generic("%v = arith.addf %a, %s : f32"))
    branch = "%p = arith.cmpf olt, %a, %b : f32\n%v = scf.if %p -> f32 {\nscf.yield %a : f32\n} else {\nscf.yield %b : f32\n}"
    with pytest.raises(MatchFailure, match=r"holds 'scf.if'"):
        check_body(generic(branch))


def test_constants():
    op = generic("%v = arith.addf %a, %one : f32")
    block = op.parent.regions[0].blocks[0]
    one, ones, every = (o.operation.results[0] for o in list(block.operations)[:3])
    assert is_constant(one) and is_constant(ones)
    assert not is_constant(every) and not is_constant(block.arguments[0]) and not is_constant(op.results[0])
