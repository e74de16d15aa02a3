"""Ring queues: programs whose tiles go through a few slots, what the check proves of them, and kernels that run them."""

import numpy as np
import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import Cache
from kitsune_mlir.codegen.gpu.interface.operands import cache_of
from kitsune_mlir.codegen.gpu.kernel.spatial.lower_queues import lower_queues
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.check_progress import CheckProgress
from test.gpu.tile_text import Case, buffer, offset, program, rows, store_rows, task
from test.unit.test_gpu_executor import Emulated

QUEUE = "!kitsune.queue<tensor<{tile}x{n}xf32>, {depth} : i64>"


def ringed(tiles: int = 9, tile: int = 4, n: int = 8, depth: int = 2, readers: int = 1, workers=(2, 3, 2)) -> Case:
    """x → ring → one result a reader, tile by tile."""
    m = tiles * tile
    queue = QUEUE.format(tile=tile, n=n, depth=depth)
    arena = depth * tile * n * 4

    def at() -> str:
        return "    %at = arith.muli %slot, %tile : index\n"

    body = buffer("ring", 0, (depth * tile, n), "f32", arena)
    body += (
        f'  %q = "kitsune.make_queue"(%ring) {{pushes = 1 : i64, pops = {readers} : i64}} : '
        f"(memref<{depth * tile}x{n}xf32>) -> {queue}\n"
    )
    text = offset(tile) + f'    %slot = "kitsune.acquire"(%q, %i) : ({queue}, index) -> index\n' + at()
    text += rows("x", "x0", (m, n), tile, "f32") + store_rows("x", "ring", (depth * tile, n), tile, "f32", "at")
    body += task("makes", [tiles], text + f'    "kitsune.push"(%q, %slot) : ({queue}, index) -> ()\n')
    for number in range(readers):
        text = offset(tile) + f'    %slot = "kitsune.pop"(%q, %i) : ({queue}, index) -> index\n' + at()
        text += rows("x", "ring", (depth * tile, n), tile, "f32", "at") + store_rows("x", f"y{number}", (m, n), tile, "f32")
        body += task(f"reads_{number}", [tiles], text + f'    "kitsune.release"(%q, %slot) : ({queue}, index) -> ()\n')
    for count in workers[: readers + 1]:
        body = body.replace('engine = "generic"}', f'engine = "generic", workers = {count} : i64}}', 1)
    inputs, results = (((m, n), "f32", "small"),), (((m, n), "f32"),) * readers
    text = program("main_p0", inputs, results, body, arena).replace(
        "kitsune.program,", 'kitsune.program, kitsune.mode = "spatial",'
    )
    return Case("main_p0", text, inputs, results, lambda torch, x: [x] * readers)


def complaint(text: str) -> str:
    """What `kitsune-check-progress` says; empty if nothing."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        try:
            CheckProgress().run(module.operation)
        except PassFailure as failure:
            return str(failure)
    return ""


@pytest.mark.rotated(6)
@pytest.mark.parametrize("blocks", [3, 4, 7])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 2])
def test_tiles_go_through_a_ring_again_and_again(blocks, depth, readers):
    """On any number of blocks with one for each share at least, in one launch after the other."""
    emulated = Emulated(ringed(depth=depth, readers=readers), blocks)
    for _ in range(3):
        assert emulated.error() == 0


@pytest.mark.parametrize("depth, readers", [(1, 1), (2, 1), (3, 2), (20, 2)])
def test_right_programs_are_proved(depth, readers):
    assert complaint(ringed(depth=depth, readers=readers).text) == ""


def test_a_ring_needs_both_ends_at_the_same_time():
    text = ringed().text.replace('"spatial"', '"temporal"')
    assert "needs a spatial program" in complaint(text)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        with pytest.raises(UnsupportedError, match="on different multiprocessors"):
            lower_queues(module.body.operations[0].operation)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.replace("workers = 3 : i64", "workers = 2 : i64, first = 0 : i64"), "never ends: it waits for a slot"),
        (lambda t: t.replace("workers = 3 : i64", "workers = 3 : i64, first = 1 : i64"), "belong to others"),
        (lambda t: t.replace("pops = 1", "pops = 2"), "counts 2 releases of each tile; tile 0 gets 1"),
        (lambda t: t.replace("pushes = 1", "pushes = 2"), "@reads_0 tile (0) never ends: it waits for 2 posts"),
        (lambda t: t.replace('"kitsune.acquire"(%q, %i)', '"kitsune.acquire"(%q, %off)'), "never ends"),
        (lambda t: t.replace('"kitsune.push"(%q, %slot)', '"kitsune.push"(%q, %i)'), ""),
        (lambda t: t.replace('"kitsune.release"(%q, %slot)', '"kitsune.release"(%q, %zero_ix)'), "counts 1 releases"),
        (lambda t: t.replace("%at = arith.muli %slot, %tile", "%at = arith.muli %i, %tile", 1), ""),
        (lambda t: t.replace("memref.subview %ring[%at, 0]", "memref.subview %ring[%off0, 0]", 1), "outside of the slot"),
    ],
    ids=["shared", "overlap", "pops", "pushes", "number", "same_number", "release", "same_place", "other_place"],
)
def test_faults_are_found(change, message):
    text = ringed().text.replace("    %at =", "    %off0 = arith.muli %zero_ix, %tile : index\n    %at =")
    said = complaint(change(text))
    assert message in said if message else said == "", said


def test_memory_of_a_ring_is_nobody_elses():
    text = ringed().text.replace(
        "  %q =", "  %other = memref.view %arena[%ring_at][] : memref<256xi8> to memref<4xf32>\n  %q ="
    )
    assert "of the arena, which the ring at [0, 256) has" in complaint(text)


def test_queues_become_a_semaphore_a_slot():
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ringed(depth=4, readers=2).text)
        function = module.body.operations[0].operation
        lower_queues(function)
        module.operation.verify()
        ops = list(walk(function))
        slots = [ir.IntegerAttr(op.attributes["slots"]).value for op in ops if op.name == "kitsune.make_semaphore"]
        waits = [op for op in ops if op.name == "kitsune.wait_rounds"]
        assert slots == [4, 4] and not [op for op in ops if "queue" in op.name]
        assert [ir.IntegerAttr(op.attributes["count"]).value for op in waits] == [2, 1, 1]
        assert np.unique([str(op.operands[0]) for op in waits]).size == 2


def test_l2_is_asked_to_keep_what_tasks_hand_on_and_nothing_else():
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(ringed().text)
        function = module.body.operations[0].operation
        lower_queues(function)
        view = ProgramView(function)
        caches = {buffer.role: cache_of(buffer) for task in view.tasks for buffer in task.buffers}
    assert caches == {"arena": Cache.KEEP, "input": Cache.DEFAULT, "result": Cache.DEFAULT}


def test_a_kernel_says_how_many_blocks_its_rings_need():
    assert Emulated(ringed(readers=2), 3).manifest.least_blocks == 3


@pytest.mark.parametrize("name", ["pairs_64k_4_wide", "handoff_l2_16k", "handoff_cluster4_8k"])
def test_measured_kernels_assemble_without_spills(name):
    from test.gpu.queue_kernels import PROBES

    with ir.Context(), ir.Location.unknown():
        made = PROBES[name].make(PROBES[name]).compile()
    assert not any(kernel.spill_store_bytes for kernel in made.cubin.kernels.values())
    assert ("mapa.shared::cluster" in made.ptx) == name.startswith("handoff_cluster")
    assert ("red.release.gpu" in made.ptx) == (not name.startswith("handoff_cluster"))
    assert ".extern .func" not in made.ptx
