"""Tile programs with products, as text: what `kitsune-materialize` writes for them. No compiler is imported here."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Layer:
    """One product out = epilogue(A @ B^T) as a task.

    Attributes:
        m, n, k: extents of the whole product; `batch` many of them side by side.
        tile: rows and columns of a tile.
        a: "mk" or "km", b: "nk" or "kn": order of the dimensions in memory.
        dtype: of A and B; out: of the result.
        epilogue: steps, of "bias", "residual", "relu", "gelu", "tanh", "silu", "exp", "both" (a second result in f32),
            "init" (the accumulation starts from the bias), "relu16" (in the result's type), "gated" (times the product of A
            with other weights, which are stored as B is).
        shared_b: all batches use one B.
        swap: B is the first operand of the product.
        heads: A is [m, batch, k].
        precision: of f32 products, as torch names it.
    """

    m: int
    n: int
    k: int
    tile: tuple[int, ...] = (128, 256)
    a: str = "mk"
    b: str = "nk"
    dtype: str = "bf16"
    out: str = "bf16"
    epilogue: tuple[str, ...] = ()
    batch: int = 1
    shared_b: bool = False
    swap: bool = False
    heads: int = 0
    precision: str = "highest"

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of a tile, inside of the product."""
        return min(self.tile[0], self.m), min(self.tile[1], self.n)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles by batch, row and column."""
        tm, tn = self.tiles
        return self.batch, -(-self.m // tm), -(-self.n // tn)

    def shape(self, name: str) -> list[int]:
        """Shape in memory of "a", "b", "by" (the other weights), "bias", "residual", "out" or "second"."""
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        if name == "bias":
            return [self.n]
        letters = {"a": self.a, "b": self.b, "by": self.b}.get(name, "mn")
        dims = [sizes[letter] for letter in letters]
        if name == "a" and self.heads:  # [m, batch, k]: the batch is inside the rows
            return [self.m, self.batch, self.k]
        return dims if self.batch == 1 or (name == "b" and self.shared_b) else [self.batch, *dims]


def tensor(shape: list[int], dtype: str) -> str:
    return "tensor<" + "".join(f"{extent}x" for extent in shape) + dtype + ">"


def memref(shape: list[int], dtype: str) -> str:
    return tensor(shape, dtype).replace("tensor", "memref")


class TaskText:
    """Writes one task. `buffers` maps "a", "b", "bias", "residual", "out", "second" to (SSA name, dtype)."""

    def __init__(self, layer: Layer, name: str, buffers: dict[str, tuple[str, str]]):
        self.layer, self.name, self.buffers = layer, name, buffers
        self.lines: list[str] = []
        self.count = 0
        self.factor = ""

    def emit(self, text: str) -> None:
        self.lines.append("      " + text)

    def fresh(self, text: str) -> str:
        self.count += 1
        self.emit(f"%{self.name}_{self.count} = {text}")
        return f"%{self.name}_{self.count}"

    def offsets(self) -> dict[str, str]:
        """The tile's first row, column and batch."""
        tm, tn = self.layer.tiles
        found = {}
        for letter, argument, tile, extent in (
            ("z", "%z", 1, self.layer.batch),
            ("m", "%i", tm, self.layer.m),
            ("n", "%j", tn, self.layer.n),
        ):
            step = self.fresh(f"arith.constant {tile} : index")
            start = self.fresh(f"arith.muli {argument}, {step} : index")
            if extent % tile:
                last = self.fresh(f"arith.constant {extent - tile} : index")
                start = self.fresh(f"arith.minui {start}, {last} : index")
            found[letter] = start
        return found

    def window(self, name: str, starts: dict[str, str]) -> tuple[str, str, list[int]]:
        """A subview: its name, its memref type, its sizes."""
        layer = self.layer
        (buffer, dtype), shape = self.buffers[name], layer.shape(name)
        letters = {"a": layer.a, "b": layer.b, "by": layer.b, "bias": "n"}.get(name, "mn")
        if name == "a" and layer.heads:
            letters = "mzk"
        elif len(shape) > len(letters):
            letters = "z" + letters
        sizes = {"z": 1, "m": layer.tiles[0], "n": layer.tiles[1], "k": layer.k}
        window = [sizes[letter] for letter in letters]
        if window == shape:
            return buffer, memref(shape, dtype), window
        places = ", ".join(
            starts.get(letter, "0") if sizes[letter] != extent else "0" for letter, extent in zip(letters, shape, strict=True)
        )
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        type_ = memref(window, dtype)[:-1] + f", strided<{strides}, offset: ?>>"
        if not any(starts.get(letter) and sizes[letter] != extent for letter, extent in zip(letters, shape, strict=True)):
            type_ = type_.replace("offset: ?", "offset: 0")
        ones = [1] * len(shape)
        view = self.fresh(f"memref.subview {buffer}[{places}] {window} {ones} : {memref(shape, dtype)} to {type_}")
        return view, type_, window

    def load(self, name: str, starts: dict[str, str]) -> str:
        view, type_, window = self.window(name, starts)
        dtype = self.buffers[name][1]
        return self.fresh(f"bufferization.to_tensor {view} restrict : {type_} to {tensor(window, dtype)}")

    def generic(
        self, maps: list[str], kinds: list[str], ins: list[tuple[str, str]], out: tuple[str, str], body: list[str]
    ) -> str:
        quoted = ", ".join(f'"{kind}"' for kind in kinds)
        inputs = f"ins({', '.join(n for n, _ in ins)} : {', '.join(t for _, t in ins)}) " if ins else ""
        elements = [type_.split("x")[-1].rstrip(">") for _, type_ in [*ins, out]]
        arguments = ", ".join(f"%e{i}: {element}" for i, element in enumerate(elements))
        text = "\n".join("        " + line for line in body)
        return self.fresh(
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{quoted}]}} {inputs}"
            f"outs({out[0]} : {out[1]}) {{\n      ^bb0({arguments}):\n{text}\n      }} -> {out[1]}"
        )

    def text(self, waits: str = "", posts: str = "") -> str:
        """The whole task."""
        layer = self.layer
        starts = self.offsets()
        if waits:
            self.emit(waits)
        tm, tn = layer.tiles
        batched = layer.batch > 1
        shape = [1, tm, tn] if batched else [tm, tn]
        acc = tensor(shape, "f32")
        dims = ["z", "m", "n", "k"] if batched else ["m", "n", "k"]
        loops = "(" + ", ".join(f"d{i}" for i in range(len(dims))) + ")"

        def map_of(letters: str) -> str:
            return f"affine_map<{loops} -> ({', '.join(f'd{dims.index(letter)}' for letter in letters)})>"

        tile_letters = "zmn" if batched else "mn"
        short = "(" + ", ".join(f"d{i}" for i in range(len(shape))) + ")"
        identity = f"affine_map<{short} -> {short}>"
        column = f"affine_map<{short} -> (d{len(shape) - 1})>"
        parallel = ["parallel"] * len(shape)
        empty = self.fresh(f"tensor.empty() : {acc}")
        bias = self.load("bias", starts) if "bias" in self.buffers else ""
        bias_dtype = self.buffers.get("bias", ("", ""))[1]
        widen = [f"%w = arith.extf %e0 : {bias_dtype} to f32"] if bias_dtype != "f32" else []
        if "init" in layer.epilogue:
            source = "%w" if widen else "%e0"
            init = self.generic(
                [column, identity],
                parallel,
                [(bias, tensor([tn], bias_dtype))],
                (empty, acc),
                [*widen, f"linalg.yield {source} : f32"],
            )
        else:
            zero = self.fresh("arith.constant 0.0 : f32")
            init = self.generic([identity], parallel, [], (empty, acc), [f"linalg.yield {zero} : f32"])
        a, b = self.load("a", starts), self.load("b", starts)
        a_letters = "mzk" if layer.heads else ("z" if batched else "") + layer.a
        b_letters = ("z" if batched and not layer.shared_b else "") + layer.b
        sizes = {"z": 1, "m": tm, "n": tn, "k": layer.k}
        ins = [
            (value, tensor([sizes[x] for x in letters], layer.dtype), map_of(letters))
            for value, letters in ((a, a_letters), (b, b_letters))
        ]
        if layer.swap:
            ins.reverse()
        kinds = ["parallel"] * len(shape) + ["reduction"]
        x, y = ("%e0", "%e1") if layer.dtype == "f32" else ("%x", "%y")
        body = [f"{to} = arith.extf {e} : {layer.dtype} to f32" for to, e in ((x, "%e0"), (y, "%e1")) if to != e]
        body += [f"%p = arith.mulf {x}, {y} : f32", "%s = arith.addf %e2, %p : f32", "linalg.yield %s : f32"]
        maps = [ins[0][2], ins[1][2], map_of(tile_letters)]
        value = self.generic(maps, kinds, [i[:2] for i in ins], (init, acc), body)
        if "gated" in layer.epilogue:
            by = self.load("by", starts)
            self.factor = self.generic(maps, kinds, [ins[0][:2], (by, ins[1][1])], (init, acc), body)
        value = self.steps(value, acc, empty, bias, bias_dtype, identity, column, parallel, starts, shape)
        if posts:
            self.emit(posts)
        extents = [extent for extent in layer.grid]
        return "\n".join([
            '    "kitsune.task"() ({', "    ^bb0(%z: index, %i: index, %j: index):", *self.lines,
            '      "kitsune.yield"() {operandSegmentSizes = array<i32: 0>} : () -> ()',
            f'    }}) {{engine = "mma", grid = array<i64: {", ".join(map(str, extents))}>, '
            f'sym_name = "{self.name}"}} : () -> ()',
        ])  # fmt: skip

    def steps(self, value, acc, empty, bias, bias_dtype, identity, column, parallel, starts, shape) -> str:
        """The epilogue and the stores."""
        layer, tn = self.layer, self.layer.tiles[1]
        for step in layer.epilogue:
            if step == "bias":
                widen = [f"%w = arith.extf %e1 : {bias_dtype} to f32"] if bias_dtype != "f32" else []
                body = [*widen, f"%r = arith.addf %e0, {'%w' if widen else '%e1'} : f32", "linalg.yield %r : f32"]
                ins = [(value, acc), (bias, tensor([tn], bias_dtype))]
                value = self.generic([identity, column, identity], parallel, ins, (empty, acc), body)
            elif step == "residual":
                residual, dtype = self.load("residual", starts), self.buffers["residual"][1]
                body = [f"%w = arith.extf %e1 : {dtype} to f32", "%r = arith.addf %e0, %w : f32", "linalg.yield %r : f32"]
                ins = [(value, acc), (residual, tensor(shape, dtype))]
                value = self.generic([identity] * 3, parallel, ins, (empty, acc), body)
            elif step == "gated":
                body = ["%r = arith.mulf %e0, %e1 : f32", "linalg.yield %r : f32"]
                value = self.generic([identity] * 3, parallel, [(value, acc), (self.factor, acc)], (empty, acc), body)
            elif step in ACTIVATIONS:
                value = self.generic(
                    [identity, identity], parallel, [(value, acc)], (empty, acc), [*ACTIVATIONS[step], "linalg.yield %r : f32"]
                )
            elif step == "both":
                self.store("second", value, acc, starts)
        if layer.out != "f32":
            narrow = tensor(shape, layer.out)
            blank = self.fresh(f"tensor.empty() : {narrow}")
            body = [f"%r = arith.truncf %e0 : f32 to {layer.out}", f"linalg.yield %r : {layer.out}"]
            if "relu16" in layer.epilogue:
                zero = self.fresh(f"arith.constant 0.0 : {layer.out}")
                body = [
                    body[0],
                    f"%c = arith.cmpf ugt, %r, {zero} : {layer.out}",
                    f"%q = arith.select %c, %r, {zero} : {layer.out}",
                ]
                body.append(f"linalg.yield %q : {layer.out}")
            value = self.generic([identity, identity], parallel, [(value, acc)], (blank, narrow), body)
            acc = narrow
        self.store("out", value, acc, starts)
        return value

    def store(self, name: str, value: str, type_: str, starts: dict[str, str]) -> None:
        view, view_type, _ = self.window(name, starts)
        self.emit(
            f"bufferization.materialize_in_destination {value} in restrict writable {view} : ({type_}, {view_type}) -> ()"
        )


ACTIVATIONS = {
    "relu": ["%k = arith.constant 0.0 : f32", "%c = arith.cmpf ugt, %e0, %k : f32", "%r = arith.select %c, %e0, %k : f32"],
    "tanh": ["%r = math.tanh %e0 : f32"],
    "exp": ["%r = math.exp %e0 : f32"],
    "gelu": [
        "%k = arith.constant 0.707106769 : f32", "%h = arith.constant 0.5 : f32", "%o = arith.constant 1.0 : f32",
        "%m = arith.mulf %e0, %k : f32", "%f = math.erf %m : f32", "%a = arith.addf %f, %o : f32",
        "%b = arith.mulf %e0, %h : f32", "%r = arith.mulf %a, %b : f32",
    ],
    "silu": [
        "%o = arith.constant 1.0 : f32", "%n = arith.negf %e0 : f32", "%x = math.exp %n : f32",
        "%d = arith.addf %x, %o : f32", "%r = arith.divf %e0, %d : f32",
    ],
}  # fmt: skip


def program(layers: list[Layer], bias_dtype: str = "bf16") -> tuple[str, list[dict], list[dict]]:
    """A program in which layer i + 1 reads layer i's result: (text, inputs, results), each a dict of name, shape, dtype.

    Intermediates are in the arena; each layer waits for the row tiles that it reads.
    """
    inputs, results, lines, arena = [], [], [], 0
    views: list[str] = []
    previous: tuple[str, str] | None = None
    signals: list[str] = []
    for number, layer in enumerate(layers):
        last = number == len(layers) - 1
        buffers: dict[str, tuple[str, str]] = {}

        def argument(kind: str, dtype: str, number: int = number, layer: Layer = layer) -> tuple[str, str]:
            name = f"{kind}{number}"
            (results if kind in ("out", "second") else inputs).append(
                {"name": name, "shape": layer.shape(kind), "dtype": dtype}
            )
            return f"%{name}", dtype

        buffers["a"] = previous or argument("a", layer.dtype)
        buffers["b"] = argument("b", layer.dtype)
        if "gated" in layer.epilogue:
            buffers["by"] = argument("by", layer.dtype)
        if "bias" in layer.epilogue or "init" in layer.epilogue:
            buffers["bias"] = argument("bias", bias_dtype)
        if "residual" in layer.epilogue:
            buffers["residual"] = argument("residual", layer.dtype)
        if "both" in layer.epilogue:
            buffers["second"] = argument("second", "f32")
        if last:
            buffers["out"] = argument("out", layer.out)
        else:
            shape, size = layer.shape("out"), {"f32": 4}.get(layer.out, 2)
            views.append(f"    %at{number} = arith.constant {arena} : index")
            views.append(f"    %h{number} = memref.view %arena[%at{number}][] : memref<ARENAxi8> to {memref(shape, layer.out)}")
            arena += -(-math.prod(shape) * size // 256) * 256
            buffers["out"] = (f"%h{number}", layer.out)
        task, wait, post = TaskText(layer, f"layer{number}", buffers), "", ""
        if number:
            before = layers[number - 1]
            tm, rows = layer.tiles[0], before.tiles[0]
            start = [f"%wt = arith.constant {tm} : index", "%wr = arith.muli %i, %wt : index"]
            if layer.m % tm:
                start += [f"%wl = arith.constant {layer.m - tm} : index", "%ws = arith.minui %wr, %wl : index"]
            first = "%ws" if layer.m % tm else "%wr"
            start += [
                f"%wd = arith.constant {rows} : index",
                f"%wf = arith.divui {first}, %wd : index",
                f"%wn = arith.constant {tm - 1} : index",
            ]
            start += [
                f"%we = arith.addi {first}, %wn : index",
                "%wg = arith.divui %we, %wd : index",
                "%w1 = arith.constant 1 : index",
            ]
            start += ["%wh = arith.addi %wg, %w1 : index"]
            start += [
                f'"kitsune.wait"({signals[-1]}, %wf, %wh) {{count = {before.grid[2]} : i64}} : '
                "(!kitsune.semaphore, index, index) -> ()"
            ]
            wait = "\n      ".join(start)
        if not last:
            signals.append(f"%sem{number}")
            views.append(
                f'    %sem{number} = "kitsune.make_semaphore"() {{slots = {layer.grid[1]} : i64}} : () -> !kitsune.semaphore'
            )
            post = f'"kitsune.post"(%sem{number}, %i) : (!kitsune.semaphore, index) -> ()'
        lines.append(task.text(wait, post))
        previous = buffers["out"]
    declared = ", ".join(f"%{item['name']}: {memref(item['shape'], item['dtype'])}" for item in [*inputs, *results])
    header = (
        f"  func.func @main_p0({declared}, %arena: memref<ARENAxi8>) attributes {{kitsune.program, "
        f"kitsune.arguments = {len(inputs)} : i64, kitsune.results = {len(results)} : i64}} {{"
    )
    text = "\n".join(["module {", header, *views, *lines, "    return", "  }", "}"]).replace("ARENA", str(max(1, arena)))
    return text, inputs, results
