"""What the warps of the mma engine's producer put where: their code run in plain Python, thread after thread."""

from __future__ import annotations

import types

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.contraction import tf32x3
from kitsune_mlir.codegen.gpu.engines.mma import producer_copy as mma_copy
from kitsune_mlir.codegen.gpu.engines.mma import producer_tf32x3
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.producer_tf32x3 import SmallPartProducer
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu.mma_text import Layer, program
from test.programs.kept import kept

SHARED = 1 << 20
"""Address of the stage."""


class Memory:
    """Global memory, in which each element is its own address, and what was copied to shared memory."""

    def __init__(self, monkeypatch, size: int):
        self.size = size
        self.shared: dict[int, int | None] = {}
        replace = {
            "for_": lambda start, stop, step, body: [body(i) for i in range(start, stop, step)] and None,
            "if_": lambda condition, then: then() if condition else None,
            "select": lambda condition, yes, no: yes if condition else no,
            "offset": lambda pointer, bytes: pointer + bytes,
            "i1": bool,
            "i64": int,
            "vector": list,
            "bitcast": lambda values, _: values,
            "copy_async": self.copy_async,
            "load_elements": lambda pointer, *_, constant: [pointer],
            "store": self.store,
        }
        for name, function in replace.items():
            monkeypatch.setattr(mma_copy, name, function)

    def copy_async(self, target: int, source: int, bytes: int, inside: bool | None) -> None:
        assert bytes in (4, 8, 16) and target % bytes == 0 and source % bytes == 0
        self._write(target, [None if inside is False else source + i for i in range(0, bytes, self.size)])

    def store(self, values: list[int], target: int) -> None:
        assert target % 16 == 0 and len(values) * self.size == 16
        self._write(target, [value or None for value in values])

    def _write(self, target: int, elements: list[int | None]) -> None:
        for number, element in enumerate(elements):
            place = target + number * self.size
            assert place not in self.shared, "written twice"
            self.shared[place] = element


LAYERS = {
    "pieces_of_8": Layer(300, 1000, 700, tile=(128, 128)),
    "pieces_of_4": Layer(300, 1000, 130, tile=(128, 64)),
    "short_sum": Layer(256, 128, 13, tile=(128, 64)),
    "odd_rows": Layer(129, 200, 77, tile=(100, 56)),
    "transposed": Layer(130, 250, 100, a="km", b="kn", tile=(128, 250)),
    "transposed_whole": Layer(130, 250, 128, a="km", b="kn", tile=(128, 250)),
    "transposed_odd": Layer(77, 3, 100, a="km", b="kn", tile=(77, 3)),
    "f32": Layer(300, 200, 90, tile=(128, 104), dtype="f32", out="f32"),
    "f32_across": Layer(100, 203, 45, tile=(100, 128), a="km", b="kn", dtype="f32", out="f32"),
}


def _planned(layer: Layer) -> MmaPlan:
    plan = MmaEngine().plan(ProgramView(kept(program([layer])[0])).tasks[0], KernelOptions())
    assert isinstance(plan, Plan) and isinstance(plan.private, MmaPlan)
    return plan.private


@pytest.mark.rotated(7)
@pytest.mark.parametrize("threads", [96, 64])  # 64: beside TMA, which loads other ranges
@pytest.mark.parametrize("name", LAYERS)
def test_every_element_of_a_chunk_is_copied_once(context, monkeypatch, name: str, threads: int) -> None:
    mma = _planned(LAYERS[name])
    assert mma.boxes is None
    size = mma.sum.element_bytes
    start = 1 << 12  # no element is at address 0
    for operand, tile in ((mma.a, mma.a_tile), (mma.b, mma.b_tile)):
        inner, length = mma.sum.inner
        along, summed = (operand.window.stride(side) * size for side in (operand.side, inner))
        for chunk in {0, mma.sum.chunks - 1}:
            with monkeypatch.context() as patched:
                memory = Memory(patched, size)
                first = chunk * mma.sum.chunk
                used = tile.cols if operand.transposed else mma.sum.steps * 32 // size
                for thread in range(threads):
                    job = mma_copy._Job(operand, tile, used, mma.sum.inner, start, threads)  # type: ignore[arg-type]
                    job.copy(SHARED, first, thread)  # type: ignore[arg-type]
            assert len(memory.shared) == tile.rows * used
            for row in range(tile.rows):
                for col in range(used):
                    side, k = (col, row) if operand.transposed else (row, col)
                    k += first
                    exists = side < operand.size and k < length
                    expected = start + side * along + k * summed if exists else None
                    assert memory.shared[SHARED + tile.offset(row, col)] == expected, (row, col)


@pytest.mark.parametrize("bytes", [16 * 32, 24 * 1024, 32 * 1024, 20 * 1024 + 512])
@pytest.mark.parametrize("small_part_threads", [(32, 64), (64, 32)])
def test_every_f32_operand_gets_its_rest(monkeypatch, bytes: int, small_part_threads: tuple[int, int]) -> None:
    rests: dict[int, str] = {}

    def store_parts(found: str, source: int, bytes: int) -> None:
        target = source + bytes
        assert target not in rests and target % 16 == 0
        rests[target] = f"rest of {found}"

    replace = {
        "for_": lambda start, stop, step, body: [body(i) for i in range(start, stop, step)] and None,
        "offset": lambda pointer, moved: pointer + moved,
        "load": lambda source, _: source,
        "unpack": lambda found: found,
        "_store_parts": store_parts,
    }
    for name, function in replace.items():
        monkeypatch.setattr(tf32x3, name, function)
    straight = types.SimpleNamespace(turned=False)
    plan = types.SimpleNamespace(small_part_threads=small_part_threads, operand_bytes=bytes, a=straight, b=straight)
    first, count = small_part_threads
    for thread in range(first, first + count):
        task = types.SimpleNamespace(thread=thread)
        SmallPartProducer(plan, task, None)._halve(SHARED)  # type: ignore[arg-type]
    assert rests == {SHARED + bytes + at: f"rest of {SHARED + at}" for at in range(0, bytes, 16)}


@pytest.mark.parametrize("layer", [LAYER for LAYER in LAYERS.values() if LAYER.dtype == "f32"])
def test_what_tma_cannot_load_is_not_turned(context, layer: Layer) -> None:
    """Threads that copy put elements where tensor cores want them."""
    mma = _planned(layer)
    assert mma.exact and mma.boxes is None and not mma.a.turned and not mma.b.turned


@pytest.mark.parametrize(("a", "b"), [("mk", "kn"), ("km", "nk"), ("km", "kn")])
@pytest.mark.parametrize("tile", [(128, 128), (64, 40), (128, 104)])
def test_turned_operands_lie_along_the_sum(context, monkeypatch, a: str, b: str, tile: tuple[int, int]) -> None:
    """TMA's blocks of 32 terms x 32 rows become rows of the stage's tile, and so do the rests."""
    mma = _planned(Layer(256, 200, 100, tile=tile, a=a, b=b, dtype="f32", out="f32"))
    assert mma.boxes is not None and (mma.a.turned, mma.b.turned) == (a == "km", b == "kn")
    held: dict[int, tuple[str, int, int]] = {}
    block = SharedTile(32, 32, 4)
    places = (0, mma.a_tile, mma.a, mma.boxes[0]), (mma.a_tile.bytes, mma.b_tile, mma.b, mma.boxes[1])
    for start, rows, operand, box in places:
        assert box is not None and rows.cols == 32 and rows.bytes == box.bytes
        if operand.turned:
            assert box.map.box[-2:] == (32, 32) and box.panels == rows.rows // 32
        for row in range(rows.rows):
            for term in range(32):
                turned = row // 32 * block.bytes + block.offset(term, row % 32)
                place = turned if operand.turned else rows.offset(row, term)
                assert SHARED + start + place not in held
                held[SHARED + start + place] = operand.side, row, term
    written: dict[int, tuple[str, int, int]] = {}
    met: list[int] = []  # of the calling thread: stores before it has met its warp

    def store_parts(values: list[tuple[str, int, int]], place: int, distance: int) -> None:
        assert distance == mma.operand_bytes and place % 16 == 0
        for number, value in enumerate(values):
            for target in (place + 4 * number, place + 4 * number + distance):
                assert target not in written
                written[target] = value

    def load(source: int, kind: str) -> list | tuple:
        assert kind != "f32" or not met, "a lane's elements are read before any lane writes"
        return held[source] if kind == "f32" else [held[source + 4 * number] for number in range(4)]

    def mine(condition: bool, body) -> None:
        met.clear()
        if condition:
            body()

    def lane(number: int) -> int:  # a block begins
        met.clear()
        return number

    replace = {"offset": lambda pointer, moved: pointer + moved, "load": load, "unpack": list, "fresh": lane}
    replace |= {"sync_warp": lambda: met.append(1), "_store_parts": store_parts}
    replace["for_"] = lambda begin, end, step, body: [body(at) for at in range(begin, end, step)] and None
    for name, function in replace.items():
        monkeypatch.setattr(tf32x3, name, function)
    for name, function in {"offset": replace["offset"], "if_": mine, "warp_id": lambda thread: thread // 32}.items():
        monkeypatch.setattr(producer_tf32x3, name, function)
    first, count = mma.small_part_threads
    assert (first, count) == (32, 96)  # nothing is stored by the last warp
    for thread in range(first, first + count):
        SmallPartProducer(mma, types.SimpleNamespace(thread=thread), None)._halve(SHARED)  # type: ignore[arg-type]
    shares = SmallPartProducer(mma, None, None)._shares(count // 32)  # type: ignore[arg-type]
    assert max(map(len, shares)) <= 4 and sum(map(len, shares)) >= mma.operand_bytes // 4096
    for start, rows, operand, _ in places:
        for row in range(rows.rows):
            for term in range(32):
                target = SHARED + start + rows.offset(row, term)
                assert written[target] == written[target + mma.operand_bytes] == (operand.side, row, term)


@pytest.mark.parametrize(("columns", "registers"), [(64, False), (63, True)])
def test_a_thread_that_copies_arrives_once(columns: int, registers: bool) -> None:
    """Its only arrival comes with its last copy; what goes through its registers is written before."""
    layer = Layer(65, columns, 20, tile=(65, columns), b="kn")
    with new_context(), ir.Location.unknown():
        ptx = compile_gpu(ir.Module.parse(program([layer])[0]), "main_p0").ptx
    before, after = ptx.split("cp.async.mbarrier.arrive.noinc", 1)
    assert "cp.async.mbarrier.arrive" not in before + after
    assert ("membar.cta" in before or "fence.acq_rel.cta" in before) == registers
