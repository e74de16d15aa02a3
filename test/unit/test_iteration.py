"""Shared dimensions of groups of ops, and which ops are cheap enough to be repeated."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.access import Along
from kitsune_mlir.dialects.iteration import Space, is_free, is_reshape, is_trivial_reshape, is_view, iteration_space
from kitsune_mlir.dialects.verify import walk

ALIVE: list[ir.Module] = []  # operations do not keep their module

ID = "affine_map<(i, j) -> (i, j)>"
ROW, COLUMN = "affine_map<(i, j) -> (i)>", "affine_map<(i, j) -> (j)>"


def body(text: str) -> list[ir.Operation]:
    """The operations of a function body over %x, %y: 8x6, %u: 8, %v: 6, %w: 6x6, %k: 8 indices, without the return."""
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(
            "func.func @f(%x: tensor<8x6xf32>, %y: tensor<8x6xf32>, %u: tensor<8xf32>, %v: tensor<6xf32>, %w: tensor<6x6xf32>, "
            f"%k: tensor<8xindex>, %n: index) {{\n{text}\nreturn\n}}"
        )
    ALIVE.append(module)
    return [op for op in walk(module.operation) if op.parent is not None and op.parent.name == "func.func"][:-1]


def nest(name: str, ins: list[tuple[str, str]], out: tuple[str, str], kinds: str = "pp") -> str:
    """A generic called %name: (value, map) pairs, each value of the type that its name has in `body`, or 8x6."""
    types = {"u": "tensor<8xf32>", "v": "tensor<6xf32>", "w": "tensor<6x6xf32>", "r": "tensor<8xf32>", "c": "tensor<6xf32>"}
    of = [types.get(v[0], "tensor<8x6xf32>") for v, _ in [*ins, out]]
    maps = ", ".join(m for _, m in [*ins, out])
    block = ", ".join(f"%{name}_{i}: f32" for i in range(len(of)))
    iterators = ", ".join(f'"{"parallel" if k == "p" else "reduction"}"' for k in kinds)
    return f"""%{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
      ins({", ".join("%" + v for v, _ in ins)} : {", ".join(of[:-1])}) outs(%{out[0]} : {of[-1]}) {{
    ^bb0({block}):
      %{name}_s = arith.addf %{name}_0, %{name}_{len(ins)} : f32
      linalg.yield %{name}_s : f32
    }} -> {of[-1]}"""


def space(text: str, *yielded: int) -> Space:
    """The space of a body whose results number `yielded` (default: the last op's) leave it."""
    ops = body(text)
    values = [ops[n].results[0] for n in yielded or (len(ops) - 1,)]
    return iteration_space(ops, values)


def sizes(text: str, *yielded: int) -> list[int]:
    return [d.size for d in space(text, *yielded).dims]


def test_a_chain_of_maps_shares_both_dimensions() -> None:
    found = space(nest("a", [("x", ID)], ("y", ID)) + nest("b", [("a", ID)], ("y", ID)))
    assert [(d.size, d.loops) for d in found.dims] == [(8, {0: 0, 1: 0}), (6, {0: 1, 1: 1})]
    assert found.result_dims(1, 0) == [0, 1]
    assert found.along(1, found.accesses[1].operands[0]) == [(0, Along(0)), (1, Along(1))]


def test_a_row_reduction_leaves_the_rows() -> None:
    assert sizes(nest("a", [("x", ID)], ("y", ID)) + nest("r", [("a", ID)], ("u", ROW), "pr")) == [8]


def test_softmax_is_local_to_its_rows() -> None:
    text = nest("r", [("x", ID)], ("u", ROW), "pr") + nest("b", [("x", ID), ("r", ROW)], ("y", ID))
    assert sizes(text + nest("r2", [("b", ID)], ("u", ROW), "pr") + nest("d", [("b", ID), ("r2", ROW)], ("y", ID))) == [8]


def test_rows_and_columns_share_nothing() -> None:
    text = nest("r", [("x", ID)], ("u", ROW), "pr") + nest("c", [("x", ID)], ("v", COLUMN), "rp")
    assert sizes(text, 0, 1) == []
    # Each alone has its own dimension.
    assert sizes(nest("c", [("x", ID)], ("v", COLUMN), "rp")) == [6]


def test_two_reductions_in_a_row() -> None:
    """A column reduction of a row-wise result needs all rows; what is reduced on the way is gone."""
    text = nest("r", [("x", ID)], ("u", ROW), "pr") + nest("b", [("x", ID), ("r", ROW)], ("y", ID))
    assert sizes(text + nest("c", [("b", ID)], ("v", COLUMN), "rp")) == []


def test_a_transposition_renames_a_dimension() -> None:
    square = nest("wa", [("w", ID)], ("w", ID)) + nest(
        "wb", [("wa", "affine_map<(i, j) -> (j, i)>")], ("w", "affine_map<(i, j) -> (i, j)>")
    )
    found = space(square)
    assert [d.loops for d in found.dims] == [{0: 1, 1: 0}, {0: 0, 1: 1}]


def test_a_value_read_straight_and_transposed_shares_nothing() -> None:
    text = nest("wa", [("w", ID)], ("w", ID)) + nest("wb", [("wa", ID), ("wa", "affine_map<(i, j) -> (j, i)>")], ("w", ID))
    assert sizes(text) == []


def test_products_in_a_chain_share_their_rows() -> None:
    maps = [f"affine_map<(m, n, k) -> ({e})>" for e in ("m, k", "n, k", "m, n")]
    text = nest("a", [("x", maps[0]), ("w", maps[1])], ("y", maps[2]), "ppr")
    assert sizes(text) == [8, 6]
    assert sizes(text + nest("b", [("a", maps[0]), ("w", maps[1])], ("y", maps[2]), "ppr")) == [8]


def test_every_yielded_value_needs_the_dimension() -> None:
    text = nest("a", [("x", ID)], ("y", ID)) + nest("r", [("a", ID)], ("u", ROW), "pr")
    assert sizes(text, 0, 1) == [8]
    text = nest("a", [("x", ID)], ("y", ID)) + nest("c", [("a", ID)], ("v", COLUMN), "rp")
    assert sizes(text, 0, 1) == [6]


def test_the_leading_dimension_of_the_first_result_comes_first() -> None:
    text = nest("wb", [("w", ID)], ("w", "affine_map<(i, j) -> (j, i)>"))
    assert [d.loops for d in space(text).dims] == [{0: 1}, {0: 0}]


def test_a_gather_needs_its_table_whole() -> None:
    text = (
        nest("a", [("x", ID)], ("y", ID))
        + f"""
    %b = linalg.generic {{indexing_maps = [{ROW}, {ID}], iterator_types = ["parallel", "parallel"]}}
        ins(%k : tensor<8xindex>) outs(%y : tensor<8x6xf32>) {{
    ^bb0(%i: index, %o: f32):
      %j = linalg.index 1 : index
      %e = tensor.extract %a[%i, %j] : tensor<8x6xf32>
      linalg.yield %e : f32
    }} -> tensor<8x6xf32>"""
    )
    assert sizes(text) == []
    # The rows of the gather itself are its own, where the table comes from outside.
    ops = body(text.replace("%a[", "%x["))
    assert [d.size for d in iteration_space(ops[1:], [ops[1].results[0]]).dims] == [8, 6]


def test_light_ops_need_not_take_part() -> None:
    """A fill of six numbers has no rows, but it is free: each tile makes it again."""
    text = (
        """%z = arith.constant 0.0 : f32
    %c_e = tensor.empty() : tensor<6xf32>
    %c = linalg.fill ins(%z : f32) outs(%c_e : tensor<6xf32>) -> tensor<6xf32>
    """
        + nest("c2", [("c", "affine_map<(j) -> (j)>")], ("c", "affine_map<(j) -> (j)>"), "p")
        + nest("b", [("x", ID), ("c", COLUMN)], ("y", ID))
    )
    ops = body(text)
    group = [op for op in ops if op != ops[3]]
    assert [d.size for d in iteration_space(group, [group[-1].results[0]]).dims] == [8]
    # Where the same op is heavy, nothing is shared.
    assert iteration_space(group, [group[-1].results[0]], light=lambda op: False).dims == []


def test_an_unknown_op_blocks_what_it_touches() -> None:
    text = nest("a", [("x", ID)], ("y", ID)) + "%b = math.exp %a : tensor<8x6xf32>\n" + nest("d", [("x", ID)], ("y", ID))
    assert sizes(text, 1) == []
    ops = body(text)
    assert iteration_space([ops[0], ops[2]], [ops[0].results[0], ops[2].results[0]]).dims == []


def test_a_reshape_by_ones_passes_dimensions_on() -> None:
    text = """%r = tensor.expand_shape %x [[0, 1], [2]] output_shape [8, 1, 6] : tensor<8x6xf32> into tensor<8x1x6xf32>
    %s = tensor.collapse_shape %r [[0, 1], [2]] : tensor<8x1x6xf32> into tensor<8x6xf32>"""
    assert sizes(text) == [8, 6]


@pytest.mark.parametrize(
    ("op", "free", "view"),
    [
        ("arith.constant dense<0.0> : tensor<8xf32>", True, False),
        ("arith.constant 3 : index", True, False),
        ("arith.addi %n, %n : index", True, False),
        ("tensor.empty() : tensor<8x6xf32>", True, False),
        ("tensor.splat %n : tensor<5xindex>", True, False),
        ("tensor.extract_slice %x[0, 0] [2, 6] [1, 1] : tensor<8x6xf32> to tensor<2x6xf32>", True, False),
        ("tensor.extract_slice %x[%n, 0] [2, 6] [1, 1] : tensor<8x6xf32> to tensor<2x6xf32>", False, False),
        ("tensor.expand_shape %u [[0, 1]] output_shape [8, 1] : tensor<8xf32> into tensor<8x1xf32>", True, False),
        ("tensor.expand_shape %u [[0, 1]] output_shape [4, 2] : tensor<8xf32> into tensor<4x2xf32>", False, True),
        ("tensor.collapse_shape %x [[0, 1]] : tensor<8x6xf32> into tensor<48xf32>", False, True),
        ("math.exp %x : tensor<8x6xf32>", False, False),
        ("tensor.concat dim(0) %x, %y : (tensor<8x6xf32>, tensor<8x6xf32>) -> tensor<16x6xf32>", False, False),
    ],
)
def test_what_is_free_and_what_is_a_view(op: str, free: bool, view: bool) -> None:
    found = body(f"%r = {op}")[-1]
    assert (is_free(found), is_view(found)) == (free, view)
    assert is_trivial_reshape(found) == (is_reshape(found) and not view)


@pytest.mark.parametrize(("count", "free"), [(64, True), (4096, True), (5000, False)])
def test_small_tensors_made_from_indices_are_free(count: int, free: bool) -> None:
    ops = body(f"""%e = tensor.empty() : tensor<{count}xindex>
    %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
        outs(%e : tensor<{count}xindex>) {{
    ^bb0(%o: index):
      %i = linalg.index 0 : index
      linalg.yield %i : index
    }} -> tensor<{count}xindex>""")
    assert is_free(ops[-1]) == free


def test_a_fill_with_a_constant_is_free_whatever_its_size() -> None:
    ops = body("""%z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<100000xf32>
    %r = linalg.fill ins(%z : f32) outs(%e : tensor<100000xf32>) -> tensor<100000xf32>""")
    assert is_free(ops[-1])


def test_loops_are_never_free() -> None:
    ops = body("""%c0 = arith.constant 0 : index
    %c8 = arith.constant 8 : index
    %c1 = arith.constant 1 : index
    %r = scf.for %i = %c0 to %c8 step %c1 iter_args(%t = %n) -> (index) {
      %s = arith.addi %t, %i : index
      scf.yield %s : index
    }""")
    assert not is_free(ops[-1])
