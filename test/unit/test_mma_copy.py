"""What the warps of the mma engine's producer put where: their code run in plain Python, thread after thread."""

from __future__ import annotations

import types

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.contraction import tf32x3
from kitsune_mlir.codegen.gpu.engines.mma import producer_copy as mma_copy
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.mma.plan import MmaPlan
from kitsune_mlir.codegen.gpu.engines.mma.producer_tf32x3 import SmallPartProducer
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.gpu.mma_text import Layer, program

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
            "i64": int,
            "vector": list,
            "bitcast": lambda values, _: values,
            "copy_async": self.copy_async,
            "load_elements": lambda pointer, *_, constant: [pointer],
            "store": self.store,
        }
        for name, function in replace.items():
            monkeypatch.setattr(mma_copy, name, function)

    def copy_async(self, target: int, source: int, bytes: int, inside: bool) -> None:
        assert bytes in (4, 8, 16) and target % bytes == 0 and source % bytes == 0
        self._write(target, [source + i if inside else None for i in range(0, bytes, self.size)])

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
    "transposed_odd": Layer(77, 3, 100, a="km", b="kn", tile=(77, 3)),
    "f32": Layer(300, 200, 90, tile=(128, 104), dtype="f32", out="f32"),
    "f32_across": Layer(100, 203, 45, tile=(100, 128), a="km", b="kn", dtype="f32", out="f32"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_element_of_a_chunk_is_copied_once(context, monkeypatch, name: str) -> None:
    layer = LAYERS[name]
    module = ir.Module.parse(program([layer])[0])
    plan = MmaEngine().plan(ProgramView(list(module.body.operations)[0].operation).tasks[0], KernelOptions())
    assert isinstance(plan, Plan) and isinstance(plan.private, MmaPlan) and plan.private.boxes is None
    mma = plan.private
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
                for thread in range(mma.copiers):
                    job = mma_copy._Job(operand, tile, used, mma.sum.inner, start, mma.copiers)  # type: ignore[arg-type]
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
        "_store_parts": store_parts,
    }
    for name, function in replace.items():
        monkeypatch.setattr(tf32x3, name, function)
    plan = types.SimpleNamespace(small_part_threads=small_part_threads, operand_bytes=bytes)
    first, count = small_part_threads
    for thread in range(first, first + count):
        task = types.SimpleNamespace(thread=thread)
        SmallPartProducer(plan, task, None)._halve(SHARED)  # type: ignore[arg-type]
    assert rests == {SHARED + bytes + at: f"rest of {SHARED + at}" for at in range(0, bytes, 16)}


@pytest.mark.parametrize(("columns", "registers"), [(64, False), (63, True)])
def test_a_thread_that_copies_arrives_once(columns: int, registers: bool) -> None:
    """Its only arrival comes with its last copy; what goes through its registers is written before."""
    layer = Layer(65, columns, 20, tile=(65, columns), b="kn")
    with new_context(), ir.Location.unknown():
        ptx = compile_gpu(ir.Module.parse(program([layer])[0]), "main_p0").ptx
    before, after = ptx.split("cp.async.mbarrier.arrive.noinc", 1)
    assert "cp.async.mbarrier.arrive" not in before + after
    assert ("membar.cta" in before or "fence.acq_rel.cta" in before) == registers
