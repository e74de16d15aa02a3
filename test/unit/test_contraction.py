"""dialects/contraction.py: the roles of loops in products and convolutions of odd forms, and in what is neither."""

from __future__ import annotations

import math

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects.access import access_of, loop_sizes, plain_loops
from kitsune_mlir.dialects.contraction import (
    ContractionDims,
    ConvDims,
    contraction_dims,
    conv_dims,
    matrix_extents,
    subscripts,
)
from kitsune_mlir.dialects.match_failure import MatchFailure
from test.programs.kept import kept

PARALLEL, SUM = "parallel", "reduction"


pytestmark = pytest.mark.usefixtures("context")


def generic(loops: str, sums: str, shapes: list[list[int]], *maps: str) -> ir.Operation:
    """`out += a * b` (or an element-wise copy of one input) on f32 tensors; `sums` are the loops that are reduced."""
    names = loops.split()
    kinds = ", ".join(f'"{SUM if name in sums.split() else PARALLEL}"' for name in names)
    types = [f"tensor<{'x'.join(map(str, [*shape, 'f32']))}>" for shape in shapes]
    values = [f"%{n}" for n in range(len(types))]
    made = ", ".join(f"affine_map<({', '.join(names)}) -> ({m})>" for m in maps)
    numbers = ", ".join(f"%p{n}: f32" for n in range(len(types)))
    body = f"%s = arith.mulf %p0, %p{len(types) - 2} : f32\n %t = arith.addf %p{len(types) - 1}, %s : f32"
    text = f"""func.func @f({", ".join(f"{v}: {t}" for v, t in zip(values, types, strict=True))}) -> {types[-1]} {{
      %r = linalg.generic {{indexing_maps = [{made}], iterator_types = [{kinds}]}}
          ins({", ".join(values[:-1])} : {", ".join(types[:-1])}) outs({values[-1]} : {types[-1]}) {{
        ^bb0({numbers}):
          {body}
          linalg.yield %t : f32
      }} -> {types[-1]}
      return %r : {types[-1]}
    }}"""
    return kept(text).regions[0].blocks[0].operations[0].operation


PRODUCTS = {
    "rows by a transposed weight": (("m n k", "k", [[4, 8], [6, 8], [4, 6]], "m, k", "n, k", "m, n"), "mk,nk->mn"),
    "rows by a weight": (("m n k", "k", [[4, 8], [8, 6], [4, 6]], "m, k", "k, n", "m, n"), "mk,kn->mn"),
    "loops in another order": (("k n m", "k", [[4, 8], [8, 6], [4, 6]], "m, k", "k, n", "m, n"), "mk,kn->mn"),
    "a transposed result": (("m n k", "k", [[4, 8], [6, 8], [6, 4]], "m, k", "n, k", "n, m"), "mk,nk->nm"),
    "transposed rows": (("m n k", "k", [[8, 4], [6, 8], [4, 6]], "k, m", "n, k", "m, n"), "km,nk->mn"),
    "a batch": (("b m n k", "k", [[2, 4, 8], [2, 8, 6], [2, 4, 6]], "b, m, k", "b, k, n", "b, m, n"), "bmk,bkn->bmn"),
    "a batch in the middle": (
        ("b m n k", "k", [[4, 2, 8], [6, 2, 8], [4, 2, 6]], "m, b, k", "n, b, k", "m, b, n"),
        "mbk,nbk->mbn",
    ),
    "two rows, two sums": (
        ("b m n k l", "k l", [[2, 4, 8, 3], [6, 8, 3], [2, 4, 6]], "b, m, k, l", "n, k, l", "b, m, n"),
        "mmkk,nkk->mmn",
    ),
    "a vector": (("m k", "k", [[4, 8], [8], [4]], "m, k", "k", "m"), "mk,k->m"),
    "a dot product": (("k", "k", [[8], [8], []], "k", "k", ""), "k,k->"),
    "dot products of a batch": (("b k", "k", [[4, 8], [4, 8], [4]], "b, k", "b, k", "b"), "bk,bk->b"),
    "an outer product": (("m n", "", [[4], [6], [4, 6]], "m", "n", "m, n"), "m,n->mn"),
    "one factor summed alone": (("m n k l", "k l", [[4, 8, 3], [6, 8], [4, 6]], "m, k, l", "n, k", "m, n"), "mk?,nk->mn"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    (loops, sums, shapes, *maps), wanted = PRODUCTS[name]
    op = generic(loops, sums, shapes, *maps)
    assert subscripts(op) == wanted
    names = loops.split()
    dims, sizes = contraction_dims(op), dict(zip(names, loop_sizes(op), strict=True))
    for role in ("batch", "m", "n", "k"):
        assert all(dims.role(loop) == role for loop in getattr(dims, role))
    without = [name for loop, name in enumerate(names) if dims.role(loop) is None]
    assert without == (["l"] if "?" in wanted else [])
    rows, columns, terms = matrix_extents(op)
    assert rows * columns == math.prod(shapes[2]) and terms == math.prod(sizes[loop] for loop in sums.split())
    assert columns == math.prod(
        extent for extent, letter in zip(shapes[2], wanted.partition("->")[2], strict=True) if letter == "n"
    )


def test_extents_of_a_tile():
    op = generic("m n k", "k", [[64, 8], [96, 8], [64, 96]], "m, k", "n, k", "m, n")
    assert matrix_extents(op) == (64, 96, 8)
    assert matrix_extents(op, [16, 32, 8]) == (16, 32, 8)


def test_what_is_no_product():
    copy = generic("m n", "", [[4, 6], [4, 6]], "m, n", "m, n")
    for asked in (contraction_dims, subscripts, matrix_extents):
        with pytest.raises(ValueError, match="is no product: it has 2 operands"):
            asked(copy)
    added = generic("m n", "", [[4, 6], [4, 6], [4, 6]], "m, n", "m, n", "m, n")
    assert contraction_dims(added) == ContractionDims((0, 1), (), (), ())  # maps alone: nothing is summed


IMAGE = "b h w f y x c", "y x c"
CONVOLUTIONS = {
    "3 x 3": (
        (*IMAGE, [[2, 10, 12, 8], [16, 3, 3, 8], [2, 8, 10, 16]], "b, h + y, w + x, c", "f, y, x, c", "b, h, w, f"),
        ConvDims((0, 1, 2), (1, 1, 1), (None, 4, 5), (1, 1, 1), 3, 6),
    ),
    "strides and dilation": (
        (*IMAGE, [[2, 19, 23, 8], [16, 3, 2, 8], [2, 8, 7, 16]], "b, h * 2 + y, w * 3 + x * 4, c", "f, y, x, c", "b, h, w, f"),
        ConvDims((0, 1, 2), (1, 2, 3), (None, 4, 5), (1, 1, 4), 3, 6),
    ),
    "channels of the result first": (
        (*IMAGE, [[2, 10, 12, 8], [16, 3, 3, 8], [2, 16, 8, 10]], "b, h + y, w + x, c", "f, y, x, c", "b, f, h, w"),
        ConvDims((0, 1, 2), (1, 1, 1), (None, 4, 5), (1, 1, 1), 3, 6),
    ),
    "1 x 1 with strides": (
        ("b h w f c", "c", [[2, 15, 15, 8], [16, 8], [2, 8, 8, 16]], "b, h * 2, w * 2, c", "f, c", "b, h, w, f"),
        ConvDims((0, 1, 2), (1, 2, 2), (None, None, None), (1, 1, 1), 3, 4),
    ),
    "depthwise": (
        ("b h w c y x", "y x", [[2, 10, 12, 8], [3, 3, 8], [2, 8, 10, 8]], "b, h + y, w + x, c", "y, x, c", "b, h, w, c"),
        ConvDims((0, 1, 2), (1, 1, 1), (None, 4, 5), (1, 1, 1), 3, 3),
    ),
    "groups": (
        ("b h g f y c", "y c", [[2, 10, 4, 8], [4, 16, 3, 8], [2, 8, 4, 16]], "b, h + y, g, c", "g, f, y, c", "b, h, g, f"),
        ConvDims((0, 1, 2), (1, 1, 1), (None, 4, None), (1, 1, 1), 3, 5, 2),
    ),
    "one dimension": (
        ("b h f y c", "y c", [[2, 10, 8], [16, 3, 8], [2, 8, 16]], "b, h + y, c", "f, y, c", "b, h, f"),
        ConvDims((0, 1), (1, 1), (None, 3), (1, 1), 2, 4),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    given, wanted = CONVOLUTIONS[name]
    op = generic(*given)
    assert conv_dims(op) == wanted
    assert wanted.depthwise == (name == "depthwise")
    rows, columns, terms = matrix_extents(op)
    sizes, access = loop_sizes(op), access_of(op)
    assert access is not None and list(access.sizes) == sizes
    # A depthwise convolution's channels are both factors': a batch, and so rows.
    features = 1 if wanted.depthwise else sizes[wanted.features]
    assert (columns, rows * columns) == (features, math.prod(given[2][2])) and rows * columns * terms == math.prod(sizes)


REFUSED = {
    "groups behind their features": (
        ("b h g f y c", "y c", [[2, 10, 4, 8], [16, 4, 3, 8], [2, 8, 4, 16]], "b, h + y, g, c", "f, g, y, c", "b, h, g, f"),
        "groups",
    ),
    "groups of one feature": (
        ("b g c", "c", [[2, 4, 8], [4, 8], [2, 4]], "b, g, c", "g, c", "b, g"),
        "one feature",
    ),
    "taps in another order": (
        (*IMAGE, [[2, 10, 12, 8], [16, 3, 3, 8], [2, 8, 10, 16]], "b, h + x, w + y, c", "f, y, x, c", "b, h, w, f"),
        "taps in another order",
    ),
    "channels first": (
        (*IMAGE, [[2, 8, 10, 12], [16, 8, 3, 3], [2, 16, 8, 10]], "b, c, h + y, w + x", "f, c, y, x", "b, f, h, w"),
        "innermost",
    ),
    "a weight that differs from pixel to pixel": (
        ("h y c", "y c", [[10, 8], [8, 3, 8], [8]], "h + y, c", "h, y, c", "h"),
        "differs from pixel to pixel",
    ),
    "two pixels in one index": (
        ("h w f c", "c", [[17, 8], [16, 8], [8, 10, 16]], "h + w, c", "f, c", "h, w, f"),
        "the image is indexed by d0 \\+ d1",
    ),
    "a weight that slides": (
        ("h f y c", "y c", [[3, 8], [16, 10, 8], [8, 16]], "y, c", "f, h + y, c", "h, f"),
        "plain loops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_convolutions(name):
    given, reason = REFUSED[name]
    with pytest.raises(MatchFailure, match=reason):
        conv_dims(generic(*given))


def test_plain_loops():
    op = generic(*CONVOLUTIONS["3 x 3"][0])
    map_ = ir.AffineMapAttr(ir.ArrayAttr(op.attributes["indexing_maps"])[0]).value
    assert plain_loops(map_) == [0, None, None, 6]
