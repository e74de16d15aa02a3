"""The host target: hand-written tile programs against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kitsune_mlir.codegen.host.machine import Machine, this_machine
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.host_executor import HostExecutor
from test.programs.host import (
    RNG,
    Rows,
    Stage,
    compile_text,
    elementwise,
    fill,
    generic,
    normal,
    one_task,
    product,
    run_code,
    tensor,
)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def linear(x: str, w: str, b: str, m: int, k: int, n: int, transposed: bool = True) -> str:
    """relu(x w + b), as `%r`."""
    epilogue = "%zero = arith.constant 0.0 : f32\n%h = arith.addf %a0, %a1 : f32\n"
    epilogue += "%q = arith.maximumf %h, %zero : f32\nlinalg.yield %q : f32"
    operands = [("prod", tensor((m, n)), "d0, d1"), (b, tensor((n,)), "d1")]
    return product("prod", x, w, m, k, n, transposed) + elementwise("r", (m, n), operands, epilogue)


# (rows, inner, columns): whole vectors and tiles, remainders of each, single rows and columns, fewer than one vector.
SHAPES = [
    (26, 9, 1100),
    (64, 64, 64),
    (50, 60, 33),
    (13, 17, 19),
    (12, 5, 40),
    (1, 100, 70),
    (3, 64, 16),
    (33, 1, 47),
    (20, 31, 1),
    (7, 3, 2),
]


@pytest.mark.rotated(7)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_product(m, k, n, transposed):
    a, b = normal(m, k), normal(*((n, k) if transposed else (k, n)))
    got = one_task(product("r", "a", "b", m, k, n, transposed), {"a": a, "b": b}, ((m, n), "f32"))
    want = a.astype(np.float64) @ (b.T if transposed else b)
    assert np.abs(got - want).max() <= 1e-6 * (np.abs(a) @ np.abs(b.T if transposed else b)).max()


@pytest.mark.rotated(5)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("element", ["bf16", "f16", "f64", "i32", "i64"])
def test_product_of_other_types(element, transposed):
    m, k, n = 19, 37, 21
    from test.programs.host import DTYPES

    total = "f32" if element in ("bf16", "f16") else element
    a, b = normal(m, k), normal(*((n, k) if transposed else (k, n)))
    a, b = ((10 * x if element[0] == "i" else x).astype(DTYPES[element]) for x in (a, b))
    got = one_task(product("r", "a", "b", m, k, n, transposed, element), {"a": a, "b": b}, ((m, n), total))
    wide = np.int64 if element[0] == "i" else np.float64
    want = a.astype(wide) @ (b.T if transposed else b).astype(wide)
    if element[0] == "i":
        assert (got == want).all()
    else:
        assert relative_error(got, want) < (1e-14 if element == "f64" else 1e-6)


def test_chain_with_waits_runs_the_same_200_times():
    """Three layers, tiles that wait for tiles, ragged rows; on two threads, over and over."""
    rows, width, tile = 100, 48, 16
    whole = {f"{n}{i}": ((width, width) if n == "w" else (width,), "f32") for i in range(3) for n in "wb"}
    names = ["x", "h0", "h1", "y"]
    stages = [
        Stage(
            f"l{i}",
            names[i + 1],
            tile,
            linear(names[i], f"w{i}", f"b{i}", tile, width, width),
            tiled=(names[i],),
            whole=(f"w{i}", f"b{i}"),
            after=(f"l{i - 1}",) if i else (),
        )
        for i in range(3)
    ]
    shape = ((rows, width), "f32")
    program = Rows({"x": shape, **whole}, {"y": shape}, stages, {"h0": shape, "h1": shape})
    x = normal(rows, width)
    arrays = [normal(*t[0]) / np.float32(4) for t in whole.values()]
    want = x.astype(np.float64)
    for w, b in zip(arrays[::2], arrays[1::2], strict=True):
        want = np.maximum(want @ w.T.astype(np.float64) + b, 0)
    executor = HostExecutor(program.compile(), threads=2)
    assert executor.code.semaphore_slots == 3 * 7 and executor.code.task_count == 3 * 7
    for _ in range(200):
        got = np.full((rows, width), np.nan, np.float32)
        run_code(executor, [x, *arrays], [got])
        assert relative_error(got, want) < 2e-6


def test_equal_bodies_are_lowered_once():
    shape = ((32, 8), "f32")
    double = elementwise(
        "r", (8, 8), [("{0}", tensor((8, 8)), "d0, d1")], "%q = arith.addf %a0, %a0 : f32\nlinalg.yield %q : f32"
    )
    names = ["x", "h0", "h1", "h2", "y"]
    stages = [
        Stage(f"s{i}", names[i + 1], 8, double.replace("{0}", names[i]), tiled=(names[i],), after=(f"s{i - 1}",) if i else ())
        for i in range(4)
    ]
    program = Rows({"x": shape}, {"y": shape}, stages, {n: shape for n in names[1:-1]})
    code = program.compile()
    assert (
        code.llvm_ir.count("define internal void @program_body") + code.llvm_ir.count("define private void @program_body") <= 1
    )
    assert code.llvm_ir.count("@program_body0(") > 4 - 1 and "@program_body1" not in code.llvm_ir
    x = normal(32, 8)
    assert (program.run(x)[0] == 16 * x).all()


@pytest.mark.parametrize(("m", "n"), [(19, 77), (40, 300)])  # the second is large enough to go row by row
def test_softmax(m, n):
    x = normal(m, n) * 10
    x[3] = -np.inf
    x[3, 5] = 1
    square, row = tensor((m, n)), tensor((m,))
    both = [("x", square, "d0, d1"), ("mx", row, "d0")]
    body = fill("mz", (m,), "0xFF800000")
    body += generic(
        "mx",
        "i, j",
        "pr",
        [("x", square, "i, j")],
        ("mz", row, "i"),
        "%q = arith.maximumf %a0, %acc : f32\nlinalg.yield %q : f32",
    )
    body += elementwise("ex", (m, n), both, "%d = arith.subf %a0, %a1 : f32\n%q = math.exp %d : f32\nlinalg.yield %q : f32")
    body += fill("sz", (m,), "0.0")
    body += generic(
        "sm", "i, j", "pr", [("ex", square, "i, j")], ("sz", row, "i"), "%q = arith.addf %a0, %acc : f32\nlinalg.yield %q : f32"
    )
    body += elementwise(
        "r", (m, n), [("ex", square, "d0, d1"), ("sm", row, "d0")], "%q = arith.divf %a0, %a1 : f32\nlinalg.yield %q : f32"
    )
    got = one_task(body, {"x": x}, ((m, n), "f32"))
    e = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))  # the difference is rounded to f32, as in the program
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("machine", [Machine(16, 16), Machine(32, 16), Machine(64, 32)], ids=["sse", "avx2", "avx512"])
def test_every_vector_width_computes_the_same(machine):
    """A layer, its softmax and a bool of it, written for narrower and wider vectors than this processor may have."""
    m, k, n = 29, 43, 38
    x, w, b = normal(m, k), normal(n, k), normal(n)
    highest = "%q = arith.maximumf %a0, %acc : f32\nlinalg.yield %q : f32"
    above = "%half = arith.constant 0.5 : f32\n%u = arith.mulf %a1, %half : f32\n"
    above += "%q = arith.cmpf ogt, %a0, %u : f32\nlinalg.yield %q : i1"
    body = linear("x", "w", "b", m, k, n).replace("%r", "%h") + fill("z", (m,), "0xFF800000")
    body += generic("top", "i, j", "pr", [("h", tensor((m, n)), "i, j")], ("z", tensor((m,)), "i"), highest)
    body += elementwise("r", (m, n), [("h", tensor((m, n)), "d0, d1"), ("top", tensor((m,)), "d0")], above, "i1")
    got = one_task(body, {"x": x, "w": w, "b": b}, ((m, n), "i1"), machine)
    h = np.maximum(x.astype(np.float64) @ w.T + b, 0)
    sure = np.abs(h - h.max(1, keepdims=True) / 2) > 1e-4
    assert (got == (h > h.max(1, keepdims=True) / 2))[sure].all()


@pytest.mark.parametrize("crosswise", [False, True])
def test_rows_share_a_loop_only_where_they_may(crosswise):
    """exp, then its sum and its transpose: a row of the sum needs one row of exp, a row of the transpose needs all."""
    m = 100
    x = normal(m, m)
    square = tensor((m, m))
    body = elementwise("e", (m, m), [("x", square, "d0, d1")], "%q = math.exp %a0 : f32\nlinalg.yield %q : f32")
    add = "%q = arith.addf %a0, %acc : f32\nlinalg.yield %q : f32"
    body += fill("z", (m,), "0.0") + generic("s", "i, j", "pr", [("e", square, "i, j")], ("z", tensor((m,)), "i"), add)
    other = ("e", square, "d1, d0") if crosswise else ("s", tensor((m,)), "d1")  # one number of every row
    operands = [("e", square, "d0, d1"), ("s", tensor((m,)), "d0"), other]
    body += elementwise(
        "r", (m, m), operands, "%q = arith.divf %a0, %a1 : f32\n%p = arith.addf %q, %a2 : f32\nlinalg.yield %p : f32"
    )
    got = one_task(body, {"x": x}, ((m, m), "f32"))
    e = np.exp(x.astype(np.float64))
    s = e.sum(1)
    np.testing.assert_allclose(got, e / s[:, None] + (e.T if crosswise else s[None, :]), rtol=1e-5)


@pytest.mark.rotated(12)
@pytest.mark.parametrize("extent", [1, 2, 15, 16, 17, 31, 64, 100, 130])
@pytest.mark.parametrize(
    ("combine", "start", "reference"),
    [
        ("arith.addf", "0.0", np.add),
        ("arith.mulf", "1.0", np.multiply),
        ("arith.maximumf", "0xFF800000", np.maximum),
        ("arith.minnumf", "0x7FC00000", np.fmin),
    ],
)
def test_row_and_column_reductions(extent, combine, start, reference):
    x = normal(5, extent)
    x[1, extent // 2] = np.nan if combine != "arith.mulf" else 0
    for kinds, mapped, count, axis in (("pr", "i", 5, 1), ("rp", "j", extent, 0)):
        body = fill("z", (count,), start) + generic(
            "r", "i, j", kinds, [("x", tensor((5, extent)), "i, j")], ("z", tensor((count,)), mapped),
            f"%q = {combine} %a0, %acc : f32\nlinalg.yield %q : f32",
        )  # fmt: skip
        got = one_task(body, {"x": x}, ((count,), "f32"))
        np.testing.assert_allclose(got, reference.reduce(x.astype(np.float64), axis=axis), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "summed"), [((394, 129), "r"), ((7, 1000, 65), "rr"), ((9, 33, 700), "rp"), ((129, 9000), "pr")]
)
def test_long_sums_are_as_exact_as_torch(shape, summed):
    """The mean error of columns, of both outer dimensions, of the outermost one, and of rows."""
    kinds = summed + "p" * (len(shape) - len(summed))
    names = [f"d{n}" for n in range(len(shape))]
    kept = [n for n, kind in enumerate(kinds) if kind == "p"]
    count = tuple(shape[n] for n in kept)
    start = ("z", tensor(count), ", ".join(names[n] for n in kept))
    x = normal(*shape)
    body = fill("z", count, "0.0") + generic(
        "r", ", ".join(names), kinds, [("x", tensor(shape), ", ".join(names))], start,
        "%q = arith.addf %a0, %acc : f32\nlinalg.yield %q : f32",
    )  # fmt: skip
    got = one_task(body, {"x": x}, (count, "f32"))
    axes = tuple(n for n, kind in enumerate(kinds) if kind == "r")
    exact, torchs = x.astype(np.float64).sum(axes), torch.from_numpy(x).sum(axes).numpy()
    error, theirs = (np.sqrt(np.mean((each - exact) ** 2)) for each in (got, torchs))
    assert error <= 1.5 * theirs


@pytest.mark.parametrize(
    ("combine", "start", "reference"),
    [("arith.maxsi", -(1 << 63), np.maximum), ("arith.xori", 0, np.bitwise_xor), ("arith.addi", 0, np.add)],
)
def test_integer_reductions(combine, start, reference):
    x = RNG.integers(-(1 << 62), 1 << 62, (6, 45))
    body = fill("z", (6,), str(start), "i64") + generic(
        "r", "i, j", "pr", [("x", tensor((6, 45), "i64"), "i, j")], ("z", tensor((6,), "i64"), "i"),
        f"%q = {combine} %a0, %acc : i64\nlinalg.yield %q : i64",
    )  # fmt: skip
    assert (one_task(body, {"x": x}, ((6,), "i64")) == reference.reduce(x, axis=1)).all()


def test_argmax_carries_two_results():
    """A reduction with two results that depend on each other has no free order: the parallel dimension is vectorised."""
    x = normal(9, 37)
    for kinds, mapped, count, axis in (("rp", "j", 37, 0), ("pr", "i", 9, 1)):
        out = (tensor((count,)), tensor((count,), "i64"))
        which = "linalg.index 0" if kinds == "rp" else "linalg.index 1"
        body = fill("vz", (count,), "0xFF800000") + fill("iz", (count,), "0", "i64")
        iterators = ", ".join('"parallel"' if k == "p" else '"reduction"' for k in kinds)
        maps = ", ".join(f"affine_map<(i, j) -> ({m})>" for m in ("i, j", mapped, mapped))
        body += f"""%best, %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
  ins(%x : {tensor((9, 37))}) outs(%vz, %iz : {out[0]}, {out[1]}) {{
^bb0(%a: f32, %v: f32, %n: i64):
  %k = {which} : index
  %k64 = arith.index_cast %k : index to i64
  %more = arith.cmpf ogt, %a, %v : f32
  %v1 = arith.select %more, %a, %v : f32
  %n1 = arith.select %more, %k64, %n : i64
  linalg.yield %v1, %n1 : f32, i64
}} -> ({out[0]}, {out[1]})
"""
        assert (one_task(body, {"x": x}, ((count,), "i64")) == x.argmax(axis)).all()


@pytest.mark.parametrize("shape", [(5, 7), (64, 48), (1, 33), (3, 200)])
def test_transposed_copy_and_broadcast(shape):
    m, n = shape
    x, v = normal(n, m), normal(m)
    operands = [("x", tensor((n, m)), "d1, d0"), ("v", tensor((m,)), "d0")]
    body = elementwise("r", (m, n), operands, "%q = arith.mulf %a0, %a1 : f32\nlinalg.yield %q : f32")
    assert (one_task(body, {"x": x, "v": v}, ((m, n), "f32")) == x.T * v[:, None]).all()


def test_booleans_are_bytes():
    x, y = normal(7, 45), normal(7, 45)
    flag = RNG.integers(0, 2, (7, 45)).astype(bool)
    operands = [("x", tensor((7, 45)), "d0, d1"), ("y", tensor((7, 45)), "d0, d1"), ("flag", tensor((7, 45), "i1"), "d0, d1")]
    got = one_task(
        elementwise(
            "r",
            (7, 45),
            operands,
            "%q = arith.cmpf olt, %a0, %a1 : f32\n%s = arith.xori %q, %a2 : i1\nlinalg.yield %s : i1",
            "i1",
        ),
        {"x": x, "y": y, "flag": flag},
        ((7, 45), "i1"),
    )
    assert (got == ((x < y) ^ flag)).all()
    assert set(got.view(np.uint8).ravel()) <= {0, 1}


@pytest.mark.filterwarnings("ignore:overflow")
def test_half_precision_rounds_to_nearest_even():
    x = np.concatenate([normal(300) * 100, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.39e38, 65520, 1e-7])]).astype(
        np.float32
    )
    for element, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        narrow = x.astype(dtype)
        body = f"%q = arith.addf %a0, %a0 : {element}\n%s = arith.mulf %q, %a0 : {element}\nlinalg.yield %s : {element}"
        got = one_task(
            elementwise("r", x.shape, [("x", tensor(x.shape, element), "d0")], body, element), {"x": narrow}, (x.shape, element)
        )
        want = (narrow + narrow) * narrow
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_integer_division_never_ends_the_process():
    lowest = np.iinfo(np.int64).min
    x = np.array([7, -7, lowest, lowest, 5, 0, -9, 13] * 5)
    y = np.array([2, 2, -1, 0, 0, 0, -4, 5] * 5)
    for op in ("divsi", "remsi", "floordivsi", "divui", "remui"):
        body = elementwise(
            "r", x.shape, [("x", tensor(x.shape, "i64"), "d0"), ("y", tensor(x.shape, "i64"), "d0")],
            f"%q = arith.{op} %a0, %a1 : i64\nlinalg.yield %q : i64", "i64",
        )  # fmt: skip
        got = one_task(body, {"x": x, "y": y}, (x.shape, "i64"))
        ok = (y != 0) & ~((x == lowest) & (y == -1))
        a, b = x[ok], y[ok]
        want = {
            "divsi": np.trunc(a / b).astype(np.int64),
            "remsi": np.fmod(a, b),
            "floordivsi": a // b,
            "divui": (a.astype(np.uint64) // b.astype(np.uint64)).astype(np.int64),
            "remui": (a.astype(np.uint64) % b.astype(np.uint64)).astype(np.int64),
        }[op]
        assert (got[ok] == want).all(), op


def test_unknown_operations_are_named():
    with pytest.raises(CompileError, match="no tile program 'other'"):
        compile_text("module {}", "other")
    body = '%r = "tensor.bitcast"(%x) : (tensor<4xf32>) -> tensor<4xi32>'
    program = Rows({"x": ((4,), "f32")}, {"y": ((4,), "i32")}, [Stage("cast", "y", 4, body, tiled=("x",))])
    with pytest.raises(CompileError, match="task 'cast' has no lowering"):
        program.compile()


def test_machine_is_described():
    machine = this_machine()
    assert machine.vector_bytes in (16, 32, 64) and machine.registers in (16, 32)
    assert Machine(32, 16).lanes(4) == 8
