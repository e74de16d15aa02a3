"""Tile programs for what a task's body may hold: control flow, many dtypes, convolution, sorting, scans, big temporaries."""

from __future__ import annotations

from test.gpu.tile_text import (
    BOTH,
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
    whole,
    yielding,
)

__all__ = ["BODY_CASES"]

ONE = "affine_map<(d0) -> (d0)>"

# name -> (MLIR op, torch function, filling)
FLOAT_FUNCTIONS = {
    "exp": ("math.exp", "exp", "normal"),
    "log": ("math.log", "log", "positive"),
    "sqrt": ("math.sqrt", "sqrt", "positive"),
    "rsqrt": ("math.rsqrt", "rsqrt", "positive"),
    "tanh": ("math.tanh", "tanh", "normal"),
    "erf": ("math.erf", "erf", "normal"),
    "sin": ("math.sin", "sin", "normal"),
    "cos": ("math.cos", "cos", "normal"),
    "atan": ("math.atan", "atan", "normal"),
    "log1p": ("math.log1p", "log1p", "positive"),
    "expm1": ("math.expm1", "expm1", "normal"),
    "exp2": ("math.exp2", "exp2", "normal"),
    "log2": ("math.log2", "log2", "positive"),
    "abs": ("math.absf", "abs", "normal"),
    "ceil": ("math.ceil", "ceil", "normal"),
    "floor": ("math.floor", "floor", "normal"),
    "trunc": ("math.trunc", "trunc", "normal"),
    "roundeven": ("math.roundeven", "round", "normal"),
}


def functions(dtype: str, shape=(67, 33)) -> Case:
    """Every function of one variable, one task each, and products, quotients and comparisons with a second operand."""
    names = list(FLOAT_FUNCTIONS)
    inputs = ((shape, dtype, "normal"), (shape, dtype, "positive"))
    results = tuple((shape, dtype) for _ in range(len(names) + 2))
    body = ""
    for number, name in enumerate(names):
        op, _, filling = FLOAT_FUNCTIONS[name]
        text = whole("x", "x1" if filling == "positive" else "x0", shape, dtype)
        text += generic(
            "y", [("x", BOTH, shape, dtype)], (BOTH, shape, dtype), yielding(f"%r = {op} %a0 : {dtype}", dtype=dtype)
        )
        body += task(name, [1], text + store("y", f"y{number}", shape, dtype))
    pair = whole("a", "x0", shape, dtype) + whole("b", "x1", shape, dtype)
    operands = [("a", BOTH, shape, dtype), ("b", BOTH, shape, dtype)]
    arithmetic = [
        f"%q = arith.divf %a0, %a1 : {dtype}",
        f"%p = arith.mulf %q, %a0 : {dtype}",
        f"%n = arith.negf %p : {dtype}",
        f"%mx = arith.maximumf %n, %a1 : {dtype}",
        f"%mn = arith.minnumf %mx, %a1 : {dtype}",
        f"%c = arith.cmpf olt, %a0, %a1 : {dtype}",
        f"%s = arith.subf %mn, %a0 : {dtype}",
        f"%r = arith.select %c, %s, %p : {dtype}",
    ]
    text = pair + generic("y", operands, (BOTH, shape, dtype), yielding(*arithmetic, dtype=dtype))
    body += task("arithmetic", [1], text + store("y", f"y{len(names)}", shape, dtype))
    powers = [f"%r = math.powf %a1, %a0 : {dtype}"]
    text = pair + generic("y", operands, (BOTH, shape, dtype), yielding(*powers, dtype=dtype))
    body += task("power", [1], text + store("y", f"y{len(names) + 1}", shape, dtype))

    def reference(torch, x, p):
        x, p = x.double(), p.double()
        found = []
        for name in names:
            _, function, filling = FLOAT_FUNCTIONS[name]
            found.append(getattr(torch, function)(p if filling == "positive" else x))
        product = x / p * x
        limited = torch.minimum(torch.maximum(-product, p), p)
        return (*found, torch.where(x < p, limited - x, product), p**x)

    name = f"functions_{dtype}"
    tolerance = {"f64": 1e-12, "f32": 2e-6, "bf16": 2e-2, "f16": 4e-3}[dtype]
    return Case(name, program(name, inputs, results, body), inputs, results, reference, tolerance)


def integers(n: int = 1000) -> Case:
    """Integer arithmetic of several widths, conversions, and a result of booleans."""
    inputs = tuple(((n,), t, "small") for t in ("i64", "i32", "i8")) + (((n,), "i1", "bool"), ((n,), "f32", "normal"))
    results = (((n,), "i64"), ((n,), "i32"), ((n,), "i8"), ((n,), "i1"), ((n,), "i64"), ((n,), "f16"))
    loads = "".join(whole(f"v{k}", f"x{k}", (n,), t) for k, (_, t, _) in enumerate(inputs))
    operands = [(f"v{k}", ONE, (n,), t) for k, (_, t, _) in enumerate(inputs)]
    bodies = (
        ("i64", ["%w = arith.extsi %a1 : i32 to i64", "%p = arith.muli %a0, %w : i64", "%r = arith.addi %p, %a0 : i64"]),
        (
            "i32",
            [
                "%t = arith.constant 3 : i32",
                "%d = arith.floordivsi %a1, %t : i32",
                "%m = arith.remsi %a1, %t : i32",
                "%h = arith.shli %d, %t : i32",
                "%r = arith.xori %h, %m : i32",
            ],
        ),
        ("i8", ["%m = arith.maxsi %a2, %a2 : i8", "%r = arith.addi %m, %a2 : i8"]),
        ("i1", ["%z = arith.constant 0 : i32", "%c = arith.cmpi sgt, %a1, %z : i32", "%r = arith.andi %c, %a3 : i1"]),
        ("i64", ["%t = arith.fptosi %a4 : f32 to i64", "%e = arith.extui %a3 : i1 to i64", "%r = arith.addi %t, %e : i64"]),
        ("f16", ["%f = arith.sitofp %a0 : i64 to f16", "%g = arith.truncf %a4 : f32 to f16", "%r = arith.mulf %f, %g : f16"]),
    )
    body = ""
    for number, (dtype, lines) in enumerate(bodies):
        text = loads + generic("y", operands, (ONE, (n,), dtype), yielding(*lines, dtype=dtype), ("parallel",))
        body += task(f"out{number}", [1], text + store("y", f"y{number}", (n,), dtype))

    def reference(torch, a, b, c, d, f):
        third = torch.div(b, 3, rounding_mode="floor")
        return (
            a * b.long() + a,
            (third << 3) ^ torch.fmod(b, 3),
            c + c,
            (b > 0) & d,
            f.trunc().long() + d.long(),
            a.double() * f.half().double(),
        )

    return Case("integers", program("integers", inputs, results, body), inputs, results, reference, 1e-3)


def convolution() -> Case:
    """Padding, a 3 x 3 convolution with stride 2, bias, and 2 x 2 max pooling, in NCHW."""
    shape, padded, weight, out, pooled = (2, 5, 14, 14), (2, 5, 16, 16), (6, 5, 3, 3), (2, 6, 7, 7), (2, 6, 6, 6)
    inputs = ((shape, "f32", "normal"), (weight, "f32", "normal"), ((6,), "f32", "normal"))
    results = ((out, "f32"), (pooled, "f32"))
    text = whole("x", "x0", shape, "f32") + whole("w", "x1", weight, "f32") + whole("b", "x2", (6,), "f32")
    text += f"""    %zero = arith.constant 0.0 : f32
    %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {{
    ^bb0(%p0: index, %p1: index, %p2: index, %p3: index):
      tensor.yield %zero : f32
    }} : {tensor(shape, "f32")} to {tensor(padded, "f32")}
"""
    four = "affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>"
    bias = [("b", "affine_map<(d0, d1, d2, d3) -> (d1)>", (6,), "f32")]
    text += generic("start", bias, (four, out, "f32"), "      linalg.yield %a0 : f32", ("parallel",) * 4)
    text += f"""    %c = linalg.conv_2d_nchw_fchw {{dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}}
      ins(%p, %w : {tensor(padded, "f32")}, {tensor(weight, "f32")}) outs(%start : {tensor(out, "f32")}) -> {tensor(out, "f32")}
"""
    text += fill("low", "0xFF800000", pooled, "f32") + "    %window = tensor.empty() : tensor<2x2xf32>\n"
    text += f"""    %m = linalg.pooling_nchw_max {{dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}}
      ins(%c, %window : {tensor(out, "f32")}, tensor<2x2xf32>) outs(%low : {tensor(pooled, "f32")}) -> {tensor(pooled, "f32")}
"""
    text += store("c", "y0", out, "f32") + store("m", "y1", pooled, "f32")

    def reference(torch, x, w, b):
        y = torch.nn.functional.conv2d(x.double(), w.double(), b.double(), stride=2, padding=1)
        return y, torch.nn.functional.max_pool2d(y, 2, 1)

    body = task("conv", [1], text)
    return Case("convolution", program("convolution", inputs, results, body), inputs, results, reference)


def sort_and_scan(m: int = 12, n: int = 40) -> Case:
    """tm_tensor: a sort with its indices, an exclusive sum, and a scatter with repeated rows."""
    inputs = (((m, n), "f32", "normal"), ((m, 1), "i32", f"index {m}"), ((m, n), "f32", "normal"))
    results = (((m, n), "f32"), ((m, n), "i64"), ((m, n), "f32"), ((m, n), "f32"))
    square, indices = tensor((m, n), "f32"), tensor((m, n), "i64")
    text = whole("x", "x0", (m, n), "f32") + generic(
        "at",
        [],
        (BOTH, (m, n), "i64"),
        yielding("%c = linalg.index 1 : index", "%r = arith.index_cast %c : index to i64", dtype="i64"),
    )
    text += f"""    %s:2 = tm_tensor.sort dimension(1) outs(%x, %at : {square}, {indices}) {{
    ^bb0(%a: f32, %b: f32, %c: i64, %d: i64):
      %le = arith.cmpf ole, %a, %b : f32
      tm_tensor.yield %le : i1
    }} -> {square}, {indices}
"""
    text += store("s#0", "y0", (m, n), "f32") + store("s#1", "y1", (m, n), "i64")
    body = task("sort", [1], text)
    text = whole("x", "x0", (m, n), "f32") + fill("out", "0.0", (m, n), "f32") + fill("acc", "0.0", (m,), "f32")
    text += f"""    %s:2 = tm_tensor.scan dimension(1) inclusive(true)
      ins(%x : {square}) outs(%out, %acc : {square}, {tensor((m,), "f32")}) {{
    ^bb0(%a: f32, %b: f32):
      %t = arith.addf %a, %b : f32
      tm_tensor.yield %t : f32
    }} -> {square}, {tensor((m,), "f32")}
"""
    body += task("scan", [1], text + store("s#0", "y2", (m, n), "f32"))
    text = whole("x", "x0", (m, n), "f32") + whole("rows", "x1", (m, 1), "i32") + whole("u", "x2", (m, n), "f32")
    text += f"""    %s = tm_tensor.scatter {{dimension_map = array<i64: 0>}} unique_indices(false)
      ins(%u, %rows : {square}, {tensor((m, 1), "i32")}) outs(%x : {square}) {{
    ^bb0(%a: f32, %b: f32):
      %t = arith.addf %b, %a : f32
      tm_tensor.yield %t : f32
    }} -> {square}
"""
    body += task("scatter", [1], text + store("s", "y3", (m, n), "f32"))

    def reference(torch, x, at, update):
        x, update = x.double(), update.double()
        values, order = torch.sort(x, dim=1, stable=True)
        return values, order, x.cumsum(1), x.index_add(0, at[:, 0].long(), update)

    return Case("sort_and_scan", program("sort_and_scan", inputs, results, body), inputs, results, reference)


def reductions(m: int = 300, n: int = 250) -> Case:
    """Long reductions to few values: a whole sum, column sums, the place of the largest, a product of integers' bits."""
    inputs = (((m, n), "f32", "normal"), ((m, n), "i32", "small"))
    results = (((1,), "f32"), ((n,), "f32"), ((m,), "i64"), ((m,), "i32"), ((n,), "i1"))
    x, k = ("x", BOTH, (m, n), "f32"), ("k", BOTH, (m, n), "i32")
    load_x, load_k = whole("x", "x0", (m, n), "f32"), whole("k", "x1", (m, n), "i32")
    to_one = "affine_map<(d0, d1) -> (0)>"
    summed = yielding("%r = arith.addf %o, %a0 : f32")
    text = load_x + fill("z", "0.0", (1,), "f32")
    text += generic("s", [x], (to_one, (1,), "f32"), summed, ("reduction", "reduction"), "z")
    body = task("sum", [1], text + store("s", "y0", (1,), "f32"))
    text = load_x + fill("z", "0.0", (n,), "f32")
    text += generic("s", [x], ("affine_map<(d0, d1) -> (d1)>", (n,), "f32"), summed, ("reduction", "parallel"), "z")
    body += task("columns", [1], text + store("s", "y1", (n,), "f32"))
    pair, words = tensor((m,), "f32"), tensor((m,), "i64")
    text = load_x + fill("low", "0xFF800000", (m,), "f32") + fill("none", "0", (m,), "i64")
    text += f"""    %s:2 = linalg.generic {{indexing_maps = [{BOTH}, {ROW}, {ROW}], iterator_types = ["parallel", "reduction"]}}
      ins(%x : {tensor((m, n), "f32")}) outs(%low, %none : {pair}, {words}) {{
    ^bb0(%a: f32, %best: f32, %at_best: i64):
      %c = linalg.index 1 : index
      %at = arith.index_cast %c : index to i64
      %larger = arith.cmpf ogt, %a, %best : f32
      %v = arith.select %larger, %a, %best : f32
      %p = arith.select %larger, %at, %at_best : i64
      linalg.yield %v, %p : f32, i64
    }} -> ({pair}, {words})
"""
    body += task("argmax", [1], text + store("s#1", "y2", (m,), "i64"))
    text = load_k + fill("z", "0", (m,), "i32")
    most = yielding("%r = arith.maxsi %o, %a0 : i32", dtype="i32")
    text += generic("s", [k], (ROW, (m,), "i32"), most, ("parallel", "reduction"), "z")
    body += task("most", [1], text + store("s", "y3", (m,), "i32"))
    text = load_k + fill("z", "true", (n,), "i1")
    bound = yielding(
        "%e = arith.constant 9 : i32", "%c = arith.cmpi slt, %a0, %e : i32", "%r = arith.andi %o, %c : i1", dtype="i1"
    )
    text += generic("s", [k], ("affine_map<(d0, d1) -> (d1)>", (n,), "i1"), bound, ("reduction", "parallel"), "z")
    body += task("all", [1], text + store("s", "y4", (n,), "i1"))

    def reference(torch, x, k):
        x = x.double()
        return x.sum().reshape(1), x.sum(0), x.argmax(1), k.amax(1).clamp(min=0), (k < 9).all(0)

    return Case("reductions", program("reductions", inputs, results, body), inputs, results, reference)


def control_flow(shape=(24, 20)) -> Case:
    """A loop that carries a tensor, a while with a condition on data, and branches, with linalg inside each."""
    square = tensor(shape, "f32")
    inputs = ((shape, "f32", "normal"), ((1,), "i64", "index 5"))
    results = ((shape, "f32"), (shape, "f32"))
    small_parts = yielding("%h = arith.constant 0.5 : f32", "%r = arith.mulf %a0, %h : f32")
    added = yielding("%r = arith.addf %a0, %a1 : f32")
    text = whole("x", "x0", shape, "f32") + whole("n", "x1", (1,), "i64")
    text += """    %lo = arith.constant 0 : index
    %one = arith.constant 1 : index
    %five = arith.constant 5 : index
"""
    text += f"    %l = scf.for %k = %lo to %five step %one iter_args(%t = %x) -> ({square}) {{\n"
    text += generic("h", [("t", BOTH, shape, "f32")], (BOTH, shape, "f32"), small_parts)
    text += generic("u", [("h", BOTH, shape, "f32"), ("x", BOTH, shape, "f32")], (BOTH, shape, "f32"), added)
    text += f"      scf.yield %u : {square}\n    }}\n"
    text += store("l", "y0", shape, "f32")
    text += f"""    %count = tensor.extract %n[%lo] : tensor<1xi64>
    %zero = arith.constant 0 : i64
    %step = arith.constant 1 : i64
    %w:2 = scf.while (%k = %zero, %t = %x) : (i64, {square}) -> (i64, {square}) {{
      %more = arith.cmpi slt, %k, %count : i64
      scf.condition(%more) %k, %t : i64, {square}
    }} do {{
    ^bb0(%k: i64, %t: {square}):
      %next = arith.addi %k, %step : i64
      %two = arith.constant 2 : i64
      %rest = arith.remsi %k, %two : i64
      %odd = arith.cmpi eq, %rest, %step : i64
      %v = scf.if %odd -> ({square}) {{
"""
    text += generic("g", [("t", BOTH, shape, "f32")], (BOTH, shape, "f32"), small_parts)
    text += f"      scf.yield %g : {square}\n      }} else {{\n"
    text += generic("g", [("t", BOTH, shape, "f32"), ("x", BOTH, shape, "f32")], (BOTH, shape, "f32"), added)
    text += f"      scf.yield %g : {square}\n      }}\n      scf.yield %next, %v : i64, {square}\n    }}\n"
    text += store("w#1", "y1", shape, "f32")

    def reference(torch, x, count):
        x = x.double()
        first, second = x, x
        for _ in range(5):
            first = first * 0.5 + x
        for k in range(int(count)):
            second = second * 0.5 if k % 2 else second + x
        return first, second

    body = task("flow", [1], text)
    return Case("control_flow", program("control_flow", inputs, results, body), inputs, results, reference)


def big_temporaries(m: int = 700, n: int = 2048, tile: int = 128) -> Case:
    """Intermediates of 1 MB a block, which go to scratch, beside one that stays in shared memory; ragged tiles."""
    last, tiles = m - tile, -(-m // tile)
    inputs = (((m, n), "f32", "normal"),)
    results = (((m, n), "f32"),)
    text = offset(tile, last) + rows("x", "x0", (m, n), tile, "f32") + fill("z", "0.0", (tile,), "f32")
    text += generic("e", [("x", BOTH, (tile, n), "f32")], (BOTH, (tile, n), "f32"), yielding("%r = math.exp %a0 : f32"))
    total = yielding("%r = arith.addf %o, %a0 : f32")
    text += generic("s", [("e", BOTH, (tile, n), "f32")], (ROW, (tile,), "f32"), total, ("parallel", "reduction"), "z")
    # Reversed columns: no element-wise fusion can get rid of the intermediate.
    operands = [("e", BOTH, (tile, n), "f32"), ("s", ROW, (tile,), "f32")]
    text += generic("q", operands, (BOTH, (tile, n), "f32"), yielding("%r = arith.divf %a0, %a1 : f32"))
    last_column = f"%last = arith.constant {n - 1} : index"
    flipped = [
        "%i0 = linalg.index 0 : index",
        "%i1 = linalg.index 1 : index",
        last_column,
        "%from = arith.subi %last, %i1 : index",
        f"%r = tensor.extract %q[%i0, %from] : {tensor((tile, n), 'f32')}",
    ]
    text += generic("y", [], (BOTH, (tile, n), "f32"), yielding(*flipped))
    text += store_rows("y", "y0", (m, n), tile, "f32")

    def reference(torch, x):
        return (torch.softmax(x.double(), 1).flip(1),)

    body = task("flip", [tiles], text)
    return Case("big_temporaries", program("big_temporaries", inputs, results, body), inputs, results, reference)


def everybody_waits(m: int = 2048, n: int = 16, tile: int = 4, stages: int = 6) -> Case:
    """Stages that wait for all tiles of the stage before (ranges of slots, and one slot with many posts), several times."""
    tiles = m // tile
    inputs = (((m, n), "f32", "small"),)
    results = (((m, n), "f32"),)
    arena = stages * 4 * m * n
    body = ""
    for stage in range(stages):
        body += buffer(f"t{stage}", stage * 4 * m * n, (m, n), "f32", arena)
        body += semaphore(f"s{stage}", tiles if stage % 2 else 1)
    for stage in range(stages + 1):
        source = f"t{stage - 1}" if stage else "x0"
        text = offset(tile)
        if stage:
            text += wait_all(f"s{stage - 1}", *((tiles, 1) if (stage - 1) % 2 else (1, tiles)))
        # Row i of the result comes from row m - 1 - i: from the tile that was made last.
        text += whole("x", source, (m, n), "f32")
        lines = [
            "%i0 = linalg.index 0 : index",
            "%i1 = linalg.index 1 : index",
            "%g = arith.addi %i0, %off : index",
            f"%top = arith.constant {m - 1} : index",
            "%from = arith.subi %top, %g : index",
            f"%v = tensor.extract %x[%from, %i1] : {tensor((m, n), 'f32')}",
            f"%k = arith.constant {float(stage)} : f32",
            "%r = arith.addf %v, %k : f32",
        ]
        text += generic("y", [], (BOTH, (tile, n), "f32"), yielding(*lines))
        text += store_rows("y", f"t{stage}" if stage < stages else "y0", (m, n), tile, "f32")
        if stage < stages:
            slot = "i" if stage % 2 else "first"
            text += ("" if stage % 2 else "    %first = arith.constant 0 : index\n") + post(f"s{stage}", slot)
        body += task(f"stage{stage}", [tiles], text)

    def reference(torch, x):
        x = x.double()
        for stage in range(stages + 1):
            x = x.flip(0) + stage
        return (x,)

    return Case("everybody_waits", program("everybody_waits", inputs, results, body, arena), inputs, results, reference)


BODY_CASES = (
    *(lambda dtype=dtype: functions(dtype) for dtype in ("f32", "f64", "bf16", "f16")),
    integers,
    convolution,
    sort_and_scan,
    reductions,
    control_flow,
    big_temporaries,
    everybody_waits,
)
