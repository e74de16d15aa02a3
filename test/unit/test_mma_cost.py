"""The model of products on tensor cores against times recorded on an H200, and the tiles that follow from it."""

from __future__ import annotations

import statistics

import pytest

from kitsune_mlir.codegen.gpu.mma_cost import Work, choose_pieces, microseconds
from kitsune_mlir.passes.tiles_mma import mma_tile
from kitsune_mlir.target import H200

# (m, n, k, rows, cols, pieces, and tiles done alone before if any): microseconds; medians of 30 replays of a graph, operands in
# L2 where they fit. Where a product was measured in two runs, the second is scaled by the library's time (the clock differs).
# Tiles that blocks share are of a later run; those of 128 rows had weights in DRAM, and are scaled by the tile of 128 x 64.
RECORDED = {
    (1024, 1024, 1024, 128, 128, 1): 7.86,
    (1024, 1024, 1024, 128, 64, 1): 5.63,
    (1024, 1024, 1024, 64, 128, 1): 5.59,
    (1024, 1024, 1024, 64, 64, 1): 7.39,
    (1024, 1024, 1024, 128, 32, 1): 6.85,
    (2048, 1024, 1024, 128, 128, 1): 8.09,
    (2048, 1024, 1024, 128, 64, 1): 9.46,
    (2048, 1024, 1024, 128, 256, 1): 13.06,
    (128, 4096, 4096, 128, 32, 1): 12.45,
    (128, 4096, 4096, 128, 128, 1): 21.75,
    (128, 4096, 4096, 128, 128, 4): 13.5,
    (128, 4096, 4096, 128, 256, 8): 16.7,
    (128, 4096, 4096, 128, 64, 1): 12.28,
    (128, 4096, 4096, 128, 64, 2): 11.8,
    (128, 4096, 4096, 128, 96, 1): 16.78,
    (128, 4096, 4096, 128, 96, 3): 12.6,
    (300, 1000, 704, 128, 64, 1): 4.91,
    (300, 1000, 704, 64, 128, 1): 4.68,
    (300, 1000, 704, 64, 64, 1): 4.22,
    (512, 4096, 14336, 128, 128, 1): 93.3,
    (512, 4096, 14336, 128, 192, 1): 121.3,
    (512, 4096, 14336, 128, 256, 1): 145.2,
    (2048, 6144, 12288, 128, 256, 1): 420.0,
    (2048, 6144, 12288, 128, 192, 1): 414.0,
    (4096, 12288, 6144, 128, 256, 1): 880.0,
    (8192, 8192, 8192, 128, 256, 1): 1526.0,
    (1536, 6144, 12288, 128, 256, 5, 264): 290.6,
    (1024, 6144, 12288, 128, 256, 1): 242.6,
    (768, 6144, 12288, 128, 256, 1): 244.4,
    (768, 6144, 12288, 128, 256, 11, 132): 154.7,
    (768, 6144, 12288, 128, 256, 8, 132): 158.2,
    (768, 6144, 12288, 128, 256, 5, 132): 166.8,
    (768, 6144, 12288, 128, 128, 1): 194.9,
    (768, 12288, 6144, 128, 256, 5, 264): 155.4,
    (768, 12288, 6144, 128, 256, 4, 264): 158.0,
    (768, 12288, 6144, 128, 256, 2, 264): 171.7,
    (1536, 6144, 12288, 128, 256, 4, 264): 295.1,
    (128, 4096, 4096, 128, 128, 3): 13.1,
    (512, 6144, 12288, 128, 128, 1): 135.3,
    (512, 6144, 12288, 128, 128, 2, 132): 112.5,
    (512, 6144, 12288, 128, 256, 4): 127.0,
    (512, 12288, 6144, 128, 128, 1): 121.1,
    (512, 12288, 6144, 128, 256, 1): 152.3,
}


def work(m: int, n: int, k: int, rows: int, cols: int, *_: int) -> Work:
    return Work(-(-m // rows) * -(-n // cols), -(-k // 64), -(-rows // 64) * 64, -(-cols // 8) * 8)


def modelled(case: tuple[int, ...]) -> float:
    pieces, *whole = case[5:]
    return microseconds(work(*case), pieces, 132, *whole)


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_the_model_is_near_what_was_measured(case) -> None:
    assert modelled(case) == pytest.approx(RECORDED[case], rel=0.25)


def test_the_model_is_right_on_average() -> None:
    ratios = [modelled(case) / time for case, time in RECORDED.items()]
    assert statistics.geometric_mean(ratios) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("shape", sorted({case[:3] for case in RECORDED}), ids=str)
def test_the_choice_is_near_the_best_that_was_measured(shape) -> None:
    tile = mma_tile(shape[:2], ("m", "n"), shape[2], H200)
    pieces, whole = choose_pieces(work(*shape, *tile), 132)
    chosen = (*shape, *tile, pieces, *([whole] if whole else []))
    best = min(time for case, time in RECORDED.items() if case[:3] == shape)
    # Not every number of pieces was measured.
    found = RECORDED.get(chosen) or min(time for case, time in RECORDED.items() if case[:5] == chosen[:5])
    assert found <= 1.1 * best


def test_tiles_stay_inside_the_product() -> None:
    assert mma_tile((7, 20), ("m", "n"), 64, H200) == [7, 20]
    assert mma_tile((20, 7), ("n", "m"), 64, H200)[1] == 7


def test_only_the_last_rows_and_columns_are_tiled() -> None:
    tile = mma_tile((32, 16, 512, 64), ("batch", "m", "m", "n"), 64, H200)
    assert tile[:2] == [1, 1] and tile[2] in (64, 128) and tile[3] <= 64


def test_a_tile_is_shared_only_when_blocks_would_be_idle() -> None:
    assert choose_pieces(Work(1980, 128, 128, 256), 132) == (1, 0)
    pieces, whole = choose_pieces(Work(8, 128, 128, 128), 132)
    assert pieces > 1 and whole == 0
    # Too short to divide: every piece has some chunks of its own.
    assert choose_pieces(Work(1, 4, 128, 128), 132) == (1, 0)


def test_the_tiles_of_a_last_wave_are_shared() -> None:
    work = Work(144, 192, 128, 256)  # 768 x 6144 x 12288: 12 tiles more than multiprocessors
    pieces, whole = choose_pieces(work, 132)
    assert whole == 132 and 4 <= pieces <= 11
    assert microseconds(work, pieces, 132, whole) < 0.75 * microseconds(work, 1, 132)


def test_products_that_share_a_tile_get_a_part_of_the_columns_each() -> None:
    assert mma_tile((128, 14336), ("m", "n"), 4096, H200, products=2) == [128, 112]  # one tile a multiprocessor
    assert mma_tile((8192, 14336), ("m", "n"), 4096, H200, products=2) == [128, 128]
    assert mma_tile((8192, 1000), ("m", "n"), 4096, H200, products=3)[1] <= 80
