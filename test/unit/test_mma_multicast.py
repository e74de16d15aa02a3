"""Operands that the blocks of a cluster have in common: where, who loads which part, and in which order tiles are done."""

from __future__ import annotations

import dataclasses
import re
import types
from typing import Any

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.mma import plan as mma_plan
from kitsune_mlir.codegen.gpu.engines.mma.cost import Reading, Work, choose_way, microseconds
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import ordered
from kitsune_mlir.codegen.gpu.engines.mma.tiles import Layout, mma_tile
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.machine.target import H200
from test.gpu.mma_text import Layer, program
from test.programs.kept import kept

GRADIENT = Layer(1000, 1000, 65536, tile=(128, 256), a="km", b="kn")


@pytest.fixture
def context():
    with new_context() as context, ir.Location.unknown():
        yield context


def decided(layers: list[Layer], options: KernelOptions | None = None) -> MmaPlan:
    plan = MmaEngine().plan(ProgramView(kept(program(layers)[0])).tasks[0], options or KernelOptions())
    assert isinstance(plan, Plan)
    return plan.private


@pytest.mark.parametrize(("m", "n", "tile", "operand", "across"), [
    (1000, 1000, (128, 256), 1, False), (1000, 264, (128, 136), 1, False), (4000, 264, (128, 136), 1, False),
    (264, 1000, (128, 256), 0, True),
])  # fmt: skip
def test_long_sums_of_rows_that_begin_within_lines_are_loaded_once_for_a_cluster(
    context, m: int, n: int, tile: tuple[int, int], operand: int, across: bool
) -> None:
    mma = decided([Layer(m, n, 65536, tile=tile, a="km", b="kn")])
    assert mma.multicast is not None
    assert (mma.multicast.operand, mma.multicast.across) == (operand, across)
    assert mma.boxes is not None and (box := mma.boxes[operand]) is not None
    # What a stage gets is the same, whoever loads it.
    assert box.together == mma.multicast.blocks and box.bytes == (mma.b_tile if operand else mma.a_tile).bytes
    assert mma.barriers[mma.stages : 2 * mma.stages] == (2 * mma.multicast.blocks,) * mma.stages


@pytest.mark.parametrize(("width", "a", "bytes"), [(1000, "km", 128), (1024, "km", 256), (1000, "mk", 256)])
def test_l2_brings_no_neighbours_of_rows_that_begin_within_lines(context, width: int, a: str, bytes: int) -> None:
    """Of rows along the sum the neighbours are wanted next."""
    mma = decided([Layer(width, 512, 1000 if a == "mk" else 4096, tile=(128, 256), a=a, b="kn")])
    assert mma.boxes is not None and mma.boxes[0] is not None and mma.boxes[1] is not None
    assert (mma.boxes[0].map.promotion, mma.boxes[1].map.promotion) == (bytes, 256)


@pytest.mark.parametrize(("layers", "options"), [
    ([GRADIENT, Layer(1000, 256, 1000)], KernelOptions()),
    ([GRADIENT], KernelOptions(clusters=False)),
    ([GRADIENT], KernelOptions(requests=3)),
    ([Layer(1024, 1024, 65536, tile=(128, 256), a="km", b="kn")], KernelOptions()),
    ([Layer(1000, 1000, 640, tile=(128, 256), a="km", b="kn")], KernelOptions()),
    ([Layer(1656, 1160, 65536, tile=(128, 256), a="km", b="kn")], KernelOptions()),  # 13 x 5 tiles
], ids=["several tasks", "no clusters", "requests", "lines", "short", "odd grid"])  # fmt: skip
def test_others_have_blocks_of_their_own(context, layers: list[Layer], options: KernelOptions) -> None:
    assert decided(layers, options).multicast is None


@pytest.mark.parametrize("rows", [False, True])
def test_blocks_of_a_cluster_load_parts_and_tell_each_other(context, monkeypatch, rows: bool) -> None:
    """By panels, or by rows of the only panel of an operand along the sum."""
    if rows:  # short sums gain nothing that the model knows of
        monkeypatch.setattr(mma_plan, "choose_way", lambda works, workers: (0.0, list(works)[1], 2, 0))
    layer = Layer(1000, 1000, 712, tile=(128, 256)) if rows else GRADIENT
    mma = decided([layer])
    assert mma.multicast is not None and mma.boxes is not None
    box = mma.boxes[mma.multicast.operand]
    assert box is not None and box.by_rows == rows
    blocks = mma.multicast.blocks
    code = compile_gpu(ir.Module.parse(program([layer])[0]), "main_p0", KernelOptions())
    assert code.manifest.cluster == blocks and code.manifest.tiles % blocks == 0 and not code.resources.spills
    assert f".reqnctapercluster {blocks}" in code.ptx
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\S*", code.ptx)
    assert {"multicast" in load for load in loads} == {False, True}
    assert code.ptx.count("mbarrier.arrive.shared::cluster") == code.ptx.count("mapa.shared::cluster") > 0
    assert code.ptx.count("barrier.cluster.wait") == 2


@pytest.mark.parametrize(
    ("rows", "cols", "blocks", "across"), [(8, 4, 4, False), (20, 3, 2, False), (13, 8, 4, True), (34, 6, 2, True)]
)
def test_a_cluster_has_tiles_beside_each_other(monkeypatch, rows: int, cols: int, blocks: int, across: bool) -> None:
    module = "kitsune_mlir.codegen.gpu.engines.mma.rasterize"
    monkeypatch.setattr(f"{module}.select", lambda condition, yes, no: yes if condition else no)
    monkeypatch.setattr(f"{module}.TileContext", lambda task, number, turn: types.SimpleNamespace(number=number))
    view = types.SimpleNamespace(grid=(1, rows, cols), ordered=False)
    task = types.SimpleNamespace(view=view, end=None, plan=types.SimpleNamespace(beside=blocks, across=across))
    tiles = [types.SimpleNamespace(task=task, number=number, turn=None, rank=number) for number in range(rows * cols)]
    found = [ordered(tile).number for tile in tiles]  # type: ignore[arg-type]
    assert sorted(found) == list(range(rows * cols))
    step = 1 if across else cols
    for first in range(0, len(found), blocks):
        assert found[first : first + blocks] == [found[first] + step * block for block in range(blocks)]
        assert not across or found[first] // cols == found[first + blocks - 1] // cols


def test_boxes_that_lie_in_two_lines_count_twice() -> None:
    assert (Reading(64).lines, Reading(64, True).lines) == (64, 128)
    assert (Layout(True, True).reading(136).lines, Layout(False, True).reading(136).lines) == (384, 272)
    plain, odd = Work(32, 1024, 128, 256, lines=384), Work(32, 1024, 128, 256, lines=768)
    assert choose_way([odd, dataclasses.replace(odd, lines=512, cluster=2)], 132)[1].cluster == 2
    assert choose_way([plain, dataclasses.replace(plain, lines=256, cluster=2)], 132)[1] == plain


# Products of 65,536 terms, both operands across the sum, on an H200: rows, columns, those of a tile, the operand that two
# blocks have in common, pieces and tiles done alone before them: microseconds.
RECORDED = {
    (1000, 1000, 128, 256, "", 4): 278.8,
    (1000, 1000, 128, 256, "B", 4): 197.6,
    (520, 520, 128, 176, "", 8): 121.5,
    (520, 520, 128, 136, "A", 6): 132.4,
    (520, 520, 88, 176, "B", 7): 112.7,
    (1544, 1544, 112, 224, "B", 4): 739.2,
    (1544, 1544, 128, 224, "", 1): 878.4,
    (1544, 1544, 112, 256, "B", 4): 753.7,
    (1024, 1000, 128, 256, "", 4): 224.0,
    (1024, 1000, 128, 256, "B", 4): 185.2,
    (1000, 264, 128, 136, "B", 8): 100.3,
    (1024, 1024, 128, 256, "", 4): 175.5,
    (1024, 1024, 128, 256, "B", 4): 179.9,
    (1536, 1536, 128, 128, "A", 11, 132): 407.9,
    (1536, 1536, 128, 192, "", 4): 430.7,
    (1536, 1536, 128, 192, "B", 4): 422.9,
    (1536, 1536, 128, 256, "B", 9): 529.4,
    (2048, 2048, 128, 256, "", 1): 658.7,
    (2048, 2048, 128, 256, "B", 1): 665.2,
    (264, 1000, 128, 256, "A", 11): 110.3,
    (264, 1000, 128, 256, "", 11): 114.0,
}


@pytest.mark.parametrize("case", RECORDED, ids=str)
def test_the_model_knows_lines_and_clusters(case: tuple[Any, ...]) -> None:
    m, n, rows, cols, shared, pieces, *whole = case
    a, b = (Layout(True, size % 64 != 0).reading(tile) for size, tile in ((m, rows), (n, cols)))
    work = Work(
        -(-m // rows) * -(-n // cols), 1024, -(-rows // 64) * 64, -(-cols // 8) * 8, operand_bytes=2 * 65536 * (m + n),
        lines=a.lines // (2 if shared == "A" else 1) + b.lines // (2 if shared == "B" else 1), cluster=2 if shared else 1,
    )  # fmt: skip
    assert microseconds(work, pieces, 132, *whole) == pytest.approx(RECORDED[case], rel=0.25)


def test_tiles_of_gradients_are_as_many_as_clusters_divide() -> None:
    layouts = (Layout(True, True), Layout(True, True))
    rows, _ = mma_tile((1544, 1544), ("m", "n"), 65536, H200, layouts=layouts)
    assert -(-1544 // 128) % 2 == 1 and -(-1544 // rows) % 2 == 0
