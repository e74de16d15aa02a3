"""The mma engine without a GPU: what it takes and declines, its plans, and that its kernels assemble without spills."""

from __future__ import annotations

import dataclasses
import re
import types

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_mlir import ir

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.contraction.split_k import Pieces
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.mma.geometry import Geometry
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan, _share
from kitsune_mlir.codegen.gpu.engines.mma.rasterize import GROUP_M, _grouped
from kitsune_mlir.codegen.gpu.interface.context import TaskContext
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split, lay_out
from kitsune_mlir.codegen.gpu.interface.window import multiple_of
from kitsune_mlir.codegen.gpu.kernel.schedule import _weights
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import WARPGROUP_THREADS
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.gpu.mma_programs import SMALL
from test.gpu.mma_text import Layer, program
from test.gpu.unassembled import unassembled
from test.programs.kept import kept
from test.rotation import in_turn


def planned(text: str, **limits) -> Plan | Decline:
    return MmaEngine().plan(ProgramView(kept(text)).tasks[0], KernelOptions(**limits))


def decided(layer: Layer) -> MmaPlan:
    plan = planned(program([layer])[0])
    assert isinstance(plan, Plan), plan
    return plan.private


@pytest.mark.parametrize("name", in_turn(list(SMALL), 5))
def test_small_programs_assemble_without_spills(name: str) -> None:
    with new_context(), ir.Location.unknown():
        layers = SMALL[name]
        text = program(layers)[0]
        code = compile_gpu(ir.Module.parse(text), "main_p0", KernelOptions(matmul_precision=layers[0].precision))
    assert {choice.engine for choice in code.engines} == {"mma"}
    assert not code.resources.spills and not code.resources.stack_bytes
    assert not code.warnings
    assert "wgmma.mma_async" in code.ptx


@pytest.mark.parametrize("rows", [1, 7, 64, 65, 100, 128])
@pytest.mark.parametrize("cols", [1, 3, 8, 27, 64, 96, 100, 200, 256])
@pytest.mark.parametrize("transposed", [False, True])
def test_geometry_covers_the_tile(rows: int, cols: int, transposed: bool) -> None:
    shape = Geometry.of(rows, cols, transposed)
    assert shape.covered_rows >= rows and shape.covered_cols >= cols
    assert shape.n % 8 == 0 and shape.n <= 256
    assert shape.b_rows >= shape.covered_cols and shape.b_rows % (64 if transposed else 8) == 0
    # A wide tile of few rows gives both warpgroups columns of their own.
    assert shape.groups == 2 or (rows <= 64 and cols <= (64 if transposed else 8))
    assert shape.by_rows == (rows > 64)


def test_operands_through_tma(context) -> None:
    mma = decided(Layer(1024, 1024, 520))
    assert mma.boxes is not None
    a, b = mma.boxes
    assert a.map.box == (128, 64) and b.map.box == (256, 64) and a.map.shape == (1024, 520)
    assert mma.sum.chunks == 9 and mma.sum.steps == 4
    assert mma.stages == 4 and mma.stage_bytes == 49152


def test_transposed_operands_load_panels(context) -> None:
    mma = decided(Layer(1024, 1024, 512, a="km", b="kn"))
    assert mma.boxes is not None
    a, b = mma.boxes
    assert mma.a.transposed and mma.b.transposed
    assert a.map.box == b.map.box == (64, 64) and (a.panels, b.panels) == (2, 4)


def test_odd_strides_are_copied(context) -> None:
    mma = decided(Layer(300, 256, 13))
    assert mma.boxes is None and "26 bytes" in mma.why_copied
    assert mma.sum.steps == 1


def test_tiles_that_begin_at_odd_places_of_a_row_are_copied(context) -> None:
    """Rows of one term have no stride that says so; an H200 ends a kernel whose tensor copies begin there."""
    mma = decided(Layer(257, 129, 1))
    assert mma.boxes is None and "begins at 258 bytes" in mma.why_copied
    mma = decided(Layer(256, 128, 1))
    assert mma.boxes is not None


def test_heads_have_a_dimension_of_their_own(context) -> None:
    mma = decided(Layer(128, 128, 64, batch=4, heads=4))
    assert mma.boxes is not None
    assert mma.boxes[0].map.shape == (4, 128, 64) and mma.boxes[0].map.strides_bytes == (128, 512)


def test_one_column_lies_along_the_columns(context) -> None:
    mma = decided(Layer(300, 1, 256))
    assert (mma.geometry.rows, mma.geometry.cols) == (1, 128)


def test_swapped_inputs_are_told_apart_by_the_result(context) -> None:
    mma = decided(Layer(300, 1000, 704, swap=True))
    assert (mma.pattern.product.a, mma.pattern.product.b) == (1, 0)


def test_single_precision_is_three_products_of_halves_or_one_rounded(context) -> None:
    text = program([Layer(512, 512, 96, tile=(128, 128), dtype="f32", out="f32")])[0]
    exact, rounded = planned(text), planned(text, matmul_precision="high")
    assert isinstance(exact, Plan) and isinstance(rounded, Plan)
    assert exact.private.exact and not rounded.private.exact
    assert exact.private.stage_bytes == 2 * rounded.private.stage_bytes == 2 * (128 + 128) * 128
    assert [use.map.dtype for use in exact.tensor_maps] == ["f32", "f32"]
    assert [use.map.dtype for use in rounded.tensor_maps] == ["tf32", "tf32"]  # TMA rounds, tensor cores would cut off
    assert exact.private.sum.chunks == rounded.private.sum.chunks == 3
    assert exact.parameters["instruction"] == "m64n128k8 tf32, three times"


def test_single_precision_is_never_read_transposed(context) -> None:
    layer = Layer(512, 512, 96, tile=(128, 128), dtype="f32", out="f32", b="kn")
    mma = decided(layer)
    assert mma.boxes is not None and mma.b.turned and not mma.b.transposed and not mma.a.turned
    for columns, precision in ((511, "highest"), (512, "high")):  # nothing TMA can load, or nobody to turn it
        text = program([dataclasses.replace(layer, n=columns)])[0]
        plan = planned(text, matmul_precision=precision)
        assert isinstance(plan, Plan) and plan.copied and not plan.private.b.turned and not plan.private.b.transposed


def test_products_of_one_a_have_blocks_of_their_own_to_turn(context) -> None:
    def plan(columns: int) -> Plan | Decline:
        shape = Layer(200, 96, 256, tile=(128, columns), epilogue=("silu", "gated"), dtype="f32", out="f32", b="kn")
        return planned(program([shape])[0])

    whole = plan(32)
    assert isinstance(whole, Plan) and whole.private.b.turned and whole.private.geometry.products == 2
    assert isinstance(plan(48), Decline)


def test_double_precision_is_declined(context) -> None:
    text = program([Layer(64, 64, 64, dtype="f32", out="f32")])[0].replace("f32", "f64")
    decision = planned(text)
    assert isinstance(decision, Decline) and "f64" in decision.reason


@pytest.mark.parametrize(
    ("layer", "slice", "box"),
    [
        (Layer(512, 512, 64), 64, (64, 64)),
        (Layer(512, 480, 64, tile=(128, 96)), 32, (64, 32)),
        (Layer(48, 32, 64), 16, (64, 16)),  # sticks out of the tensor, where TMA writes nothing
        (Layer(256, 64, 64, batch=3), 64, (1, 64, 64)),
    ],
    ids=lambda value: str(value) if isinstance(value, int | tuple) else "",
)
def test_results_that_tma_stores(context, layer: Layer, slice: int, box: tuple[int, ...]) -> None:
    mma = decided(layer)
    assert [result.number for result in mma.results] == [0] and mma.slice == slice
    assert mma.results[0].map.box == box and mma.out_tile.rows == 64


@pytest.mark.parametrize(
    "layer",
    [
        Layer(512, 512, 64, out="f32"),
        Layer(512, 250, 64),  # rows of 500 bytes
        Layer(512, 512, 64, tile=(96, 128)),  # the next tile's rows would be overwritten
        Layer(512, 520, 64, tile=(128, 104)),
    ],
    ids=["f32", "odd_stride", "rows", "columns"],
)
def test_results_that_threads_store(context, layer: Layer) -> None:
    assert decided(layer).results == ()


def test_few_tiles_are_shared_by_blocks(context) -> None:
    plan = planned(program([Layer(128, 1024, 4096, tile=(128, 128))])[0])
    assert isinstance(plan, Plan) and plan.split is not None
    pieces = plan.split.pieces
    assert 2 <= pieces <= 12 and plan.pieces == 8 * pieces
    assert plan.split.spread and plan.split.bytes == 8 * pieces * 128 * 128 * 4
    assert plan.split.arrivals == 16 and plan.split.reads == 16 * pieces  # of each warpgroup of each tile
    many = planned(program([Layer(8192, 1024, 4096, tile=(128, 128))])[0])
    assert isinstance(many, Plan) and many.split is None


@pytest.mark.parametrize(("width", "pieces", "share"), [(256, 11, 32), (256, 5, 64), (128, 4, 32), (64, 8, 16), (104, 3, 8)])
def test_blocks_that_share_a_tile_add_up_about_equal_parts(width: int, pieces: int, share: int) -> None:
    assert _share(width, pieces) == share


def test_all_blocks_of_a_tile_post_for_it(context) -> None:
    """Each adds its part of what a tile that one block does alone adds at once."""
    view = ProgramView(kept(program(SMALL["five_layers_shared"])[0]))
    plans = [MmaEngine().plan(task, KernelOptions()) for task in view.tasks]
    assert all(isinstance(plan, Plan) for plan in plans)
    weights = _weights([plan for plan in plans if isinstance(plan, Plan)])
    pieces = [plan.split.pieces for plan in plans[:-1] if isinstance(plan, Plan) and plan.split]
    assert len(pieces) == 4 and sorted(weights.values()) == sorted(pieces)


@pytest.mark.parametrize("whole", [0, 3])
@pytest.mark.parametrize(("pieces", "chunks"), [(2, 7), (3, 12), (5, 11)])
def test_pieces_cover_the_sum_once(monkeypatch, pieces: int, chunks: int, whole: int) -> None:
    module = "kitsune_mlir.codegen.gpu.contraction.split_k"
    monkeypatch.setattr(f"{module}.select", lambda condition, yes, no: yes if condition else no)
    monkeypatch.setattr(f"{module}.i32", int)
    split = Split(pieces, 0, 0, 0, whole)
    shares = Pieces(types.SimpleNamespace(split=split), None)  # type: ignore[arg-type]
    ranges = [shares.chunks(piece, chunks) for piece in range(pieces)]  # type: ignore[arg-type]
    assert [k for begin, end in ranges for k in range(begin, end)] == list(range(chunks))
    assert [bool(shares.finishes(piece)) for piece in range(pieces)] == [False] * (pieces - 1) + [True]  # type: ignore[arg-type]
    if whole:  # a tile that one block does alone
        assert shares.chunks(pieces, chunks) == (0, chunks) and shares.finishes(pieces)  # type: ignore[arg-type]
    assert split.count(10) == whole + (10 - whole) * pieces


@pytest.mark.parametrize(("tiles", "whole", "pieces", "blocks", "by_piece", "beside"), [
    (16, 0, 8, 132, True, 1), (7, 0, 3, 21, True, 1), (150, 132, 7, 132, True, 1), (16, 0, 8, 127, True, 1),
    (16, 0, 8, 132, False, 1), (16, 0, 8, 132, True, 4), (16, 0, 8, 128, False, 4), (144, 132, 11, 132, False, 2),
    (16, 0, 8, 126, True, 2),
])  # fmt: skip
def test_each_piece_is_done_once_and_neighbours_share_operands(
    monkeypatch, tiles: int, whole: int, pieces: int, blocks: int, by_piece: bool, beside: int
) -> None:
    """Where each has a block: with fewer, a block would wait for a piece that it has not begun."""
    module = "kitsune_mlir.codegen.gpu.interface.context"
    monkeypatch.setattr(f"{module}.select", lambda condition, yes, no: yes if condition else no)
    monkeypatch.setattr(f"{module}.i32", int)
    monkeypatch.setattr(f"{module}.TileContext", lambda task, tile, number: tile)
    monkeypatch.setattr(f"{module}.for_", lambda first, end, step, body, _: [body(number) for number in range(end)])
    split = Split(pieces, 0, 0, 0, whole, spread=True, by_piece=by_piece)
    task = types.SimpleNamespace(
        plan=types.SimpleNamespace(split=split, beside=beside), end=None, blocks=blocks, pieces=split.count(tiles), _first=0,
        view=types.SimpleNamespace(tiles=tiles),
    )  # fmt: skip
    found = TaskContext.for_each_piece(task, lambda tile, piece: (tile, piece))  # type: ignore[arg-type]
    shared = [(tile, piece) for tile in range(whole, tiles) for piece in range(pieces)]
    assert found[:whole] == [(tile, pieces) for tile in range(whole)] and sorted(found[whole:]) == shared
    apart = by_piece and blocks >= len(shared)
    if beside == 1:
        assert (found[whole][1] == found[whole + 1][1]) == apart and (found[whole][0] == found[whole + 1][0]) == (not apart)
    for first in range(0, len(found), beside):  # a cluster: one piece of tiles beside each other
        cluster = found[first : first + beside]
        assert cluster == [(cluster[0][0] + block, cluster[0][1]) for block in range(beside)]


def test_pieces_of_long_sums_are_dealt_out_in_turn(context) -> None:
    plans = [decided(Layer(256, 512, terms, tile=(128, 128))).split for terms in (8 * 512, 8 * 512 - 64)]
    assert [plan is not None and plan.by_piece for plan in plans] == [True, False]


@pytest.mark.parametrize("pieces", [2, 3, 5, 12])
def test_sums_have_the_same_order_whichever_piece_adds_them_up(monkeypatch, pieces: int) -> None:
    """Elements of tiles that overlap are stored by two blocks, whose pieces need not have the same number."""
    module = "kitsune_mlir.codegen.gpu.contraction.split_k"
    count, run = 16, 32
    partials = np.random.default_rng(0).standard_normal((pieces, 3 * run)).astype(np.float32)
    read: set[int] = set()

    def load_elements(place: tuple[int, int], *_args, align: int) -> list[np.float32]:
        read.add(place[0])
        return list(partials[place[0]][place[1] // (4 * WARPGROUP_THREADS) :][:4])

    def for_(start, stop, step, body, carried):
        for index in range(start, stop, step):
            carried = body(index, *carried)
        return carried

    fakes = {"select": lambda condition, yes, no: yes if condition else no, "i32": int, "i64": int, "for_": for_}
    fakes |= {"constant": lambda value, _: np.float32(value), "load_elements": load_elements}
    fakes["offset"] = lambda place, bytes: (place[0], place[1] + bytes)
    for name, fake in fakes.items():
        monkeypatch.setattr(f"{module}.{name}", fake)
    shares = Pieces(types.SimpleNamespace(split=Split(pieces, 0, 0, 0, spread=True)), None)  # type: ignore[arg-type]
    monkeypatch.setattr(shares, "_pointer", lambda _tile, piece, _group: (piece, 0))
    registers = [start + number for start in (16, 16 + run) for number in range(count)]
    wanted = np.zeros(2 * count, np.float32)
    for part in partials:
        wanted = wanted + part[registers]
    for piece in range(pieces):
        read.clear()
        own = list(partials[piece][registers])
        found = shares.sums(None, piece, None, 16, [0, run], own)  # type: ignore[arg-type]
        assert np.array_equal(np.array(found).view(np.int32), wanted.view(np.int32))
        assert read == set(range(pieces)) - {piece}


def test_tiles_that_overlap_are_all_summed_in_one_way(context) -> None:
    """Only the last wave's tiles are shared of whole ones, not where one of them writes elements of a tile before it."""
    whole = [decided(Layer(rows, 512, 2048, tile=(128, 128), epilogue=("bias",))).split for rows in (128 * 36, 128 * 36 - 1)]
    assert whole[0] is not None and whole[0].whole == 132
    assert whole[1] is None or not whole[1].whole


def test_partial_results_of_tasks_take_turns() -> None:
    split = Split(pieces=2, bytes=1000, arrivals=4, reads=3)
    places, bytes, counters = lay_out([split, None, split, split], 10)
    assert places[1] is None and bytes == 2 * 1024
    first, second, third = (place for place in places if place is not None)
    assert (first.offset, second.offset, third.offset) == (0, 1024, 0)
    assert (first.arrivals, first.read, first.before) == (10, 14, None)
    assert second.before is None
    # The third writes where the first's partial results were: not before all of them have been read.
    assert third.before == (first.read, 3) and counters == 10 + 3 * 5


def test_each_region_of_partial_results_is_as_large_as_its_largest_task_needs() -> None:
    splits = [Split(pieces=2, bytes=bytes, arrivals=4, reads=3) for bytes in (1000, 100, 3000, 500)]
    places, bytes, _ = lay_out(splits, 0)
    assert [place.offset for place in places if place is not None] == [0, 3072, 0, 3072] and bytes == 3072 + 512
    assert lay_out(splits[:1], 0)[1] == 1024 and lay_out([None], 0)[1] == 0


def test_large_tiles_are_declined(context) -> None:
    decision = planned(program([Layer(512, 512, 64, tile=(256, 64))])[0])
    assert isinstance(decision, Decline) and "256 x 64" in decision.reason


def test_other_chips_are_declined(context) -> None:
    decision = planned(program([Layer(64, 64, 64)])[0], chip="sm_100a")
    assert isinstance(decision, Decline) and "sm_90a" in decision.reason


NEGATED = """linalg.generic {
  indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
  iterator_types = ["parallel", "parallel"]
} ins(%loaded : tensor<64x64xbf16>) outs(%loaded : tensor<64x64xbf16>) {
^bb0(%q: bf16, %o: bf16):
  %n = arith.negf %q : bf16
  linalg.yield %n : bf16
} -> tensor<64x64xbf16>"""


def test_an_operand_computed_in_the_task_is_declined(context) -> None:
    text = program([Layer(64, 64, 64)])[0]
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "to_tensor %a0" in line)
    name = lines[at].split("=")[0].strip()
    lines[at] = lines[at].replace(name, "%loaded")
    lines.insert(at + 1, f"{name} = {NEGATED}")
    decision = planned("\n".join(lines))
    assert isinstance(decision, Decline) and "computed in the task" in decision.reason


def test_offsets_know_what_divides_them(context) -> None:
    module = ir.Module.parse(
        """func.func @f(%i: index) -> (index, index) {
          %a = arith.constant 128 : index
          %b = arith.constant 72 : index
          %x = arith.muli %i, %a : index
          %y = arith.minui %x, %b : index
          return %x, %y : index, index }"""
    )
    block = list(module.body.operations)[0].regions[0].blocks[0]
    x, y = list(block.operations)[-1].operands
    assert (multiple_of(x), multiple_of(y), multiple_of(block.arguments[0]), multiple_of(0)) == (128, 8, 1, 0)


@pytest.mark.parametrize(("rows", "cols"), [(GROUP_M * 2, 8), (GROUP_M + 3, 5), (GROUP_M * 3 + 1, 1), (17, 32)])
def test_the_grouped_order_is_a_permutation(monkeypatch, rows: int, cols: int) -> None:
    monkeypatch.setattr(
        "kitsune_mlir.codegen.gpu.engines.mma.rasterize.select", lambda condition, yes, no: yes if condition else no
    )
    planes = 2
    walked = [_grouped(number, rows, cols) for number in range(planes * rows * cols)]
    assert sorted(walked) == list(range(planes * rows * cols))
    # One column of a group after the other.
    assert walked[:3] == [0, cols, 2 * cols]


def test_a_chunk_ends_where_an_update_follows_two_products() -> None:
    """A gradient and its bias' gradient, which ptxas takes half a minute for if they are in flight before a long epilogue."""

    def update(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight - 0.1 * (dy.T @ x), dy.float().sum(0)

    def gradients(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return dy.T @ x, dy.float().sum(0)

    args = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((2048, 4096), (2048, 4096), (4096, 4096))]
    waits = []
    for function, given in ((update, args), (gradients, args[:2])):
        texts: list[str] = []
        with unassembled(texts.append):
            kitsune_mlir.compile(Function(function), given, target="sm_90a")
        waits.append(set(re.findall(r"wgmma.wait_group.sync.aligned (\d)", texts[0])))
    assert waits == [{"0"}, {"0", "2"}]
