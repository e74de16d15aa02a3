"""Hand-written tile programs: what the executor and the generic engine must get right, and what each computes.

Used by `run_programs.py` (on a GPU) and by `test/unit/test_gpu_executor.py` (everything compiles). A reference gets
the inputs as torch tensors and returns the results in the highest precision that makes sense.
"""

from __future__ import annotations

from test.gpu.cases_atomics import ATOMIC_CASES
from test.gpu.cases_bodies import BODY_CASES
from test.gpu.cases_gathers import GATHER_CASES
from test.gpu.cases_layers import LAYER_CASES
from test.gpu.tile_text import (
    BOTH,
    COLUMN,
    ROW,
    Case,
    buffer,
    fill,
    generic,
    offset,
    post,
    program,
    rows,
    semaphore,
    store,
    store_rows,
    task,
    tensor,
    wait_all,
    wait_one,
    whole,
    yielding,
)

__all__ = ["CASES"]


def _double(*tensors):
    return [t.double() if t.is_floating_point() else t for t in tensors]


def two_stages(m: int = 1000, k: int = 96, n: int = 72, tile: int = 40) -> Case:
    """relu, then a product, tile by tile; the product's rows wait for the relu's."""
    inputs = (((m, k), "f32", "normal"), ((n, k), "f32", "normal"))
    results = (((m, n), "f32"),)
    arena = 4 * m * k
    relu = generic(
        "r",
        [("x", BOTH, (tile, k), "f32")],
        (BOTH, (tile, k), "f32"),
        yielding("%z = arith.constant 0.0 : f32", "%r = arith.maximumf %a0, %z : f32"),
    )
    product = fill("z", "0.0", (tile, n), "f32") + generic(
        "r",
        [
            ("h", "affine_map<(m, n, k) -> (m, k)>", (tile, k), "f32"),
            ("w", "affine_map<(m, n, k) -> (n, k)>", (n, k), "f32"),
        ],
        ("affine_map<(m, n, k) -> (m, n)>", (tile, n), "f32"),
        yielding("%p = arith.mulf %a0, %a1 : f32", "%r = arith.addf %o, %p : f32"),
        ("parallel", "parallel", "reduction"),
        init="z",
    )
    body = buffer("t", 0, (m, k), "f32", arena) + semaphore("s", m // tile)
    load = offset(tile) + rows("x", "x0", (m, k), tile, "f32")
    body += task("relu", [m // tile], load + relu + store_rows("r", "t", (m, k), tile, "f32") + post("s"))
    load = offset(tile) + wait_one("s") + rows("h", "t", (m, k), tile, "f32") + whole("w", "x1", (n, k), "f32")
    body += task("product", [m // tile], load + product + store_rows("r", "y0", (m, n), tile, "f32"))

    def reference(torch, x, w):
        x, w = _double(x, w)
        return (x.relu() @ w.T,)

    return Case("two_stages", program("two_stages", inputs, results, body, arena), inputs, results, reference, 2e-5)


def softmax(dtype: str = "f32", m: int = 300, n: int = 260, tile: int = 16) -> Case:
    """Softmax of rows: three passes over a tile, in f32 inside."""
    last = m - tile
    tiles = -(-m // tile)
    inputs = (((m, n), dtype, "normal"),)
    results = (((m, n), dtype),)
    wide = "%w = arith.extf %a0 : bf16 to f32" if dtype == "bf16" else "%zz = arith.constant 0.0 : f32"
    a = "%w" if dtype == "bf16" else "%a0"
    text = offset(tile, last) + rows("x", "x0", (m, n), tile, dtype)
    text += fill("low", "0xFF800000", (tile,), "f32") + fill("zero", "0.0", (tile,), "f32")
    text += generic(
        "max",
        [("x", BOTH, (tile, n), dtype)],
        (ROW, (tile,), "f32"),
        yielding(wide, f"%r = arith.maximumf %o, {a} : f32"),
        ("parallel", "reduction"),
        init="low",
    )
    text += generic(
        "exp",
        [("x", BOTH, (tile, n), dtype), ("max", ROW, (tile,), "f32")],
        (BOTH, (tile, n), "f32"),
        yielding(wide, f"%d = arith.subf {a}, %a1 : f32", "%r = math.exp %d : f32"),
    )
    text += generic(
        "sum",
        [("exp", BOTH, (tile, n), "f32")],
        (ROW, (tile,), "f32"),
        yielding("%r = arith.addf %o, %a0 : f32"),
        ("parallel", "reduction"),
        init="zero",
    )
    lines = ["%d = arith.divf %a0, %a1 : f32", "%r = arith.truncf %d : f32 to bf16"]
    if dtype == "f32":
        lines = ["%r = arith.divf %a0, %a1 : f32"]
    text += generic(
        "y",
        [("exp", BOTH, (tile, n), "f32"), ("sum", ROW, (tile,), "f32")],
        (BOTH, (tile, n), dtype),
        yielding(*lines, dtype=dtype),
    )
    text += store_rows("y", "y0", (m, n), tile, dtype)
    name = f"softmax_{dtype}"

    def reference(torch, x):
        return (torch.softmax(x.double(), 1),)

    body = task("softmax", [tiles], text)
    return Case(name, program(name, inputs, results, body), inputs, results, reference, 1e-2 if dtype == "bf16" else 1e-5)


def ladder(stages: int = 24, m: int = 4096, n: int = 8, tile: int = 8) -> Case:
    """Many small stages with many tiles: each adds the rows of two producers, one of them from another block's tile."""
    tiles = m // tile
    inputs = (((m, n), "f32", "small"),)
    results = (((m, n), "f32"),)
    arena = 2 * stages * 4 * m * n
    body = ""
    for stage in range(stages):
        body += buffer(f"t{stage}", stage * 4 * m * n, (m, n), "f32", arena) + semaphore(f"s{stage}", tiles)
    for stage in range(stages + 1):
        source = f"t{stage - 1}" if stage else "x0"
        target = f"t{stage}" if stage < stages else "y0"
        text = offset(tile)
        text += f"""    %shift = arith.constant {7 * stage + 1} : index
    %count = arith.constant {tiles} : index
    %moved = arith.addi %i, %shift : index
    %other = arith.remui %moved, %count : index
    %row = arith.muli %other, %tile : index
"""
        if stage:
            text += wait_one(f"s{stage - 1}") + wait_one(f"s{stage - 1}", "other").replace("%one_", "%o_").replace(
                "%next_", "%n_"
            )
        text += rows("a", source, (m, n), tile, "f32") + rows("b", source, (m, n), tile, "f32", "row")
        text += generic(
            "r",
            [("a", BOTH, (tile, n), "f32"), ("b", BOTH, (tile, n), "f32")],
            (BOTH, (tile, n), "f32"),
            yielding("%h = arith.constant 0.5 : f32", "%t = arith.addf %a0, %a1 : f32", "%r = arith.mulf %t, %h : f32"),
        )
        text += store_rows("r", target, (m, n), tile, "f32") + (post(f"s{stage}") if stage < stages else "")
        body += task(f"stage{stage}", [tiles], text)

    def reference(torch, x):
        x = x.double()
        for stage in range(stages + 1):
            x = (x + x.roll(-tile * (7 * stage + 1), 0)) * 0.5
        return (x,)

    return Case("ladder", program("ladder", inputs, results, body, arena), inputs, results, reference)


def layer_norm(m: int = 512, n: int = 384, tile: int = 8) -> Case:
    """LayerNorm of rows with a residual, bf16 in and out, all in one task."""
    inputs = (((m, n), "bf16", "normal"), ((m, n), "bf16", "normal"), ((n,), "bf16", "normal"), ((n,), "bf16", "normal"))
    results = (((m, n), "bf16"),)
    text = offset(tile) + rows("x", "x0", (m, n), tile, "bf16") + rows("s", "x1", (m, n), tile, "bf16")
    text += whole("g", "x2", (n,), "bf16") + whole("b", "x3", (n,), "bf16") + fill("zero", "0.0", (tile,), "f32")
    text += generic(
        "t",
        [("x", BOTH, (tile, n), "bf16"), ("s", BOTH, (tile, n), "bf16")],
        (BOTH, (tile, n), "f32"),
        yielding("%p = arith.extf %a0 : bf16 to f32", "%q = arith.extf %a1 : bf16 to f32", "%r = arith.addf %p, %q : f32"),
    )
    total = yielding("%r = arith.addf %o, %a0 : f32")
    text += generic("sum", [("t", BOTH, (tile, n), "f32")], (ROW, (tile,), "f32"), total, ("parallel", "reduction"), "zero")
    text += generic(
        "mean",
        [("sum", "affine_map<(d0) -> (d0)>", (tile,), "f32")],
        ("affine_map<(d0) -> (d0)>", (tile,), "f32"),
        yielding(f"%n = arith.constant {float(n)} : f32", "%r = arith.divf %a0, %n : f32"),
        ("parallel",),
    )
    text += generic(
        "var",
        [("t", BOTH, (tile, n), "f32"), ("mean", ROW, (tile,), "f32")],
        (ROW, (tile,), "f32"),
        yielding("%d = arith.subf %a0, %a1 : f32", "%q = arith.mulf %d, %d : f32", "%r = arith.addf %o, %q : f32"),
        ("parallel", "reduction"),
        "zero",
    )
    scale = [
        f"%n = arith.constant {float(n)} : f32",
        "%eps = arith.constant 1.0e-5 : f32",
        "%v = arith.divf %a2, %n : f32",
        "%ve = arith.addf %v, %eps : f32",
        "%is = math.rsqrt %ve : f32",
        "%d = arith.subf %a0, %a1 : f32",
        "%dn = arith.mulf %d, %is : f32",
        "%gw = arith.extf %a3 : bf16 to f32",
        "%bw = arith.extf %a4 : bf16 to f32",
        "%dg = arith.mulf %dn, %gw : f32",
        "%y = arith.addf %dg, %bw : f32",
        "%r = arith.truncf %y : f32 to bf16",
    ]
    text += generic(
        "y",
        [
            ("t", BOTH, (tile, n), "f32"),
            ("mean", ROW, (tile,), "f32"),
            ("var", ROW, (tile,), "f32"),
            ("g", COLUMN, (n,), "bf16"),
            ("b", COLUMN, (n,), "bf16"),
        ],
        (BOTH, (tile, n), "bf16"),
        yielding(*scale, dtype="bf16"),
    )
    text += store_rows("y", "y0", (m, n), tile, "bf16")

    def reference(torch, x, s, g, b):
        x, s, g, b = _double(x, s, g, b)
        return (torch.nn.functional.layer_norm(x + s, (n,), g, b, 1e-5),)

    body = task("norm", [m // tile], text)
    return Case("layer_norm", program("layer_norm", inputs, results, body), inputs, results, reference, 1e-2)


def gather_scatter(e: int = 777, v: int = 120, n: int = 24, tile: int = 32) -> Case:
    """Gather rows by index, join them with others, and add the result into rows given by another index, by atomics."""
    last, tiles = e - tile, -(-e // tile)
    inputs = (((v, n), "f32", "normal"), ((e,), "i64", f"index {v}"), ((e,), "i64", f"index {v}"), ((e, n), "f32", "normal"))
    results = (((v, 2 * n), "f32"), ((e, 2 * n), "f32"))
    body = semaphore("zeroed", 1) + semaphore("joined", tiles)
    zero = fill("z", "0.0", (v, 2 * n), "f32") + store("z", "y0", (v, 2 * n), "f32")
    body += task("zero", [1], zero + post("zeroed"))
    text = offset(tile, last) + whole("t", "x0", (v, n), "f32")
    text += f"""    %iv = memref.subview %x1[%off] [{tile}] [1] : memref<{e}xi64> to memref<{tile}xi64, strided<[1], offset: ?>>
    %it = bufferization.to_tensor %iv restrict : memref<{tile}xi64, strided<[1], offset: ?>> to tensor<{tile}xi64>
"""
    text += rows("own", "x3", (e, n), tile, "f32")
    pick = [
        "%c = linalg.index 1 : index",
        "%at = arith.index_cast %a0 : i64 to index",
        f"%r = tensor.extract %t[%at, %c] : tensor<{v}x{n}xf32>",
    ]
    text += generic("g", [("it", ROW, (tile,), "i64")], (BOTH, (tile, n), "f32"), yielding(*pick))
    pair = tensor((tile, n), "f32")
    text += f"    %cat = tensor.concat dim(1) %own, %g : ({pair}, {pair}) -> {tensor((tile, 2 * n), 'f32')}\n"
    text += store_rows("cat", "y1", (e, 2 * n), tile, "f32") + post("joined")
    body += task("join", [tiles], text)
    # The ragged tile would be added twice: the scatter's grid has one tile for every 7 rows, which divides.
    add = (
        wait_all("zeroed", 1)
        + wait_all("joined", tiles)
        + f"""    %lo = arith.constant 0 : index
    %one = arith.constant 1 : index
    %seven = arith.constant 7 : index
    %width = arith.constant {2 * n} : index
    %base = arith.muli %i, %seven : index
    scf.for %r = %lo to %seven step %one {{
      %row = arith.addi %base, %r : index
      %to = memref.load %x2[%row] : memref<{e}xi64>
      %tx = arith.index_cast %to : i64 to index
      scf.for %c = %lo to %width step %one {{
        %value = memref.load %y1[%row, %c] : memref<{e}x{2 * n}xf32>
        %old = memref.atomic_rmw addf %value, %y0[%tx, %c] : (f32, memref<{v}x{2 * n}xf32>) -> f32
      }}
    }}
"""
    )
    body += task("add", [e // 7], add)

    def reference(torch, table, source, target, own):
        table, own = _double(table, own)
        joined = torch.cat([own, table[source]], 1)
        return torch.zeros(v, 2 * n, dtype=torch.float64, device=own.device).index_add(0, target, joined), joined

    return Case("gather_scatter", program("gather_scatter", inputs, results, body), inputs, results, reference)


CASES = (
    two_stages,
    softmax,
    lambda: softmax("bf16"),
    ladder,
    layer_norm,
    gather_scatter,
    *BODY_CASES,
    *ATOMIC_CASES,
    *LAYER_CASES,
    *GATHER_CASES,
)
