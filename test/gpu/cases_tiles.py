"""Cases about layouts: bounds, reductions, swizzled round trips, gather and scatter; and TMA without products."""

from __future__ import annotations

import itertools
import math

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, sync_block, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import fma
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements, store_elements
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90 import tma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Barrier, fence_async_shared, initialize
from kitsune_mlir.codegen.gpu.sm90.tensor_map import ELEMENT_BYTES, TensorMap
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu.case import Case, finish, register, tensor
from test.gpu.kit import bulk
from test.gpu.kit.exchange import Exchange
from test.gpu.kit.fragment import Fragment
from test.gpu.kit.layouts import Layout, RowLayout, WgmmaAccumulator
from test.gpu.kit.matrix import GlobalMatrix, GlobalVector

LAYOUTS: dict[str, Layout] = {
    "accumulator": WgmmaAccumulator(40),
    "accumulator_v4": WgmmaAccumulator(64, 4),
    "accumulator_v8": WgmmaAccumulator(128, 8),
    "warp": RowLayout(8, 256, 128, 32, 4),
    "quarter": RowLayout(7, 100, 128, 8, 4),
    "thread": RowLayout(130, 6, 128, 1, 2),
    "two_warps": RowLayout(5, 1000, 128, 64, 8),
    "three_warps": RowLayout(3, 777, 192, 96, 1),
    "block": RowLayout(2, 5000, 256, 256, 4),
}


def statistics(layout: Layout) -> Case:
    """Row sum, max, min; column sum, max; total; and a normalised copy, of a matrix with exactly the layout's shape."""
    rows, cols = layout.rows, layout.cols
    kernel = Kernel("statistics", ["pointer"] * 5, threads=layout.threads)
    scratch = kernel.arena.take("exchange", 4 * max(layout.registers * layout.threads // 8, 8 * layout.padded_cols), 16)
    align = math.gcd(16, cols * 4)
    with kernel.body() as (x, row_out, col_out, total_out, y):
        thread = thread_id()
        exchange = Exchange(kernel.shared(scratch), sync_block)
        source = GlobalMatrix(x, "f32", cols * 4, rows, cols, align)
        tile = source.load(layout, thread, fill=100.0)
        per_row = [tile.row_reduce(kind, thread, exchange) for kind in ("add", "max", "min")]
        target = GlobalMatrix(row_out, "f32", 12, rows, 3, 4)
        for index, values in enumerate(per_row):

            def write(row, col, elements, index=index) -> None:
                inside = (row < rows) & (col == 0)
                if_(inside, lambda: store_elements(elements[:1], target.address(row, index)))

            Fragment.broadcast(layout, values).store(thread, write, limit=1)
        for index, kind in enumerate(("add", "max")):
            values = tile.column_reduce(kind, thread, exchange)

            def write(row, col, elements, index=index) -> None:
                inside = (row == 0) & (col < cols)
                if_(inside, lambda: store_elements(elements, offset(col_out, (col + index * cols) * 4)))

            Fragment.broadcast(layout, values).store(thread, write, limit=1)
        total = tile.reduce("add", thread, exchange)
        if_(thread == 0, lambda: store_elements([total], total_out))
        centred = tile.map(lambda a, s: fma(s, -1.0 / cols, a), per_row[0])
        GlobalMatrix(y, "f32", cols * 4, rows, cols, align).store(centred, thread)
    tensors = [
        tensor("X", "f32", [rows, cols], "normal"),
        tensor("rows", "f32", [rows, 3], "nan"),
        tensor("cols", "f32", [2, cols], "nan"),
        tensor("total", "f32", [1], "nan"),
        tensor("Y", "f32", [rows, cols], "nan"),
    ]
    return finish(kernel, tensors, "statistics")


def bounded_copy(layout: Layout, dtype: str, rows: int, cols: int) -> Case:
    """Copy a matrix by tiles that stick out of it, with a bias per column and a scale per row; nothing else is touched."""
    size = ELEMENT_BYTES[dtype]
    align = math.gcd(16, cols * size)
    kernel = Kernel("bounded_copy", ["pointer"] * 4, threads=layout.threads)
    with kernel.body() as (x, bias, scale, y):
        thread = thread_id()
        for row, col in itertools.product(range(0, rows, layout.rows), range(0, cols, layout.cols)):
            tile = GlobalMatrix(x, dtype, cols * size, rows, cols, align, constant=True).load(layout, thread, row, col)
            columns = GlobalVector(bias, dtype, cols, align=align).columns(layout, thread, col)
            scales = GlobalVector(scale, "f32", rows).rows(layout, thread, row, fill=0.0)
            tile = tile.map(lambda a, b, s: (a + b) * s, columns, scales)
            GlobalMatrix(y, dtype, cols * size, rows, cols, align).store(tile, thread, row, col)
    tensors = [
        tensor("X", dtype, [rows, cols], "ints"),
        tensor("bias", dtype, [cols], "ints"),
        tensor("scale", "f32", [rows], "signs"),
        tensor("Y", dtype, [rows + 1, cols], "nan"),
    ]
    return finish(kernel, tensors, "bounded_copy", rows=rows)


def gather_scatter(layout: Layout, dtype: str, first: int = 0, right: int = 0) -> Case:
    """Y[target[r]] += X[source[r]] over one tile of rows; targets repeat and may be -1.

    The tile takes the columns from `first` on of matrices with `right` more columns behind it, which must not change; nor may
    the row behind the last target.
    """
    size, cols = ELEMENT_BYTES[dtype], first + layout.cols + right
    align = math.gcd(16, cols * size)
    kernel = Kernel("gather_scatter", ["pointer"] * 4, threads=layout.threads)
    with kernel.body() as (x, source, target, y):
        thread = thread_id()
        sources = GlobalVector(source, "i64", layout.rows).rows(layout, thread, fill=0)
        targets = GlobalVector(target, "i32").rows(layout, thread)
        tile = GlobalMatrix(x, dtype, cols * size, align=align, constant=True).load_rows(layout, thread, sources, first)
        GlobalMatrix(y, dtype, cols * size, align=align).add_rows(tile, thread, targets, first)
    tensors = [
        tensor("X", dtype, [50, cols], "ints"),
        tensor("source", "i64", [layout.rows], "index", bound=50),
        tensor("target", "i32", [layout.rows], [r % 9 - 1 for r in range(layout.rows)]),
        tensor("Y", dtype, [9, cols], "ints"),
    ]
    return finish(kernel, tensors, "gather_scatter", first=first, cols=layout.cols)


def swizzled_round_trip(layout: Layout, dtype: str, swizzle: int) -> Case:
    """Global -> registers -> swizzled shared -> TMA store; TMA load -> swizzled shared -> registers -> global.

    The mbarrier lies right behind the tile that registers are stored to: padding must not be written over it.
    """
    size = ELEMENT_BYTES[dtype]
    tile = SharedTile(-(-layout.rows // 8) * 8, layout.cols, size, swizzle)
    shape = (layout.rows, layout.cols)
    tensor_map = TensorMap.contiguous(dtype, shape, (tile.rows, tile.panel_cols), swizzle)
    kernel = Kernel("round_trip", ["pointer", tensor_map, "pointer"], threads=layout.threads)
    span = kernel.arena.take("tile", tile.bytes, 1024)
    full = kernel.arena.take("full", 8, 8)
    back = kernel.arena.take("back", tile.bytes, 1024)
    with kernel.body() as (x, middle, y):
        thread = thread_id()
        barrier = Barrier(kernel.shared(full))
        initialize([(barrier, 1)])
        source = GlobalMatrix(x, dtype, layout.cols * size, layout.rows, layout.cols).load(layout, thread)
        source.store_swizzled(thread, tile, kernel.shared(span), dtype)
        fence_async_shared()
        sync_block()

        def copy() -> None:
            for panel in range(tile.panels):
                at = [0, panel * tile.panel_cols]
                tma.store_tile(middle, kernel.shared(span.offset + panel * tile.panel_bytes), at)
            tma.commit()
            tma.wait(0)
            barrier.arrive_and_expect(tile.bytes)
            for panel in range(tile.panels):
                at = [0, panel * tile.panel_cols]
                tma.load_tile(kernel.shared(back.offset + panel * tile.panel_bytes), middle, barrier, at)

        if_(thread == 0, copy)
        barrier.wait(0)
        result = Fragment.load_swizzled(layout, thread, tile, kernel.shared(back), dtype, source.dtype)
        GlobalMatrix(y, dtype, layout.cols * size, layout.rows, layout.cols).store(result, thread)
    tensors = [
        tensor("X", dtype, list(shape), "normal"),
        tensor("M", dtype, list(shape), "nan"),
        tensor("Y", dtype, list(shape), "nan"),
    ]
    return finish(kernel, tensors, "copies")


def tma_box(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...], dtype: str = "f32", fill: str = "zero") -> Case:
    """Load a box at `at` (it may stick out), write it densely to Y, add it back at `at` into Z, and store it there in W.

    TMA writes nothing that starts before the tensor: where `at` is negative, Z and W get the box at 0.
    """
    base = TensorMap.contiguous(dtype, shape, box, 0)
    source = TensorMap(dtype, base.shape, base.strides_bytes, base.box, 0, fill)
    count, size = math.prod(box), ELEMENT_BYTES[dtype]
    to = tuple(max(0, coordinate) for coordinate in at)
    kernel = Kernel("tma_box", [source, "pointer", base, base], threads=128)
    span = kernel.arena.take("box", source.box_bytes, 128)
    full = kernel.arena.take("full", 8, 8)
    with kernel.body() as (x, y, z, w):
        barrier = Barrier(kernel.shared(full))
        initialize([(barrier, 1)])

        def copy() -> None:
            tma.prefetch_map(x)
            barrier.arrive_and_expect(source.box_bytes)
            tma.load_tile(kernel.shared(span), x, barrier, at)
            barrier.wait(0)
            tma.store_span(y, kernel.shared(span), count * size)
            bulk.reduce_tile(z, kernel.shared(span), to)
            tma.store_tile(w, kernel.shared(span), to)
            tma.commit()
            tma.wait(0)

        if_(thread_id() == 0, copy)
    tensors = [
        tensor("X", dtype, list(shape), "ints"),
        tensor("Y", dtype, list(box), "ones"),
        tensor("Z", dtype, list(shape), "ints"),
        tensor("W", dtype, list(shape), "zeros"),
    ]
    return finish(kernel, tensors, "tma_box", at=list(at), to=list(to), fill=fill)


def spans(dtype: str, count: int = 512) -> Case:
    """1-D bulk copies: load a span, add it to Y by a bulk reduction, store it to Z."""
    size = ELEMENT_BYTES[dtype]
    kernel = Kernel("spans", ["pointer"] * 3, threads=128)
    span = kernel.arena.take("span", count * size, 16)
    full = kernel.arena.take("full", 8, 8)
    with kernel.body() as (x, y, z):
        barrier = Barrier(kernel.shared(full))
        initialize([(barrier, 1)])

        def copy() -> None:
            bulk.prefetch_span(x, count * size)
            barrier.arrive_and_expect(count * size)
            tma.load_span(kernel.shared(span), x, count * size, barrier)

        if_(thread_id() == 0, copy)
        barrier.wait(0)
        thread = thread_id()
        # Double the values through the generic proxy: the copies below must see it.
        for start in range(0, count, 128):
            place = kernel.shared(span.offset + start * size)
            place = offset(place, thread * size)
            value = load_elements(place, dtype, 1)[0]
            store_elements([value + value], place)
        fence_async_shared()
        sync_block()

        def give() -> None:
            bulk.reduce_span(y, kernel.shared(span), count * size, dtype)
            tma.store_span(z, kernel.shared(span), count * size)
            tma.commit()
            tma.wait(0)

        if_(thread == 0, give)
    tensors = [tensor("X", dtype, [count], "ints"), tensor("Y", dtype, [count], "ints"), tensor("Z", dtype, [count], "zeros")]
    return finish(kernel, tensors, "spans")


for name, layout in LAYOUTS.items():
    register(f"statistics_{name}", lambda layout=layout: statistics(layout))
for name, dtype, rows, cols in (
    ("accumulator", "bf16", 100, 72),
    ("accumulator_v8", "bf16", 65, 136),
    ("warp", "f32", 13, 300),
    ("quarter", "bf16", 20, 100),
    ("quarter", "f16", 9, 198),
    ("thread", "f32", 131, 6),
    ("two_warps", "bf16", 6, 1000),
    ("three_warps", "f32", 4, 777),
):
    make = lambda l=LAYOUTS[name], d=dtype, r=rows, c=cols: bounded_copy(l, d, r, c)  # noqa: E731, E741
    register(f"bounded_{name}_{dtype}_{rows}x{cols}", make)
for name, dtype in itertools.product(("accumulator_v8", "warp", "two_warps", "quarter"), ("f32", "bf16", "f16")):
    register(f"gather_scatter_{name}_{dtype}", lambda l=LAYOUTS[name], d=dtype: gather_scatter(l, d))  # noqa: E741
for name, dtype, first, right in (("three_warps", "f32", 5, 3), ("two_warps", "bf16", 16, 6), ("thread", "f16", 2, 4)):
    make = lambda l=LAYOUTS[name], d=dtype, f=first, r=right: gather_scatter(l, d, f, r)  # noqa: E731, E741
    register(f"gather_scatter_window_{name}_{dtype}", make)
for layout, dtype, swizzle in (
    (WgmmaAccumulator(128), "bf16", 128),
    (WgmmaAccumulator(64), "f16", 64),
    (WgmmaAccumulator(32), "bf16", 32),
    (WgmmaAccumulator(64), "f32", 128),
    (WgmmaAccumulator(128, 8), "bf16", 128),
    (RowLayout(24, 256, 128, 32, 8), "bf16", 128),
    (RowLayout(16, 64, 128, 16, 4), "f32", 64),
    (RowLayout(13, 64, 128, 32, 4), "bf16", 128),
    (RowLayout(13, 96, 128, 16, 4), "f32", 128),
):
    label = f"{type(layout).__name__}{layout.cols}_v{layout.vector}_{dtype}_{swizzle}"
    register(f"round_trip_{label}", lambda l=layout, d=dtype, s=swizzle: swizzled_round_trip(l, d, s))  # noqa: E741
register("tma_1d", lambda: tma_box((1000,), (256,), (900,)))
register("tma_2d_inside", lambda: tma_box((40, 64), (8, 32), (16, 32)))
register("tma_2d_edge", lambda: tma_box((40, 60), (16, 32), (30, 40)))
register("tma_2d_negative", lambda: tma_box((40, 60), (16, 32), (-3, -8)))
register("tma_2d_nan", lambda: tma_box((40, 60), (16, 32), (30, 40), fill="nan"))
register("tma_3d_bf16", lambda: tma_box((5, 9, 40), (2, 4, 16), (4, 7, 32), "bf16"))
register("tma_4d", lambda: tma_box((3, 5, 6, 20), (2, 2, 3, 8), (2, 4, 4, 16)))
register("tma_5d", lambda: tma_box((2, 3, 4, 5, 12), (1, 2, 2, 3, 4), (1, 2, 3, 3, 8)))
for dtype in ("f32", "bf16", "f16", "i32", "i64"):
    register(f"spans_{dtype}", lambda dtype=dtype: spans(dtype))
