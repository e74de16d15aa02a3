"""Layouts: every (thread, register) is one element and every element has one place; swizzles follow the hardware's rule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitsune_mlir.codegen.gpu.sm90.wgmma import register_column
from kitsune_mlir.machine.shared_tile import Descriptor, SharedTile
from test.gpu.kit.layouts import TF32_K_ORDER, RowLayout, WgmmaA, WgmmaAccumulator, choose_row_layout

ACCUMULATORS = [WgmmaAccumulator(n, vector) for vector in (2, 4, 8) for n in range(4 * vector, 257, 4 * vector)]
ROW_LAYOUTS = [
    RowLayout(1, 1, 32, 1, 1),
    RowLayout(4, 128, 128, 32, 4),
    RowLayout(7, 100, 128, 8, 4),
    RowLayout(64, 40, 128, 4, 2),
    RowLayout(3, 1000, 256, 64, 8),
    RowLayout(2, 1000, 192, 96, 2),
    RowLayout(1, 5000, 256, 256, 4),
    RowLayout(33, 3, 128, 1, 1),
]


def elements(layout):
    return [
        (layout.row(thread, register), layout.col(thread, register))
        for thread in range(layout.threads)
        for register in range(layout.registers)
    ]


@pytest.mark.parametrize("layout", ACCUMULATORS + ROW_LAYOUTS, ids=str)
def test_every_element_has_exactly_one_place(layout):
    places = elements(layout)
    assert len(set(places)) == len(places)
    assert set(places) == {(row, col) for row in range(layout.padded_rows) for col in range(layout.padded_cols)}
    assert layout.padded_rows >= layout.rows and layout.padded_cols >= layout.cols


@pytest.mark.parametrize("layout", ACCUMULATORS + ROW_LAYOUTS, ids=str)
@pytest.mark.parametrize("limit", [1, 2, 4, 8, 16])
def test_runs_are_aligned_neighbours_and_cover_all_registers(layout, limit):
    runs = layout.runs(limit)
    assert sorted(register for run in runs for register in run.registers) == list(range(layout.registers))
    for run in runs:
        assert 1 <= run.length <= limit and run.length & (run.length - 1) == 0
        for thread in (0, 1, 5, layout.threads - 1):
            first = layout.col(thread, run.registers[0])
            assert first % run.length == 0
            for step, register in enumerate(run.registers):
                assert layout.col(thread, register) == first + step
                assert layout.row(thread, register) == layout.thread_row(thread) + run.row


@pytest.mark.parametrize("layout", ACCUMULATORS[::5] + ROW_LAYOUTS, ids=str)
def test_masks_and_warps_reach_exactly_the_threads_of_a_row_and_of_a_column(layout):
    def closure(thread, masks):
        reached = {thread}
        for mask in masks:
            reached |= {other ^ mask for other in reached}
        return reached

    for thread in range(layout.threads):
        warp = range(thread // 32 * 32, thread // 32 * 32 + 32)
        same_row = {other for other in warp if other < layout.threads and layout.thread_row(other) == layout.thread_row(thread)}
        same_col = {other for other in warp if other < layout.threads and layout.thread_col(other) == layout.thread_col(thread)}
        assert closure(thread, layout.row_masks) == same_row
        assert closure(thread, layout.col_masks) == same_col
        on_row = [other for other in range(layout.threads) if layout.thread_row(other) == layout.thread_row(thread)]
        assert len({other // 32 for other in on_row}) == layout.row_warps


@pytest.mark.parametrize("layout", ACCUMULATORS + ROW_LAYOUTS, ids=str)
def test_distinct_register_rows_and_columns(layout):
    rows, cols = ({part(r) for r in range(layout.registers)} for part in (layout.register_row, layout.register_col))
    assert len(rows) * len(cols) == layout.registers


def test_accumulator_is_the_fragment_of_the_ptx_manual():
    layout = WgmmaAccumulator(256)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(128):
            assert layout.row(thread, i) == 16 * warp + lane // 4 + 8 * ((i // 2) % 2)
            assert layout.col(thread, i) == 8 * (i // 4) + 2 * (lane % 4) + i % 2 == 2 * (lane % 4) + register_column(i)


def test_a_fragment_packs_pairs_of_the_accumulator():
    """PTX: packed register j of k16 step s holds row lane/4 + 8*(j%2), columns 16*s + 8*(j/2) + 2*(lane%4) and the next."""
    layout = WgmmaA(64)
    for lane in range(32):
        for step in range(4):
            for j in range(4):
                for half in range(2):
                    register = 8 * step + 2 * j + half
                    assert layout.row(lane, register) == lane // 4 + 8 * (j % 2)
                    assert layout.col(lane, register) == 16 * step + 8 * (j // 2) + 2 * (lane % 4) + half


@pytest.mark.parametrize("layout", ACCUMULATORS, ids=str)
def test_column_of_position_matches_the_hardware_place(layout):
    hardware = WgmmaAccumulator(layout.n)
    for thread in range(32):
        for register in range(layout.registers):
            assert layout.column_of_position(hardware.col(thread, register)) == layout.col(thread, register)
    assert sorted(map(layout.column_of_position, range(layout.n))) == list(range(layout.n))


def test_vector_accumulator_holds_sixteen_byte_runs():
    assert {run.length for run in WgmmaAccumulator(128, 8).runs(8)} == {8}
    assert {run.length for run in WgmmaAccumulator(128, 4).runs(8)} == {4}


def test_tf32_order_turns_accumulator_registers_into_a_registers():
    """tf32 A of k8: register 0 (row, q), 1 (row + 8, q), 2 (row, q + 4), 3 (row + 8, q + 4)."""
    accumulator = WgmmaAccumulator(8)
    for lane in range(32):
        for register, (row, position) in enumerate([(0, 0), (8, 0), (0, 4), (8, 4)]):
            source = (0, 2, 1, 3)[register]
            assert accumulator.row(lane, source) == lane // 4 + row
            assert accumulator.col(lane, source) == TF32_K_ORDER[lane % 4 + position]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 70),
    cols=st.integers(1, 3000),
    threads=st.sampled_from([32, 96, 128, 256]),
    element_bytes=st.sampled_from([1, 2, 4, 8]),
)
def test_chosen_row_layouts_are_bijections_within_the_register_limit(rows, cols, threads, element_bytes):
    layout = choose_row_layout(rows, cols, threads, element_bytes, max_registers=128)
    assert layout.col_steps * layout.vector <= 128
    assert layout.vector * element_bytes <= 16 and cols % layout.vector == 0
    if rows * cols <= 4000:
        places = elements(layout)
        assert len(set(places)) == len(places)
        assert set(places) >= {(row, col) for row in range(rows) for col in range(cols)}


def test_a_row_too_long_for_all_registers_is_refused():
    with pytest.raises(ValueError, match="does not fit 32 threads"):
        choose_row_layout(1, 100_000, 32, 4)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_shared_tile_is_a_bijection_with_the_hardware_swizzle(swizzle, element_bytes):
    tile = SharedTile(24, 2 * swizzle // element_bytes, element_bytes, swizzle)
    seen = set()
    for row in range(tile.rows):
        for col in range(tile.cols):
            offset = tile.offset(row, col)
            panel, inside = divmod(col, tile.panel_cols)
            linear = panel * tile.panel_bytes + row * swizzle + inside * element_bytes
            # The hardware xors address bits 4.. with bits 7..; the panel starts at a multiple of the period here.
            period = linear % tile.panel_bytes
            bits = {128: 7, 64: 3, 32: 1}[swizzle]
            assert offset == linear ^ ((period >> 7 & bits) << 4)
            seen.add(offset)
    assert seen == set(range(0, tile.bytes, element_bytes))


def test_eight_rows_of_one_column_are_in_different_banks():
    tile = SharedTile(64, 64, 2)
    for col in range(0, 64, 8):
        for first in range(0, 64, 8):
            assert len({tile.offset(first + row, col) % 128 // 16 for row in range(8)}) == 8


def test_descriptors_have_the_documented_bits():
    tile = SharedTile(128, 128, 2)
    assert tile.k_major().bits == 1 << 62 | 64 << 32 | 1 << 16
    assert tile.mn_major() == Descriptor(128 * 128, 1024, 128)
    assert SharedTile(64, 32, 2, 64).k_major().bits == 2 << 62 | 32 << 32 | 1 << 16
    assert SharedTile(64, 16, 2, 32).k_major().bits == 3 << 62 | 16 << 32 | 1 << 16
    with pytest.raises(ValueError, match="below 256 KiB"):
        _ = Descriptor(1 << 18, 1024, 128).bits


def test_operand_starts_are_offsets_of_their_first_element():
    tile = SharedTile(128, 256, 2)
    for row in range(0, 128, 8):
        for k in range(0, 256, 16):
            # The xor with the row's bits is the hardware's: the row is a multiple of 8, so that it vanishes at the start.
            assert tile.k_major_start(row, k) == tile.offset(row, k)
    for k in range(0, 128, 8):
        for col in range(0, 256, 64):
            assert tile.mn_major_start(k, col) == tile.offset(k, col)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WgmmaAccumulator(12),
        lambda: WgmmaAccumulator(264),
        lambda: WgmmaAccumulator(40, 4),
        lambda: WgmmaAccumulator(64, 3),
        lambda: WgmmaA(24),
        lambda: RowLayout(1, 1, 32, 3, 1),
        lambda: RowLayout(1, 1, 32, 64, 1),
        lambda: RowLayout(1, 1, 32, 1, 3),
        lambda: RowLayout(0, 1, 32, 1, 1),
        lambda: SharedTile(12, 64, 2),
        lambda: SharedTile(16, 40, 2),
        lambda: SharedTile(16, 64, 2, 16),
    ],
)
def test_impossible_layouts_are_refused(make):
    with pytest.raises(ValueError, match=r"\d"):
        make()
