"""`kitsune-check-progress`: verdicts on whole programs and on seeded faults, against a slow and independent judge."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from torch_mlir import ir

from kitsune_mlir.dialects.tile_indices import Points, TileIndices
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.check_progress import CheckProgress
from test.oracles.schedules import verdict, width
from test.programs.planned import CASES, MLP, parse, rows, tile_program
from test.rotation import in_turn

Edit = Callable[[], object]


def function_of(module: ir.Module) -> ir.Operation:
    return module.body.operations[0].operation


def parts(module: ir.Module, name: str) -> list[ir.Operation]:
    """All operations of a name, in the function and in its tasks."""
    found = []
    for op in function_of(module).regions[0].blocks[0].operations:
        inner = op.operation.regions[0].blocks[0].operations if op.operation.name == "kitsune.task" else []
        found += [o.operation for o in [op, *inner] if o.operation.name == name]
    return found


def moved(op: ir.Operation, operand: int, by: int) -> Edit:
    """Add a number to an index operand."""

    def edit() -> None:
        with ir.InsertionPoint(op), op.location:
            index = ir.IndexType.get()
            constant = ir.Operation.create("arith.constant", [index], [], {"value": ir.IntegerAttr.get(index, by)})
            total = ir.Operation.create("arith.addi", [index], [op.operands[operand], constant.results[0]])
            op.operands[operand] = total.results[0]

    return edit


def counted(op: ir.Operation, by: int) -> Edit:
    """Change the count of a wait."""

    def edit() -> None:
        count = ir.IntegerAttr(op.attributes["count"])
        op.attributes["count"] = ir.IntegerAttr.get(count.type, count.value + by)

    return edit


def both(first: Edit, second: Edit) -> Edit:
    """One edit and then another."""

    def edit() -> None:
        first()
        second()

    return edit


def doubled(op: ir.Operation) -> Edit:
    def edit() -> None:
        with ir.InsertionPoint(op):
            op.clone()

    return edit


def faults(module: ir.Module) -> Iterator[tuple[str, Edit]]:
    """Every seeded fault of a program, by name. Applying one leaves a module that MLIR verifies, good or not, but
    for tasks that are moved to before a view that they use."""
    for n, op in enumerate(parts(module, "kitsune.post")):
        yield f"drop post {n}", op.erase
        yield f"post {n} twice", doubled(op)
        yield f"post {n} to the next slot", moved(op, 1, 1)
        yield f"post {n} to the slot before", moved(op, 1, -1)
    for n, op in enumerate(parts(module, "kitsune.wait")):
        yield f"drop wait {n}", op.erase
        yield f"wait {n} for one post more", counted(op, 1)
        if ir.IntegerAttr(op.attributes["count"]).value > 1:
            yield f"wait {n} for one post less", counted(op, -1)
        yield f"wait {n} from one slot later", moved(op, 1, 1)
        yield f"wait {n} from one slot earlier", moved(op, 1, -1)
        yield f"wait {n} for one slot more", moved(op, 2, 1)
        yield f"wait {n} for the next tile", both(moved(op, 1, 1), moved(op, 2, 1))
        yield f"wait {n} for one slot less", moved(op, 2, -1)
    tasks = parts(module, "kitsune.task")
    for n, (first, second) in enumerate(zip(tasks, tasks[1:], strict=False)):
        yield f"swap tasks {n} and {n + 1}", lambda a=first, b=second: a.move_after(b)
        if n:
            yield f"task {n + 1} before all others", lambda a=tasks[0], b=second: b.move_before(a)
    for n, op in enumerate(parts(module, "memref.view")):
        yield f"view {n} 256 bytes later", moved(op, 1, 256)
        yield f"view {n} 256 bytes earlier", moved(op, 1, -256)
        yield f"view {n} at the start", moved(op, 1, -op.operands[1].owner.attributes["value"].value)
    for n, op in enumerate(parts(module, "bufferization.materialize_in_destination")):
        yield f"drop store {n}", op.erase


def complaint(module: ir.Module) -> str | None:
    """What the pass says."""
    try:
        CheckProgress().run(module.operation)
    except PassFailure as error:
        return error.message
    return None


def arena_is_left(module: ir.Module) -> bool:
    """Whether a view reaches outside of the arena: an error of its own, which the judge does not look for."""
    for op in parts(module, "memref.view"):
        shift = TileIndices((), ()).of(op.operands[1])
        size = int(np.prod(ir.ShapedType(op.results[0].type).shape)) * width(op.results[0].type)
        if not 0 <= int(shift) <= ir.ShapedType(op.operands[0].type).shape[0] - size:
            return True
    return False


@pytest.mark.parametrize("name", in_turn([*CASES], 1))
def test_every_harmful_fault_is_found_and_no_other(name: str) -> None:
    text, tile, slack = CASES[name]
    original = str(tile_program(text, tile, slack))
    module = parse(original)
    assert complaint(module) is None and verdict(function_of(module)) is None
    names = [fault for fault, _ in faults(module)]
    harmful = 0
    for number, fault in enumerate(names):
        module = parse(original)
        with module.context, ir.Location.unknown():
            list(faults(module))[number][1]()
            try:
                module.operation.verify()
            except ir.MLIRError:
                continue  # a task that stands before a view that it uses: MLIR rejects it
            said = complaint(module)
            expected = "outside of the arena" if arena_is_left(module) else verdict(function_of(module))
        assert (said is None) == (expected is None), f"{fault}: {said!r}, the judge: {expected!r}\n{module}"
        harmful += said is not None
    assert harmful > len(names) // 3 and len(names) > 20


def test_tiles_may_share_a_semaphore_when_the_first_posts_cannot_be_missed() -> None:
    """Two tasks post slot 0, the second after the first: one post is the first's, two posts are both."""
    text = SHARED_SEMAPHORE
    assert complaint(parse(text)) is None and verdict(function_of(parse(text))) is None
    unordered = re.sub(r'"kitsune.wait"\(%s.*// second\n', "\n", text)
    assert verdict(function_of(parse(unordered))) is not None
    assert "can end without that tile's" in (complaint(parse(unordered)) or "")


SHARED_SEMAPHORE = """
func.func @p(%x: memref<8xf32>, %y: memref<8xf32>, %z: memref<8xf32>, %out: memref<8xf32>, %arena: memref<1xi8>)
    attributes {kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 3 : i64} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %s = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore
  "kitsune.task"() ({
  ^bb0(%i: index):
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %y : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %c0) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "first", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()  // second
    %t = bufferization.to_tensor %x restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %z : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.post"(%s, %c0) : (!kitsune.semaphore, index) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "second", grid = array<i64: 1>} : () -> ()
  "kitsune.task"() ({
  ^bb0(%i: index):
    "kitsune.wait"(%s, %c0, %c1) {count = 1 : i64} : (!kitsune.semaphore, index, index) -> ()
    %t = bufferization.to_tensor %y restrict : memref<8xf32> to tensor<8xf32>
    bufferization.materialize_in_destination %t in restrict writable %out : (tensor<8xf32>, memref<8xf32>) -> ()
    "kitsune.yield"() : () -> ()
  }) {sym_name = "third", grid = array<i64: 1>} : () -> ()
  return
}
"""


def test_a_hundred_thousand_tiles_take_seconds() -> None:
    """Row by row, with chains of tasks between the writers and the readers of reused bytes."""
    big = MLP.replace("10x", "12000x")
    module = tile_program(big, lambda number, sizes: [1, *sizes[1:]], slack=0)
    grids = [list(ir.DenseI64ArrayAttr(t.attributes["grid"])) for t in parts(module, "kitsune.task")]
    assert sum(int(np.prod(g)) for g in grids) >= 50_000
    start = time.perf_counter()
    assert complaint(module) is None
    assert time.perf_counter() - start < 10


def test_messages_name_both_tiles_and_the_memory() -> None:
    module = tile_program(MLP, rows, slack=1)
    parts(module, "kitsune.wait")[0].erase()
    said = complaint(module)
    assert said is not None
    message, *trace = said.split("\n  ")
    assert trace == [
        "trace, step 1: @product_0 tile (0) is not finished",
        "trace, step 2: @product_1 tile (0) reads " + message.split(" reads ")[1].split(" without")[0],
    ]
    assert re.fullmatch(
        r"of @product_1 tile \(0\) reads \[0:3, 0:9\] of the buffer at arena byte \d+ without waiting for @product_0 tile "
        r"\(0\), which writes \[0:2, 0:9\] of the buffer at arena byte \d+; @product_1 waits for nothing that @product_0 posts",
        message,
    ), said


def test_index_arithmetic_for_all_tiles_at_once() -> None:
    module = parse("""func.func @f(%i: index, %j: index) {
      %c3 = arith.constant 3 : index
      %c7 = arith.constant 7 : index
      %a = arith.muli %i, %c3 : index
      %b = arith.minui %a, %c7 : index
      %c = arith.divui %b, %c3 : index
      %d = arith.remui %a, %c7 : index
      %e = affine.apply affine_map<(d0, d1)[s0] -> (d0 * 2 + d1 floordiv 2 + s0)>(%i, %j)[%c3]
      %f = affine.min affine_map<(d0) -> (d0, 2)>(%i)
      %g = arith.subi %c3, %i : index
      %h = arith.ceildivsi %a, %c7 : index
      return
    }""")
    block = function_of(module).regions[0].blocks[0]
    indices = TileIndices((5, 4), block.arguments)
    got = {op.operation.results[0].get_name(): indices.of(op.operation.results[0]) for op in list(block.operations)[:-1]}
    i, j = np.arange(5)[:, None], np.arange(4)[None, :]
    expected = [3, 7, i * 3, np.minimum(i * 3, 7), np.minimum(i * 3, 7) // 3, i * 3 % 7, i * 2 + j // 2 + 3]
    expected += [np.minimum(i, 2), 3 - i, -(-i * 3 // 7)]
    for found, wanted in zip(got.values(), expected, strict=True):
        assert (found == wanted).all() and found.ndim == 2
    assert list(got.values())[4].shape == (5, 1)  # one axis only: the other coordinate does not matter


def test_points_stand_for_tiles() -> None:
    extents = (3, 4, 5)
    rows_, columns = np.arange(3).reshape(3, 1, 1), np.arange(5).reshape(1, 1, 5)
    both = Points.telling(extents, [rows_, columns])
    assert both.count == 15 and both.repeats == 4
    assert list(both.take(rows_)) == sorted([0, 1, 2] * 5)
    assert both.tile(7) == (1, 0, 2)
    assert list(both.index_in(Points.telling(extents, [columns]))) == list(range(5)) * 3
