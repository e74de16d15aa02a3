"""Operations that fit no vector schedule: the host target runs whatever the importer can produce."""

from __future__ import annotations

import numpy as np
import pytest

from kitsune_mlir.runtime.host_executor import HostExecutor
from test.programs.host import Rows, Stage, compile_text, elementwise, fill, generic, one_task, product, run_code, tensor

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


ONES = [
    # name, body with %x: tensor<6x10xf32>, shape of the result, reference
    ("concat", "%r = tensor.concat dim(1) %x, %x : (tensor<6x10xf32>, tensor<6x10xf32>) -> tensor<6x20xf32>",
     (6, 20), lambda x: np.concatenate([x, x], 1)),
    ("concat_empty", "%n = tensor.extract_slice %x[0, 0] [6, 0] [1, 1] : tensor<6x10xf32> to tensor<6x0xf32>\n"
     "%d = tensor.cast %n : tensor<6x0xf32> to tensor<6x?xf32>\n%y = tensor.cast %x : tensor<6x10xf32> to tensor<6x?xf32>\n"
     "%r = tensor.concat dim(1) %y, %d, %y : (tensor<6x?xf32>, tensor<6x?xf32>, tensor<6x?xf32>) -> tensor<6x20xf32>",
     (6, 20), lambda x: np.concatenate([x, x], 1)),
    ("pad", "%c = arith.constant 2.5 : f32\n%r = tensor.pad %x low[1, 0] high[0, 3] {\n^bb0(%a: index, %b: index):\n"
     "tensor.yield %c : f32\n} : tensor<6x10xf32> to tensor<7x13xf32>",
     (7, 13), lambda x: np.pad(x, ((1, 0), (0, 3)), constant_values=2.5)),
    ("slice", "%r = tensor.extract_slice %x[1, 3] [2, 4] [2, 1] : tensor<6x10xf32> to tensor<2x4xf32>",
     (2, 4), lambda x: x[1:5:2, 3:7]),
    ("insert", "%s = tensor.extract_slice %x[0, 0] [2, 10] [1, 1] : tensor<6x10xf32> to tensor<2x10xf32>\n"
     "%r = tensor.insert_slice %s into %x[3, 0] [2, 10] [1, 1] : tensor<2x10xf32> into tensor<6x10xf32>",
     (6, 10), lambda x: np.concatenate([x[:3], x[:2], x[5:]])),
    ("expand", "%r = tensor.expand_shape %x [[0, 1], [2]] output_shape [2, 3, 10] : tensor<6x10xf32> into tensor<2x3x10xf32>",
     (2, 3, 10), lambda x: x.reshape(2, 3, 10)),
    ("collapse", "%r = tensor.collapse_shape %x [[0, 1]] : tensor<6x10xf32> into tensor<60xf32>", (60,),
     lambda x: x.reshape(60)),
    ("generate", "%c6 = arith.constant 5 : index\n%r = tensor.generate {\n^bb0(%a: index, %b: index):\n"
     "%k = arith.subi %c6, %a : index\n%v = tensor.extract %x[%k, %b] : tensor<6x10xf32>\ntensor.yield %v : f32\n}"
     " : tensor<6x10xf32>",
     (6, 10), lambda x: x[::-1]),
    ("splat", "%c0 = arith.constant 0 : index\n%v = tensor.extract %x[%c0, %c0] : tensor<6x10xf32>\n"
     "%r = tensor.splat %v : tensor<3x5xf32>", (3, 5), lambda x: np.full((3, 5), x[0, 0])),
    ("from_elements", "%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
     "%v = tensor.extract %x[%c0, %c0] : tensor<6x10xf32>\n%w = tensor.extract %x[%c1, %c1] : tensor<6x10xf32>\n"
     "%r = tensor.from_elements %v, %w, %v : tensor<3xf32>", (3,), lambda x: np.array([x[0, 0], x[1, 1], x[0, 0]])),
    ("constant", "%r = arith.constant dense<[[1.0, 2.0], [3.0, -4.5]]> : tensor<2x2xf32>", (2, 2),
     lambda x: np.array([[1, 2], [3, -4.5]])),
    ("transpose", "%e = tensor.empty() : tensor<10x6xf32>\n%r = linalg.transpose ins(%x : tensor<6x10xf32>) "
     "outs(%e : tensor<10x6xf32>) permutation = [1, 0]", (10, 6), lambda x: x.T),
    ("if", "%c0 = arith.constant 0 : index\n%z = arith.constant 0.0 : f32\n"
     "%v = tensor.extract %x[%c0, %c0] : tensor<6x10xf32>\n"
     "%k = arith.cmpf ogt, %v, %z : f32\n%r = scf.if %k -> tensor<6x10xf32> {\nscf.yield %x : tensor<6x10xf32>\n} else {\n"
     + fill("f", (6, 10), "7.0") + "scf.yield %f : tensor<6x10xf32>\n}",
     (6, 10), lambda x: x if x[0, 0] > 0 else np.full((6, 10), 7.0)),
    ("bits", elementwise("r", (6, 10), [("x", "tensor<6x10xf32>", "d0, d1")],
     "%n = arith.bitcast %a0 : f32 to i32\n%m = math.ctpop %n : i32\n%f = arith.sitofp %m : i32 to f32\nlinalg.yield %f : f32"),
     (6, 10), lambda x: np.bitwise_count(x.view(np.uint32))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "body", "shape", "reference"), ONES, ids=[o[0] for o in ONES])
def test_tensor_operations(name, body, shape, reference):
    x = normal(6, 10)
    np.testing.assert_array_equal(one_task(body, {"x": x}, (shape, "f32")), reference(x))


def test_loops_carry_tensors_and_free_them():
    """A loop that makes a tensor in every iteration needs two buffers at a time, and gives all of them back."""
    import resource

    shape = (64, 64)
    step = elementwise(
        "n", shape, [("t", tensor(shape), "d0, d1"), ("t", tensor(shape), "d1, d0")],
        "%h = arith.constant 0.5 : f32\n%s = arith.addf %a0, %a1 : f32\n%q = arith.mulf %s, %h : f32\nlinalg.yield %q : f32",
    )  # fmt: skip
    body = f"""%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c5 = arith.constant 5 : index
%r = scf.for %k = %c0 to %c5 step %c1 iter_args(%t = %x) -> ({tensor(shape)}) {{
{step}scf.yield %n : {tensor(shape)}
}}"""
    program = Rows({"x": (shape, "f32")}, {"y": (shape, "f32")}, [Stage("loop", "y", 64, body, tiled=("x",))])
    executor = HostExecutor(program.compile(), threads=1)
    x, y = normal(*shape), np.zeros(shape, np.float32)
    run_code(executor, [x], [y])
    np.testing.assert_allclose(y, (x + x.T) / 2, rtol=1e-6, atol=1e-6)
    for _ in range(50):
        run_code(executor, [x], [y])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):  # would leak 80 MB a thousand calls
        run_code(executor, [x], [y])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16384  # kilobytes


def test_while_loop():
    body = """%zero = arith.constant 0 : index
%one = arith.constant 1.0 : f32
%limit = arith.constant 100.0 : f32
%start = tensor.extract %x[%zero] : tensor<1xf32>
%last = scf.while (%v = %start) : (f32) -> f32 {
  %more = arith.cmpf olt, %v, %limit : f32
  scf.condition(%more) %v : f32
} do {
^bb0(%v: f32):
  %w = arith.addf %v, %v : f32
  scf.yield %w : f32
}
%r = tensor.from_elements %last : tensor<1xf32>"""
    assert one_task(body, {"x": np.array([3], np.float32)}, ((1,), "f32"))[0] == 192


def convolution(stride: int, size: int) -> tuple[str, int]:
    out = (size + 2 - 3) // stride + 1
    shape = (2, 5, out, out)
    maps = f"n, c, h * {stride} + y, w * {stride} + x"
    body = fill("z", shape, "0.0") + generic(
        "r", "n, f, h, w, c, y, x", "pppprrr",
        [("padded", tensor((2, 3, size + 2, size + 2)), maps), ("k", tensor((5, 3, 3, 3)), "f, c, y, x")],
        ("z", tensor(shape), "n, f, h, w"),
        "%p = arith.mulf %a0, %a1 : f32\n%s = arith.addf %acc, %p : f32\nlinalg.yield %s : f32",
    )  # fmt: skip
    pad = f"""%c = arith.constant 0.0 : f32
%padded = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {{
^bb0(%a: index, %b: index, %e: index, %f: index):
tensor.yield %c : f32
}} : {tensor((2, 3, size, size))} to {tensor((2, 3, size + 2, size + 2))}
"""
    return pad + body, out


@pytest.mark.parametrize(("stride", "size"), [(1, 9), (2, 9), (1, 30), (3, 20)])
def test_convolution(stride, size):
    x, k = normal(2, 3, size, size), normal(5, 3, 3, 3)
    body, out = convolution(stride, size)
    got = one_task(body, {"x": x, "k": k}, ((2, 5, out, out), "f32"))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    want = sum(
        np.einsum("nchw,fc->nfhw", padded[:, :, i : i + size : stride, j : j + size : stride][:, :, :out, :out], k[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_gated_product_computes_its_gate_once():
    """silu(g) * u as the left side of a product, fused into it: taken out again, and right for every remainder."""
    m, k, n = 21, 40, 35
    g, u, w = normal(m, k), normal(m, k), normal(n, k)
    body = fill("z", (m, n), "0.0") + generic(
        "r", "m, n, k", "ppr",
        [("g", tensor((m, k)), "m, k"), ("u", tensor((m, k)), "m, k"), ("w", tensor((n, k)), "n, k")],
        ("z", tensor((m, n)), "m, n"),
        "%one = arith.constant 1.0 : f32\n%neg = arith.negf %a0 : f32\n%e = math.exp %neg : f32\n"
        "%d = arith.addf %e, %one : f32\n"
        "%s = arith.divf %a0, %d : f32\n%h = arith.mulf %s, %a1 : f32\n%p = arith.mulf %h, %a2 : f32\n"
        "%t = arith.addf %acc, %p : f32\nlinalg.yield %t : f32",
    )  # fmt: skip
    got = one_task(body, {"g": g, "u": u, "w": w}, ((m, n), "f32"))
    want = (g / (1 + np.exp(-g.astype(np.float64))) * u) @ w.T
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_product_with_few_columns(columns):
    a, b = normal(40, 130), normal(130, columns)
    got = one_task(product("r", "a", "b", 40, 130, columns, transposed=False), {"a": a, "b": b}, ((40, columns), "f32"))
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


def test_batched_attention():
    """Products with two batch dimensions and their softmax, heads interleaved in memory."""
    b, h, t, d = 2, 3, 19, 8
    q, k, v = (normal(b, t, h, d) for _ in range(3))
    whole, score, row = tensor((b, t, h, d)), tensor((b, h, t, t)), tensor((b, h, t))
    mul = "%p = arith.mulf %a0, %a1 : f32\n%t = arith.addf %acc, %p : f32\nlinalg.yield %t : f32"
    highest = "%t = arith.maximumf %a0, %acc : f32\nlinalg.yield %t : f32"
    total = "%t = arith.addf %a0, %acc : f32\nlinalg.yield %t : f32"
    shifted = "%t = arith.subf %a0, %a1 : f32\n%y = math.exp %t : f32\nlinalg.yield %y : f32"
    scores, rows = "b, h, i, j", "b, h, i"
    body = fill("sz", (b, h, t, t), "0.0")
    operands = [("q", whole, "b, i, h, d"), ("k", whole, "b, j, h, d")]
    body += generic("s", "b, h, i, j, d", "ppppr", operands, ("sz", score, scores), mul)
    body += fill("mz", (b, h, t), "0xFF800000")
    body += generic("m", scores, "pppr", [("s", score, scores)], ("mz", row, rows), highest)
    operands = [("s", score, "d0, d1, d2, d3"), ("m", row, "d0, d1, d2")]
    body += elementwise("e", (b, h, t, t), operands, shifted)
    body += fill("lz", (b, h, t), "0.0")
    body += generic("l", scores, "pppr", [("e", score, scores)], ("lz", row, rows), total)
    body += fill("oz", (b, t, h, d), "0.0")
    operands = [("e", score, scores), ("v", whole, "b, j, h, d")]
    body += generic("o", "b, i, h, d, j", "ppppr", operands, ("oz", whole, "b, i, h, d"), mul)
    operands = [("o", whole, "d0, d1, d2, d3"), ("l", row, "d0, d2, d1")]
    body += elementwise("r", (b, t, h, d), operands, "%t = arith.divf %a0, %a1 : f32\nlinalg.yield %t : f32")
    got = one_task(body, {"q": q, "k": k, "v": v}, ((b, t, h, d), "f32"))
    s = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k)
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_scatter_and_sort_of_the_torch_dialect():
    body = """%c = tensor.empty() : tensor<5x4xf32>
%r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false)
  ins(%u, %k : tensor<7x4xf32>, tensor<7x1xi32>) outs(%x : tensor<5x4xf32>) {
^bb0(%a: f32, %b: f32):
  %s = arith.addf %a, %b : f32
  tm_tensor.yield %s : f32
} -> tensor<5x4xf32>"""
    x, u, i = normal(5, 4), normal(7, 4), RNG.integers(0, 5, (7, 1)).astype(np.int32)
    want = x.astype(np.float64)
    np.add.at(want, i[:, 0], u)
    np.testing.assert_allclose(one_task(body, {"x": x, "u": u, "k": i}, ((5, 4), "f32")), want, rtol=1e-5, atol=1e-6)
    # Two scatters whose updates start from one `tensor.empty`: the second's must outlive the first's.
    first = elementwise("u1", (7, 4), [("u", tensor((7, 4)), "d0, d1")], "%t = arith.negf %a0 : f32\nlinalg.yield %t : f32")
    lowest = fill("u2", (7, 4), "0xFF800000").replace("%u2_e =", "%unused =").replace("outs(%u2_e", "outs(%u1_e")
    scatter = """%{out} = tm_tensor.scatter {{dimension_map = array<i64: 0>}} unique_indices(false)
  ins(%{updates}, %k : tensor<7x4xf32>, tensor<7x1xi32>) outs(%{into} : tensor<5x4xf32>) {{
^bb0(%a: f32, %b: f32):
  {op}
}} -> tensor<5x4xf32>
"""
    body = first + lowest + scatter.format(out="y", updates="u2", into="x", op="tm_tensor.yield %a : f32")
    highest = "%s = arith.maximumf %a, %b : f32\n  tm_tensor.yield %s : f32"
    body += scatter.format(out="r", updates="u1", into="y", op=highest)
    want = x.copy()
    want[i[:, 0]] = -np.inf
    np.maximum.at(want, i[:, 0], -u)
    assert (one_task(body, {"x": x, "u": u, "k": i}, ((5, 4), "f32")) == want).all()
    body = """%r = tm_tensor.sort dimension(1) outs(%x : tensor<5x9xf32>) {
^bb0(%a: f32, %b: f32):
  %k = arith.cmpf ole, %a, %b : f32
  tm_tensor.yield %k : i1
} -> tensor<5x9xf32>"""
    x = normal(5, 9)
    assert (one_task(body, {"x": x}, ((5, 9), "f32")) == np.sort(x, 1)).all()


def test_complex_numbers():
    text = """func.func @program(%x: memref<11xf32>, %y: memref<11xf32>, %out: memref<11xcomplex<f32>>, %arena: memref<1xi8>)
    attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %a = bufferization.to_tensor %x restrict : memref<11xf32> to tensor<11xf32>
    %b = bufferization.to_tensor %y restrict : memref<11xf32> to tensor<11xf32>
    %e = tensor.empty() : tensor<11xcomplex<f32>>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
        iterator_types = ["parallel"]} ins(%a, %b : tensor<11xf32>, tensor<11xf32>) outs(%e : tensor<11xcomplex<f32>>) {
    ^bb0(%p: f32, %q: f32, %o: complex<f32>):
      %c = complex.create %p, %q : complex<f32>
      %d = complex.mul %c, %c : complex<f32>
      %f = complex.exp %d : complex<f32>
      linalg.yield %f : complex<f32>
    } -> tensor<11xcomplex<f32>>
    bufferization.materialize_in_destination %r in restrict writable %out
      : (tensor<11xcomplex<f32>>, memref<11xcomplex<f32>>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "complex", grid = array<i64: 1>, engine = "generic"} : () -> ()
  return
}"""
    x, y, out = normal(11), normal(11), np.zeros(11, np.complex64)
    run_code(HostExecutor(compile_text(text)), [x, y], [out])
    np.testing.assert_allclose(out, np.exp((x + 1j * y.astype(np.float64)) ** 2), rtol=1e-5)
