"""What a wait and a post cost: looked at once, made once, by blocks that are spread over the machine."""

import pytest

from kitsune_mlir.codegen.gpu.emit.smem import SHARED_LIMIT
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES, choose
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.gpu.kernel.footprint import Footprint
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.schedule import make_schedule
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.block import Space
from test.emulators.kernel import KernelBlock, Machine, run_blocks
from test.gpu import cases, cases_bodies
from test.gpu.tile_text import buffer, offset, post, program, rows, semaphore, store_rows, task, wait_all, wait_one
from test.programs.view import view

pytestmark = pytest.mark.usefixtures("context")


def two(wait: str, slots: int = 1, slot: str = "first") -> ProgramView:
    """Four tiles of a copy, and four of another that waits as it is told."""
    shape = (16, 8)
    body = buffer("h", 0, shape, "f32", 512) + semaphore("s", slots)
    first = offset(4) + "    %first = arith.constant 0 : index\n" + rows("t", "x0", shape, 4, "f32")
    body += task("one", [4], first + store_rows("t", "h", shape, 4, "f32") + post("s", slot), "greedy")
    second = offset(4) + wait + rows("t", "h", shape, 4, "f32") + store_rows("t", "y0", shape, 4, "f32")
    body += task("two", [4], second, "greedy")
    return view(program("main", [(shape, "f32", "normal")], [(shape, "f32")], body, 512))


class Greedy(Engine):
    """Waits and posts, and takes so much shared memory."""

    name = "greedy"

    def __init__(self, shared_bytes: int):
        self.shared_bytes = shared_bytes

    def plan(self, task, limits):
        return Plan(self.name, task, shared_bytes=self.shared_bytes)

    def emit_tile(self, plan, tile):
        tile.wait()
        tile.finish()


def code(view: ProgramView, shared_bytes: int = 1024) -> str:
    return str(build(view, "k", KernelOptions(), {"greedy": Greedy(shared_bytes)}).module)


def test_semaphores_that_are_waited_for_as_a_whole():
    made = view(cases_bodies.everybody_waits(16, 4, 4, 3).text)
    schedule = make_schedule(made, KernelOptions(), AllBlocks(), ENGINES, choose)
    # Stages 0 and 2 post to one slot, stage 1 to one a tile.
    assert schedule.whole == {task.posts[0].semaphore.first for task in made.tasks[:3:2]}
    tiles = view(cases.two_stages(20, 8, 5, 4).text)
    assert not make_schedule(tiles, KernelOptions(), AllBlocks(), ENGINES, choose).whole


class Counting(KernelBlock):
    """Notes what it posts, and how often it looks at semaphores."""

    def __init__(self, *given):
        super().__init__(*given)
        self.posted, self.looks = [], 0

    def assembly(self, text, operands, mask):
        if text.startswith("red.release"):
            self.posted += operands[1][mask].tolist()
        self.looks += "ld.acquire" in text
        return super().assembly(text, operands, mask)


def traffic(view: ProgramView, count: int) -> list[tuple[list[int], int]]:
    """What each of so many blocks posts, and how often it looks."""
    made, machine = build(view, "k", KernelOptions(), {"greedy": Greedy(1024)}), Machine()
    manifest, module = made.manifest, made.module.operation
    sizes = [*manifest.input_bytes, *manifest.result_bytes, manifest.arena_bytes, manifest.workspace_bytes(count)]
    pointers = [machine.add(Space(size, checked=False)) for size in sizes]
    machine.spaces[-1].data[: manifest.cleared_bytes] = 0
    machine.define(module)
    blocks = [Counting(machine, module, manifest.threads, n, count, manifest.shared_bytes) for n in range(count)]
    run_blocks(blocks, module.context, manifest.kernel, pointers)
    return [(block.posted, block.looks) for block in blocks]


@pytest.mark.parametrize("blocks", [1, 2])
def test_one_post_for_all_tiles_of_a_block_and_one_look(blocks: int):
    """Four tiles, dealt out evenly: a whole semaphore gets what a block has done at once, others a post a tile."""
    each = 4 // blocks
    assert traffic(two(wait_all("s", 1, 4)), blocks) == [([each], 1)] * blocks
    assert traffic(two(wait_all("s", 1, 3)), blocks) == [([1] * each, 1)] * blocks
    assert traffic(two(wait_one("s"), 4, "i"), blocks) == [([1] * each, each)] * blocks  # each tile waits for something else


@pytest.mark.parametrize("shared, numbered", [(SHARED_LIMIT // 2 + 1024, True), (4096, False)])
def test_blocks_that_have_a_multiprocessor_for_themselves_are_numbered_by_it(shared, numbered):
    assert ("smid" in code(two(wait_all("s", 1, 4)), shared)) == numbered
    nothing = two("").function
    assert "smid" not in str(nothing)


def test_a_kernel_that_waits_for_nothing_keeps_its_numbers():
    """Its blocks need not be there at the same time, so two could have the number of one multiprocessor."""
    shape = (16, 8)
    copy = offset(4) + rows("t", "x0", shape, 4, "f32") + store_rows("t", "y0", shape, 4, "f32")
    alone = view(program("main", [(shape, "f32", "normal")], [(shape, "f32")], task("one", [4], copy, "greedy"), 256))
    assert "smid" not in code(alone, SHARED_LIMIT // 2 + 1024)


def test_short_stages_that_follow_each_other_have_one_block_on_each_multiprocessor():
    from test.gpu.handoff_programs import BLOCKS, copies_text

    def planned(text: str) -> tuple[int, list[int]]:
        made, limits = view(text), KernelOptions()
        schedule = make_schedule(made, limits, AllBlocks(), ENGINES, choose)
        manifest = Footprint(made, "k", limits, schedule, AllBlocks()).manifest()
        return manifest.tiles, [plan.parameters["unroll"] for plan in schedule.plans]

    both = copies_text(8, (0, 1))
    assert planned(both) == (BLOCKS, [8, 8])
    beside = "\n".join(line for line in both.split("\n") if '"kitsune.wait"' not in line)
    assert planned(beside)[0] == 2 * BLOCKS  # they may run at the same time
