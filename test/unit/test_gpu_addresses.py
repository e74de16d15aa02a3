"""Which addresses matrices, vectors and swizzled tiles touch, for layouts with padding: kernels run on the processor."""

from __future__ import annotations

import numpy as np
import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import thread_id
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.machine.shared_tile import SharedTile
from test.emulators.native import run_natively
from test.gpu.kit.fragment import Fragment
from test.gpu.kit.layouts import RowLayout, WgmmaAccumulator
from test.gpu.kit.matrix import GlobalMatrix, GlobalVector

GUARD = 4096  # elements around every array that must neither count nor change

LAYOUTS = [
    WgmmaAccumulator(40),
    WgmmaAccumulator(128, 8),
    RowLayout(8, 256, 128, 32, 4),
    RowLayout(7, 100, 128, 8, 4),
    RowLayout(130, 6, 128, 1, 2),
    RowLayout(5, 1000, 128, 64, 8),
    RowLayout(3, 777, 192, 96, 1),
    RowLayout(5, 66, 128, 32, 4),
    RowLayout(3, 12, 128, 64, 8),
]


@pytest.fixture(autouse=True)
def context():
    with ir.Context() as made, ir.Location.unknown():
        yield made


def guarded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values as a view of a larger array that holds NaN (or huge indices) around them; both."""
    filler = np.nan if values.dtype.kind == "f" else np.iinfo(values.dtype).max
    whole = np.full(values.size + 2 * GUARD, filler, values.dtype)
    inner = whole[GUARD : GUARD + values.size].reshape(values.shape)
    inner[:] = values
    return inner, whole


def untouched(whole: np.ndarray) -> bool:
    edges = np.concatenate([whole[:GUARD], whole[-GUARD:]])
    return bool(np.isnan(edges).all())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("first", "right"), [(0, 0), (4, 3), (7, 8)])
def test_gathered_rows_are_added_to_their_targets_and_to_nothing_else(layout, first, right):
    cols = first + layout.cols + right
    align = 4 * (cols & -cols) if cols % 4 else 16
    kernel = Kernel("k", ["pointer"] * 4, layout.threads)
    with kernel.body() as (x, source, target, y):
        thread = thread_id()
        sources = GlobalVector(source, "i64", layout.rows).rows(layout, thread, fill=0)
        targets = GlobalVector(target, "i32").rows(layout, thread)
        tile = GlobalMatrix(x, "f32", 4 * cols, align=align).load_rows(layout, thread, sources, first)
        GlobalMatrix(y, "f32", 4 * cols, align=align).add_rows(tile, thread, targets, first)
    random = np.random.default_rng(0)
    rows, _ = guarded(random.integers(-4, 5, (50, cols)).astype(np.float32))
    sums, whole = guarded(random.integers(-4, 5, (8, cols)).astype(np.float32))
    sources, _ = guarded(random.integers(0, 50, layout.rows))
    targets, _ = guarded(np.arange(layout.rows, dtype=np.int32) % 9 - 1)
    expected = sums.copy()
    part = slice(first, first + layout.cols)
    kept = targets >= 0
    np.add.at(expected[:, part], targets[kept], rows[sources[kept], part])
    run_natively(kernel, [rows, sources, targets, sums])
    assert np.array_equal(sums, expected)
    assert untouched(whole)


@pytest.mark.rotated(7)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_a_tile_that_sticks_out_is_copied_with_its_vectors(layout, known):
    """`known`: the matrix' bounds as numbers, else the rows as a run-time value."""
    rows, cols = layout.rows + 3, layout.cols + 10
    align = 4 * (cols & -cols) if cols % 4 else 16
    kernel = Kernel("k", ["pointer"] * 5, layout.threads)
    with kernel.body() as (x, bias, scale, counts, y):
        thread = thread_id()
        count = rows
        if not known:
            count = GlobalVector(counts, "i32", 1).rows(RowLayout(1, 1, layout.threads, layout.threads, 1), thread).at(0)
        for row in range(0, rows, layout.rows):
            for col in range(0, cols, layout.cols):
                tile = GlobalMatrix(x, "f32", 4 * cols, count, cols, align).load(layout, thread, row, col)
                columns = GlobalVector(bias, "f32", cols, align=align).columns(layout, thread, col)
                scales = GlobalVector(scale, "f32", count).rows(layout, thread, row)
                tile = tile.map(lambda a, b, s: (a + b) * s, columns, scales)
                GlobalMatrix(y, "f32", 4 * cols, count, cols, align).store(tile, thread, row, col)
    random = np.random.default_rng(1)
    x, _ = guarded(random.integers(-4, 5, (rows, cols)).astype(np.float32))
    bias, _ = guarded(random.integers(-4, 5, cols).astype(np.float32))
    scale, _ = guarded(random.integers(-1, 2, rows).astype(np.float32))
    y, whole = guarded(np.full((rows, cols), np.nan, np.float32))
    run_natively(kernel, [x, bias, scale, np.array([rows], np.int32), y])
    assert np.array_equal(y, (x + bias) * scale[:, None])
    assert untouched(whole)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("shape", [(13, 64, 128, 32, 4), (13, 96, 128, 16, 4), (5, 32, 128, 64, 1), (24, 64, 96, 16, 2)])
def test_padding_is_not_written_into_shared_memory(shape, swizzle):
    layout = RowLayout(*shape)
    tile = SharedTile(-(-layout.rows // 8) * 8, layout.cols, 4, swizzle)
    kernel = Kernel("k", ["pointer", "pointer"], layout.threads)
    span = kernel.arena.take("tile", tile.bytes, 1024)
    with kernel.body() as (x, y):
        thread = thread_id()
        source = GlobalMatrix(x, "f32", 4 * layout.cols).load(layout, thread)
        source.store_swizzled(thread, tile, kernel.shared(span), "f32")
        # A thread reads back what it wrote itself: no barrier is needed.
        back = Fragment.load_swizzled(layout, thread, tile, kernel.shared(span), "f32")
        GlobalMatrix(y, "f32", 4 * layout.cols).store(back, thread)
    x, _ = guarded(np.random.default_rng(2).standard_normal((layout.rows, layout.cols)).astype(np.float32))
    y, whole = guarded(np.full((layout.rows, layout.cols), np.nan, np.float32))
    memory = run_natively(kernel, [x, y], shared=0xAB)
    assert np.array_equal(x, y) and untouched(whole)
    written = np.full(len(memory), 0xAB, np.uint8)
    for row in range(layout.rows):
        for col in range(layout.cols):
            place = tile.offset(row, col)
            written[place : place + 4] = x[row, col : col + 1].view(np.uint8)
    assert np.array_equal(memory, written)
