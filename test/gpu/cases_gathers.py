"""Gathers that wait for the rows which their indices name: several sizes, engines and types of indices."""

from __future__ import annotations

from test.gpu.tile_text import (
    BOTH,
    ROW,
    Case,
    buffer,
    generic,
    offset,
    post,
    program,
    rows,
    semaphore,
    store_rows,
    task,
    wait_all,
    whole,
    yielding,
)

__all__ = ["GATHER_CASES", "gather_rows"]


def gather_rows(
    made: tuple[int, int] = (1000, 7),
    read: tuple[int, int] = (777, 32),
    columns: int = 33,
    index: str = "i64",
    engine: str = "simt",
    pairs: bool = False,
    waits: str = "rows",
) -> Case:
    """Rows doubled, then gathered at indices, of which negative ones count from the end, times a number for each row.

    Args:
        made, read: rows of each stage, and those of a tile.
        pairs: two indices a row, both gathered: elements 2 r and 2 r + 1 of the indices.
        waits: for the `rows` that the indices name, or for `all`.
    """
    (v, first), (e, second) = made, read
    slots, tiles = -(-v // first), -(-e // second)
    width = 2 if pairs else 1
    inputs = (
        ((v, columns), "f32", "normal"),
        ((e, width) if pairs else (e,), index, f"signed {v}"),
        ((e,), "f32", "normal"),
    )
    results = (((e, columns), "f32"),)
    arena = 4 * v * columns
    body = buffer("h", 0, (v, columns), "f32", arena) + semaphore("s", slots)
    text = offset(first, v - first) + rows("x", "x0", (v, columns), first, "f32")
    double = yielding("%r = arith.addf %a0, %a0 : f32")
    text += generic("d", [("x", BOTH, (first, columns), "f32")], (BOTH, (first, columns), "f32"), double)
    body += task("double", [slots], text + store_rows("d", "h", (v, columns), first, "f32") + post("s"), engine)
    memory = f"memref<{e}x{width}x{index}>" if pairs else f"memref<{e}x{index}>"
    text = offset(second, e - second)
    if waits == "rows":
        text += f"""    %width = arith.constant {width} : index
    %many = arith.constant {width * second} : index
    %begin = arith.muli %off, %width : index
    %end = arith.addi %begin, %many : index
    "kitsune.wait_rows"(%s, %begin, %end, %x1) {{count = 1 : i64, rows = {first} : i64, extent = {v} : i64}}
      : (!kitsune.semaphore, index, index, {memory}) -> ()
"""
    else:
        text += wait_all("s", slots)
    text += whole("t", "h", (v, columns), "f32")
    shape, sizes = (f"[{second}, {width}]", f"{second}x{width}") if pairs else (f"[{second}]", f"{second}")
    place, strides, layout = ("[%off, 0]", "[1, 1]", f"[{width}, 1]") if pairs else ("[%off]", "[1]", "[1]")
    window = f"memref<{sizes}x{index}, strided<{layout}, offset: ?>>"
    text += f"""    %iv = memref.subview %x1{place} {shape} {strides} : {memory} to {window}
    %it = bufferization.to_tensor %iv restrict : {window} to tensor<{sizes}x{index}>
    %fv = memref.subview %x2[%off] [{second}] [1] : memref<{e}xf32> to memref<{second}xf32, strided<[1], offset: ?>>
    %ft = bufferization.to_tensor %fv restrict : memref<{second}xf32, strided<[1], offset: ?>> to tensor<{second}xf32>
"""
    names = ["it"]
    if pairs:
        names = ["i0", "i1"]
        for number, name in enumerate(names):
            text += f"    %{name} = tensor.extract_slice %it[0, {number}] [{second}, 1] [1, 1] : "
            text += f"tensor<{sizes}x{index}> to tensor<{second}x{index}>\n"
    pick = [f"%zero = arith.constant 0 : {index}", f"%rows = arith.constant {v} : {index}", "%c = linalg.index 1 : index"]
    for n in range(len(names)):
        pick += [
            f"%n{n} = arith.cmpi slt, %a{n}, %zero : {index}",
            f"%p{n} = arith.addi %a{n}, %rows : {index}",
            f"%s{n} = arith.select %n{n}, %p{n}, %a{n} : {index}",
            f"%at{n} = arith.index_cast %s{n} : {index} to index",
            f"%v{n} = tensor.extract %t[%at{n}, %c] : tensor<{v}x{columns}xf32>",
        ]
    pick.append("%w = arith.addf %v0, %v1 : f32" if pairs else "%w = arith.addf %v0, %v0 : f32")
    pick.append(f"%r = arith.mulf %w, %a{len(names)} : f32")
    ins = [*((name, ROW, (second,), index) for name in names), ("ft", ROW, (second,), "f32")]
    text += generic("g", ins, (BOTH, (second, columns), "f32"), yielding(*pick))
    body += task("gather", [tiles], text + store_rows("g", "y0", (e, columns), second, "f32"), engine)

    def reference(torch, x, indices, factors):
        found = 2 * x.double()[indices.long()]
        return ((found.sum(1) if pairs else 2 * found) * factors.double()[:, None],)

    name = f"gather_{waits}_{v}_{first}_{e}_{second}_{columns}_{index}_{engine}{'_pairs' if pairs else ''}"
    return Case(name, program(name, inputs, results, body, arena), inputs, results, reference)


GATHER_CASES = (
    gather_rows,
    lambda: gather_rows((129, 1), (7, 1), 1),
    lambda: gather_rows((1, 1), (1000, 129), 7, "i32"),
    lambda: gather_rows((1000, 129), (129, 7), 129, "i32"),
    lambda: gather_rows((100000, 64), (1000, 4), 128),
    lambda: gather_rows((1000, 7), (129, 32), 33, engine="generic"),
    lambda: gather_rows((1000, 7), (777, 32), 33, pairs=True),
    lambda: gather_rows((129, 7), (1000, 129), 7, engine="generic", pairs=True),
)
