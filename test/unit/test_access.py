"""How each kind of op walks its tensors: loops, windows, and what stays whole."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.access import WHOLE, Access, Along, access_of, affine_maps, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.verify import walk

ALIVE: list[ir.Module] = []  # operations do not keep their module


def ops_of(text: str) -> list[ir.Operation]:
    """The operations of a function body, given as text."""
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
    ALIVE.append(module)
    return [op for op in walk(module.operation) if op.parent is not None and op.parent.name == "func.func"]


def access(arguments: str, op: str) -> Access | None:
    """The access of the last op of a body before its return."""
    return access_of(ops_of(f"func.func @f({arguments}) {{\n{op}\nreturn\n}}")[-2])


def generic(maps: list[str], kinds: str, ins: list[str], outs: list[str]) -> str:
    """A linalg.generic over arguments %a, %b, ... whose body yields its last block arguments."""
    names = [f"%{c}" for c in "abcdefgh"[: len(ins) + len(outs)]]
    elements = [t.removesuffix(">").split("x")[-1].removeprefix("tensor<") for t in [*ins, *outs]]
    block = ", ".join(f"%{c}_: {e}" for c, e in zip("abcdefgh", elements, strict=False))
    read = f"ins({', '.join(names[: len(ins)])} : {', '.join(ins)})" if ins else ""
    listed = ", ".join(f"affine_map<{m}>" for m in maps)
    iterators = ", ".join(f'"{"parallel" if k == "p" else "reduction"}"' for k in kinds)
    last, result = names[len(ins) :], ", ".join(outs)
    return f"""%r{":" + str(len(outs)) if len(outs) > 1 else ""} = linalg.generic {{indexing_maps = [{listed}],
        iterator_types = [{iterators}]}} {read} outs({", ".join(last)} : {result}) {{
      ^bb0({block}):
        linalg.yield {", ".join(n + "_" for n in last)} : {", ".join(elements[len(ins) :])}
      }} -> {result if len(outs) == 1 else "(" + result + ")"}"""


def of_generic(maps: list[str], kinds: str, ins: list[str], outs: list[str]) -> Access | None:
    arguments = ", ".join(f"%{c}: {t}" for c, t in zip("abcdefgh", [*ins, *outs], strict=False))
    return access(arguments, generic(maps, kinds, ins, outs))


def test_a_map_walks_every_dimension_by_its_loop() -> None:
    found = of_generic(["(i, j) -> (i, j)", "(i, j) -> (i, j)"], "pp", ["tensor<3x5xf32>"], ["tensor<3x5xf32>"])
    assert found == Access((True, True), (3, 5), ((Along(0), Along(1)),) * 2, ((Along(0), Along(1)),))


def test_broadcasts_and_permutations() -> None:
    found = of_generic(
        ["(i, j) -> (j)", "(i, j) -> (j, i)", "(i, j) -> ()", "(i, j) -> (i, j)"],
        "pp",
        ["tensor<5xf32>", "tensor<5x3xf32>", "tensor<f32>"],
        ["tensor<3x5xf32>"],
    )
    assert found is not None and found.sizes == (3, 5)
    assert found.operands == ((Along(1),), (Along(1), Along(0)), (), (Along(0), Along(1)))


def test_a_product_reduces_its_last_loop() -> None:
    found = of_generic(
        ["(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)"],
        "ppr",
        ["tensor<4x6xf32>", "tensor<5x6xf32>"],
        ["tensor<4x5xf32>"],
    )
    assert found is not None
    assert found.parallel == (True, True, False) and found.sizes == (4, 5, 6)
    assert found.operands[1] == (Along(1), Along(2)) and found.results == ((Along(0), Along(1)),)


def test_several_results() -> None:
    found = of_generic(
        ["(i, j) -> (i, j)", "(i, j) -> (i)", "(i, j) -> (i)"],
        "pr",
        ["tensor<3x5xf32>"],
        ["tensor<3xf32>", "tensor<3xi64>"],
    )
    assert found is not None and found.results == ((Along(0),), (Along(0),)) and len(found.operands) == 3


CONVOLUTION = ["(b, o, i, c, u) -> (b, c, {})", "(b, o, i, c, u) -> (o, c, u)", "(b, o, i, c, u) -> (b, o, i)"]


@pytest.mark.parametrize(
    ("window", "rows", "scale", "extent"),
    [("i + u", 10, 1, 3), ("i * 2 + u", 17, 2, 3), ("i + u * 2", 12, 1, 5), ("i * 3 + u * 2", 26, 3, 5), ("u + i", 10, 1, 3)],
)
def test_windows_of_convolutions(window: str, rows: int, scale: int, extent: int) -> None:
    """Stride is the scale, the dilated kernel the extent: output row i reads rows scale * i .. + extent."""
    found = of_generic(
        [m.format(window) for m in CONVOLUTION],
        "ppprr",
        [f"tensor<2x4x{rows}xf32>", "tensor<6x4x3xf32>"],
        ["tensor<2x6x8xf32>"],
    )
    assert found is not None and found.sizes == (2, 6, 8, 4, 3)
    assert found.operands[0] == (Along(0), Along(3), Along(2, scale, extent))
    assert not Along(2, scale, extent).plain and Along(0).plain


def test_a_window_over_two_reduction_loops_has_no_loop() -> None:
    found = of_generic(
        ["(i, u, v) -> (i, u + v)", "(i, u, v) -> (u)", "(i, u, v) -> (v)", "(i, u, v) -> (i)"],
        "prr",
        ["tensor<3x9xf32>", "tensor<5xf32>", "tensor<5xf32>"],
        ["tensor<3xf32>"],
    )
    assert found is not None and found.operands[0] == (Along(0), WHOLE)


def test_a_dimension_walked_by_two_parallel_loops_keeps_one() -> None:
    """A tile of both loops is no box of the operand: the second is no longer parallel."""
    found = of_generic(
        ["(i, j) -> (i + j)", "(i, j) -> (i, j)"],
        "pp",
        ["tensor<7xf32>"],
        ["tensor<3x5xf32>"],
    )
    assert found is not None
    assert found.parallel == (True, False) and found.operands[0] == (Along(0, 1, 5),)


def test_of_two_parallel_loops_the_one_with_the_longer_steps_is_kept() -> None:
    """Frames of a signal are cut between frames, not within them."""
    found = of_generic(
        ["(j, i) -> (j + i * 4)", "(j, i) -> (i, j)"],
        "pp",
        ["tensor<17xf32>"],
        ["tensor<3x9xf32>"],
    )
    assert found is not None
    assert found.parallel == (False, True) and found.operands[0] == (Along(1, 4, 9),)


@pytest.mark.parametrize("expression", ["i floordiv 2", "i mod 2", "-i + 2", "i + 1"])
def test_loops_in_other_expressions_stay_whole(expression: str) -> None:
    found = of_generic([f"(i, j) -> ({expression}, j)", "(i, j) -> (i, j)"], "pp", ["tensor<4x5xf32>"], ["tensor<3x5xf32>"])
    assert found is not None
    assert found.parallel == (False, True) and found.operands[0] == (WHOLE, Along(1))


def test_a_constant_index_is_whole() -> None:
    found = of_generic(["(j) -> (0, j)", "(j) -> (j)"], "p", ["tensor<4x5xf32>"], ["tensor<5xf32>"])
    assert found is not None
    assert found.parallel == (True,) and found.operands[0] == (WHOLE, Along(0))


def test_scalars_have_no_dimensions() -> None:
    found = access(
        "%s: f32, %t: tensor<3xf32>",
        """%r = linalg.generic {indexing_maps = [affine_map<(i) -> ()>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%s : f32) outs(%t : tensor<3xf32>) {
      ^bb0(%x: f32, %y: f32):
        linalg.yield %x : f32
      } -> tensor<3xf32>""",
    )
    assert found == Access((True,), (3,), ((), (Along(0),)), ((Along(0),),))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # Dimensions of 1 come and go: the others keep their loop.
        (
            "%r = tensor.expand_shape %a [[0, 1], [2]] output_shape [1, 4, 6] : tensor<4x6xf32> into tensor<1x4x6xf32>",
            Access((True, True), (4, 6), ((Along(0), Along(1)),), ((WHOLE, Along(0), Along(1)),)),
        ),
        # Real splits are whole.
        (
            "%r = tensor.expand_shape %a [[0], [1, 2]] output_shape [4, 2, 3] : tensor<4x6xf32> into tensor<4x2x3xf32>",
            Access((True,), (4,), ((Along(0), WHOLE),), ((Along(0), WHOLE, WHOLE),)),
        ),
        (
            "%r = tensor.collapse_shape %a [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>",
            Access((), (), ((WHOLE, WHOLE),), ((WHOLE,),)),
        ),
        # A slice is walked along parts of what it is of; with steps, or a dimension left out, only along what it takes in full.
        (
            "%r = tensor.extract_slice %a[1, 0] [2, 6] [1, 1] : tensor<4x6xf32> to tensor<2x6xf32>",
            Access((True, True), (2, 6), ((Along(0, start=1, part=True), Along(1)),), ((Along(0), Along(1)),)),
        ),
        (
            "%r = tensor.extract_slice %a[0, 0] [4, 3] [1, 2] : tensor<4x6xf32> to tensor<4x3xf32>",
            Access((True,), (4,), ((Along(0), WHOLE),), ((Along(0), WHOLE),)),
        ),
        (
            "%r = tensor.extract_slice %a[1, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<6xf32>",
            Access((True,), (6,), ((WHOLE, Along(0)),), ((Along(0),),)),
        ),
        # Concatenation and padding leave the other dimensions alone.
        (
            "%r = tensor.concat dim(1) %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>",
            Access((True,), (4,), ((Along(0), WHOLE),) * 2, ((Along(0), WHOLE),)),
        ),
        ("%r = tensor.empty() : tensor<4x6xf32>", Access((True, True), (4, 6), (), ((Along(0), Along(1)),))),
    ],
)
def test_structural_ops(op: str, expected: Access) -> None:
    assert access("%a: tensor<4x6xf32>", op) == expected


def test_padding() -> None:
    ops = ops_of("""func.func @f(%a: tensor<4x6xf32>, %z: f32) {
      %r = tensor.pad %a low[0, 2] high[0, 1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %z : f32
      } : tensor<4x6xf32> to tensor<4x9xf32>
      return
    }""")
    assert access_of(ops[0]) == Access((True,), (4,), ((Along(0), WHOLE),), ((Along(0), WHOLE),))
    assert static_ints(ops[0], "static_low") == [0, 2]


@pytest.mark.parametrize(
    "op",
    [
        "%r = arith.constant dense<1.0> : tensor<4x6xf32>",
        "%r = math.exp %a : tensor<4x6xf32>",
        "%r = tensor.extract_slice %a[%n, 0] [2, 6] [1, 1] : tensor<4x6xf32> to tensor<2x6xf32>",
        "%r = tensor.pad %a low[%n, 0] high[0, 0] {\n^bb0(%i: index, %j: index):\ntensor.yield %z : f32\n}"
        " : tensor<4x6xf32> to tensor<?x6xf32>",
    ],
)
def test_of_other_ops_nothing_is_known(op: str) -> None:
    assert access("%a: tensor<4x6xf32>, %n: index, %z: f32", op) is None


def test_reading_maps_and_iterators() -> None:
    text = generic(["(i, j) -> (j, i)", "(i, j) -> (i)"], "pr", ["tensor<5x3xf32>"], ["tensor<3xf32>"])
    op = ops_of(f"func.func @f(%a: tensor<5x3xf32>, %b: tensor<3xf32>) {{\n{text}\nreturn\n}}")[0]
    assert [str(m) for m in affine_maps(op)] == ["(d0, d1) -> (d1, d0)", "(d0, d1) -> (d0)"]
    assert iterator_kinds(op) == ["parallel", "reduction"]
    assert shape_of(op.operands[0]) == [5, 3]
