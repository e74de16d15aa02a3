"""The model of products on tensor cores against times recorded on an H200, and the tiles that follow from it.

The model's constants were fitted to `RECORDED`: that it is near them says only that nobody has changed it by mistake. The
product of bench/results/tiles-h200.json is not among them; whole programs are in `test_predictions.py`.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from kitsune_mlir.codegen.gpu.engines.mma.cost import Work, choose_pieces, microseconds
from kitsune_mlir.codegen.gpu.engines.mma.tiles import mma_tile
from kitsune_mlir.machine.target import H200

# (m, n, k, rows, cols, pieces, and tiles done alone before if any): microseconds, operands in L2 where they fit. The first are
# medians of 30 replays of a graph; where a product was measured in two runs, the second is scaled by the library's time (the
# clock differs). The others are stages of two-layer programs (d -> 4 d -> d with GELU), from timelines: from the last tile of
# the stage before to the last of this one.
RECORDED = {
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
    (512, 6144, 12288, 128, 128, 1): 135.3,
    (512, 6144, 12288, 128, 128, 2, 132): 112.5,
    (512, 6144, 12288, 128, 256, 4): 127.0,
    (512, 12288, 6144, 128, 128, 1): 121.1,
    (512, 12288, 6144, 128, 256, 1): 152.3,
    (64, 1024, 4096, 64, 64, 8): 5.7,
    (64, 2048, 8192, 64, 64, 4): 12.2,
    (64, 4096, 1024, 64, 32, 1): 4.1,
    (64, 4096, 16384, 64, 64, 2): 36.5,
    (64, 8192, 2048, 64, 64, 1): 11.2,
    (64, 16384, 4096, 64, 128, 1): 35.6,
    (128, 1024, 4096, 128, 64, 7): 7.2,
    (128, 1024, 4096, 128, 64, 8): 7.0,
    (128, 1024, 4096, 128, 128, 12): 8.4,
    (128, 2048, 8192, 128, 64, 4): 14.9,
    (128, 2048, 8192, 128, 96, 6): 14.5,
    (128, 2048, 8192, 128, 128, 8): 15.2,
    (128, 4096, 1024, 128, 32, 1): 5.0,
    (128, 4096, 1024, 128, 64, 1): 6.2,
    (128, 4096, 16384, 128, 64, 2): 39.4,
    (128, 4096, 16384, 128, 96, 3): 38.1,
    (128, 4096, 16384, 128, 128, 4): 39.8,
    (128, 8192, 2048, 128, 64, 1): 13.1,
    (128, 16384, 4096, 128, 128, 1): 38.7,
    (256, 1024, 4096, 128, 64, 4): 8.1,
    (256, 1024, 4096, 128, 96, 6): 8.7,
    (256, 1024, 4096, 128, 128, 8): 9.6,
    (256, 2048, 8192, 128, 64, 2): 19.1,
    (256, 2048, 8192, 128, 96, 3): 18.6,
    (256, 2048, 8192, 128, 128, 4): 19.4,
    (256, 4096, 1024, 128, 64, 1): 5.8,
    (256, 4096, 16384, 128, 64, 1): 69.1,
    (256, 4096, 16384, 128, 128, 2): 56.9,
    (256, 4096, 16384, 128, 192, 3): 58.4,
    (256, 4096, 16384, 128, 256, 4): 60.0,
    (256, 8192, 2048, 128, 128, 1): 15.3,
    (256, 16384, 4096, 128, 128, 1): 49.7,
    (256, 16384, 4096, 128, 256, 1): 47.5,
    (512, 1024, 4096, 128, 64, 2): 12.0,
    (512, 1024, 4096, 128, 96, 3): 11.5,
    (512, 1024, 4096, 128, 128, 4): 12.0,
    (512, 2048, 8192, 128, 64, 1): 31.6,
    (512, 2048, 8192, 128, 128, 2): 29.1,
    (512, 2048, 8192, 128, 256, 4): 30.0,
    (512, 4096, 1024, 128, 128, 1): 9.2,
    (512, 8192, 2048, 128, 128, 1): 26.9,
    (512, 8192, 2048, 128, 256, 1): 27.1,
    (768, 1024, 4096, 128, 64, 1): 16.0,
    (768, 1024, 4096, 128, 96, 2): 14.3,
    (768, 1024, 4096, 128, 128, 2): 15.9,
    (768, 1024, 4096, 128, 160, 3): 15.7,
    (768, 2048, 8192, 128, 96, 1): 38.7,
    (768, 2048, 8192, 128, 192, 2): 41.4,
    (768, 4096, 1024, 128, 64, 1): 14.2,
    (768, 4096, 1024, 128, 96, 1): 13.1,
    (768, 4096, 1024, 128, 192, 1): 12.7,
    (768, 8192, 2048, 128, 128, 1): 38.6,
    (768, 8192, 2048, 128, 192, 1): 38.5,
    (1024, 1024, 4096, 128, 64, 1): 16.9,
    (1024, 1024, 4096, 128, 128, 2): 16.8,
    (1024, 2048, 8192, 128, 64, 1): 65.5,
    (1024, 2048, 8192, 128, 128, 1): 48.1,
    (1024, 4096, 1024, 128, 128, 1): 16.5,
    (1024, 4096, 1024, 128, 256, 1): 16.8,
    (1024, 8192, 2048, 128, 128, 1): 49.9,
    (1024, 8192, 2048, 128, 256, 1): 49.0,
    (1536, 1024, 4096, 128, 96, 1): 24.4,
    (1536, 1024, 4096, 128, 192, 2): 42.2,
    (1536, 2048, 8192, 128, 96, 1): 84.5,
    (1536, 2048, 8192, 128, 192, 1): 68.8,
    (1536, 4096, 1024, 128, 128, 1): 22.6,
    (1536, 4096, 1024, 128, 192, 1): 22.9,
    (1536, 4096, 1024, 128, 256, 1): 28.3,
    (1536, 8192, 2048, 128, 128, 1): 77.1,
    (1536, 8192, 2048, 128, 192, 1): 75.5,
    (1536, 8192, 2048, 128, 256, 1): 74.6,
    (2048, 1024, 4096, 128, 128, 1): 26.1,
    (2048, 4096, 1024, 128, 128, 1): 30.1,
    (2048, 4096, 1024, 128, 256, 1): 29.8,
}


def work(m: int, n: int, k: int, rows: int, cols: int, *_: int) -> Work:
    tiles = -(-m // rows) * -(-n // cols)
    return Work(tiles, -(-k // 64), -(-rows // 64) * 64, -(-cols // 8) * 8, operand_bytes=2 * k * (m + n))


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
    best, fastest = min((time, case) for case, time in RECORDED.items() if case[:3] == shape)
    # Not every number of pieces was measured.
    similar = [time for case, time in RECORDED.items() if case[:5] == chosen[:5]]
    found = RECORDED.get(chosen) or min(similar, default=modelled(chosen) / modelled(fastest) * best)
    assert found <= 1.1 * best


def test_the_tile_of_a_product_that_was_not_fitted() -> None:
    stages = json.loads((Path(__file__).parents[2] / "bench" / "results" / "tiles-h200.json").read_text())["stages"].values()
    (stage,) = (stage for stage in stages if stage["case"] == "product_300x1000x700_nt")
    rows, cols = mma_tile((300, 1000), ("m", "n"), 700, H200)
    assert stage["milliseconds"][f"{rows}x{cols}"] == min(stage["milliseconds"].values())


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
