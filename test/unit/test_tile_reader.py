"""The one reader of tile programs: records that all share, and what it says of programs that are not of the form."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.host.machine import this_machine
from kitsune_mlir.codegen.host.program import lower_programs
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_accesses import read_accesses
from kitsune_mlir.dialects.tile_reader import MalformedProgram, ProgramView, TileProgram
from kitsune_mlir.errors import UnsupportedError

VIEW = "%h = memref.view %arena[%c256][] : memref<512xi8> to memref<64xf32>"
QUEUE = """%q = "kitsune.make_queue"(%h) {pushes = 1 : i64, pops = 1 : i64} :
    (memref<64xf32>) -> !kitsune.queue<tensor<32xf32>, 2 : i64>"""
ROWS = """"kitsune.wait_rows"(%s, %i, %i, %n) {count = 1 : i64, rows = 1 : i64, extent = 2 : i64} :
    (!kitsune.semaphore, index, index, memref<64xi32>) -> ()"""
WAIT = '"kitsune.wait"(%s, %i, %i) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()'


def program(declared: str = "", task: str = "") -> str:
    return f"""
func.func @main(%x: memref<64xf32>, %out: memref<64xf32>, %arena: memref<512xi8>)
    attributes {{kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64, kitsune.mode = "spatial"}} {{
  %c0 = arith.constant 0 : index
  %c256 = arith.constant 256 : index
  %s = "kitsune.make_semaphore"() {{slots = 2 : i64}} : () -> !kitsune.semaphore
  {VIEW}
  {declared}
  "kitsune.task"() ({{
  ^bb0(%i: index):
    {task}
    "kitsune.yield"() : () -> ()
  }}) {{sym_name = "only", grid = array<i64: 2>, workers = 1 : i64}} : () -> ()
  return
}}"""


@pytest.fixture
def read():
    """A function that parses a program and gives its function to a reader, in a context that stays as long as the test."""
    with new_context(), ir.Location.unknown():
        modules: list[ir.Module] = []

        def of(text: str, reader=TileProgram):
            modules.append(ir.Module.parse(text))
            return reader(modules[-1].body.operations[0].operation)

        yield of


def test_buffers_say_whose_memory_they_are(read):
    found = read(program("%r = memref.expand_shape %h [[0, 1]] output_shape [8, 8] : memref<64xf32> into memref<8x8xf32>"))
    names = ["argument 0", "result 0", "the arena", "the buffer at arena byte 256", "the buffer at arena byte 256"]
    assert [buffer.name for buffer in found.buffers.values()] == names
    *_, arena, view, reshaped = found.buffers.values()
    assert found.arena is arena and view.source is None and reshaped.origin is view
    assert reshaped.memory == view.memory == (2, 256) and (reshaped.shape, reshaped.bytes) == ((8, 8), 256)
    assert view.overlaps(reshaped) and not view.overlaps(next(iter(found.buffers.values())))


def test_the_same_waits_as_values_and_as_numbers(read):
    text = program(task=f'{WAIT}\n"kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()')
    (task,) = read(text, ProgramView).tasks
    (tiles,) = read(text, read_accesses).tasks
    assert task.waits[0].lo == task.coordinates[0] and tiles.waits[0].lo.tolist() == [0, 1]
    assert task.posts[0].slot == task.coordinates[0] and tiles.posts[0].slot.tolist() == [0, 1]
    assert (task.waits[0].count, tiles.waits[0].count) == (1, 1)


@pytest.mark.parametrize(
    "declared, task, said",
    [
        ("%a = memref.alloc() : memref<4xf32>", "", "'memref.alloc'.*views, constants, semaphores and tasks"),
        ("%v = memref.view %arena[%c256][] : memref<512xi8> to memref<128xf32>", "", r"bytes \[256, 768\) of an arena of 512"),
        ("%n = memref.view %arena[%c0][] : memref<512xi8> to memref<64xi32>", ROWS, "indices that are an input"),
    ],
    ids=["alloc", "past the arena", "rows named by what tasks make"],
)
def test_what_is_wrong_is_named(read, declared, task, said):
    with pytest.raises(MalformedProgram, match=said):
        read(program(declared, task), ProgramView)


def test_code_generators_want_queues_lowered(read):
    assert len(read(program(QUEUE)).queues) == 1
    with pytest.raises(UnsupportedError, match=r"'kitsune.make_queue'.*views, constants, semaphores and tasks"):
        read(program(QUEUE), ProgramView)


def test_rounds_are_no_business_of_the_check_nor_of_the_host(read):
    rounds = WAIT.replace("wait", "wait_rounds").replace("%i)", "%i, %c0)").replace("index)", "index, index)")
    assert read(program(task=rounds), ProgramView).tasks[0].uses_ring
    with pytest.raises(MalformedProgram, match="progress is shown of the queues"):
        read(program(task=rounds), read_accesses)
    with pytest.raises(UnsupportedError, match="no rings"):
        read(program(task=rounds), lambda function: lower_programs(function.parent, this_machine()))
