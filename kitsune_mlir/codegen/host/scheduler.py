"""The scheduler inside the compiled code: a driver for each task and a worker that takes tile tasks until none is left.

Workers take tile numbers from one counter, so tiles start in program order; every wait is for earlier tiles, so some worker
can always run, also when there is only one (cuSync, section 4: the order guarantees progress). Driver of a task: find the
tile's coordinates, wait, call the body, post.

The control block is an array of 32-bit words, zero when a run starts:

    word  0      number of the next tile
    word 16      number of the first failed assertion, 0 for none (`asserts.py`); everybody stops when it is set
    word 32 ...  the semaphores' slots
    behind them  for each task of which a call may leave out tiles (`dialects/live_tiles.py`) how many places, from the end of a
                 dimension of its grid; their tiles wait and post like others

The counter, the error and the slots lie in cache lines of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf

from kitsune_mlir.codegen.host.asserts import CONTROL_ERROR
from kitsune_mlir.codegen.host.outline import Program, Task
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.live_tiles import LiveTiles
from kitsune_mlir.runtime.host_code import CONTROL_SLOTS, control_words

__all__ = ["HELPERS", "BodyArguments", "build_scheduler"]

SPINS = 2000
"""Polls of a semaphore before the worker lets another thread have the processor."""

HELPERS = f"""
llvm.func @sched_yield() -> i32
llvm.func internal @kitsune_failed(%control: !llvm.ptr) -> i1 attributes {{passthrough = ["alwaysinline"]}} {{
  %zero = llvm.mlir.constant(0 : i32) : i32
  %p = llvm.getelementptr %control[{CONTROL_ERROR}] : (!llvm.ptr) -> !llvm.ptr, i32
  %e = llvm.load %p atomic monotonic {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %f = llvm.icmp "ne" %e, %zero : i32
  llvm.return %f : i1
}}
llvm.func internal @kitsune_next(%control: !llvm.ptr) -> i64 attributes {{passthrough = ["alwaysinline"]}} {{
  %one = llvm.mlir.constant(1 : i32) : i32
  %t = llvm.atomicrmw add %control, %one monotonic : !llvm.ptr, i32
  %w = llvm.zext %t : i32 to i64
  llvm.return %w : i64
}}
llvm.func internal @kitsune_left_out(%control: !llvm.ptr, %word: i64) -> i64 attributes {{passthrough = ["alwaysinline"]}} {{
  %p = llvm.getelementptr %control[%word] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %n = llvm.load %p {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %w = llvm.zext %n : i32 to i64
  llvm.return %w : i64
}}
llvm.func internal @kitsune_post(%control: !llvm.ptr, %slot: i64) attributes {{passthrough = ["alwaysinline"]}} {{
  %one = llvm.mlir.constant(1 : i32) : i32
  %p = llvm.getelementptr %control[%slot] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %t = llvm.atomicrmw add %p, %one release : !llvm.ptr, i32
  llvm.return
}}
llvm.func internal @kitsune_wait(%control: !llvm.ptr, %lo: i64, %hi: i64, %count: i32) -> i1
    attributes {{passthrough = ["noinline"]}} {{
  %one = llvm.mlir.constant(1 : i64) : i64
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %spins = llvm.mlir.constant({SPINS} : i32) : i32
  %yes = llvm.mlir.constant(true) : i1
  %no = llvm.mlir.constant(false) : i1
  llvm.br ^slots(%lo : i64)
^slots(%i: i64):
  %more = llvm.icmp "slt" %i, %hi : i64
  llvm.cond_br %more, ^start, ^done
^start:
  %p = llvm.getelementptr %control[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i32
  %next = llvm.add %i, %one : i64
  llvm.br ^poll(%zero32 : i32)
^poll(%n: i32):
  %v = llvm.load %p atomic acquire {{alignment = 4 : i64}} : !llvm.ptr -> i32
  %here = llvm.icmp "uge" %v, %count : i32
  llvm.cond_br %here, ^slots(%next : i64), ^spin
^spin:
  %m = llvm.add %n, %one32 : i32
  %tired = llvm.icmp "uge" %m, %spins : i32
  llvm.cond_br %tired, ^rest, ^poll(%m : i32)
^rest:
  %failed = llvm.call @kitsune_failed(%control) : (!llvm.ptr) -> i1
  llvm.cond_br %failed, ^stop, ^sleep
^sleep:
  %ignored = llvm.call @sched_yield() : () -> i32
  llvm.br ^poll(%zero32 : i32)
^stop:
  llvm.return %no : i1
^done:
  llvm.return %yes : i1
}}
"""


@dataclass(frozen=True)
class BodyArguments:
    """What a lowered body takes besides coordinates and memrefs: `scratch` bytes, and the control block if it `asserts`."""

    scratch: int
    asserts: bool


def build_scheduler(
    program: Program, arguments: dict[str, BodyArguments], live: Mapping[int, LiveTiles], module: ir.Block
) -> func.FuncOp:
    """Append the drivers and the worker of `program` to `module`, and return the worker; tasks in `live` may leave out tiles.

    The worker is `func.func @NAME_worker(program arguments..., control: memref<Wxi32>, scratch: memref<Sxi8>)`: `W` is
    `control_words` of it, `S` the largest scratch area of a body (at least 1). The module must hold `HELPERS`.
    """
    function = program.view.function
    block = function.regions[0].blocks[0]
    words = control_words(program.view.slots, len(live))
    places = {task: (each.axis, words - len(live) + n) for n, (task, each) in enumerate(live.items())}
    scratch = max([1, *(a.scratch for a in arguments.values())])
    extra = [ir.MemRefType.get([words], _i(32)), ir.MemRefType.get([scratch], _i(8))]
    types = [_passed(a.type) for a in block.arguments] + extra
    with function.location:
        drivers = []
        for number, task in enumerate(program.tasks):
            signature = ([ir.IndexType.get(), *types], [])
            driver = func.FuncOp(f"{program.view.name}_task{number}", signature, visibility="private", ip=False)
            module.append(driver)
            with task.view.op.location:
                _fill_driver(driver, program, task, arguments[task.body.name], places.get(number))
            drivers.append(driver)
        worker = func.FuncOp(f"{program.view.name}_worker", (types, []), ip=False)
        module.append(worker)
        _fill_worker(worker, program, drivers)
    return worker


def _passed(type: ir.Type) -> ir.Type:
    """The type of an argument. Of one without elements, which no task uses, a pointer is all that LLVM's types can say."""
    return ir.MemRefType.get([1], type.element_type) if isinstance(type, ir.MemRefType) and 0 in type.shape else type


def _fill_driver(driver: func.FuncOp, program: Program, task: Task, extra: BodyArguments, cut: tuple[int, int] | None) -> None:
    entry = driver.add_entry_block()
    tile, *values, control, scratch = entry.arguments
    mapping: dict[ir.Value, ir.Value] = dict(zip(program.view.block.arguments, values, strict=True))
    with ir.InsertionPoint(entry):
        pointer = _pointer(control)
        coordinates = _coordinates(tile, task.view.grid)
        mapping.update(zip(task.view.coordinates, coordinates, strict=True))
        waits, posts = task.view.waits, task.view.posts
        slots = [slot for wait in waits if wait.named is None for slot in (wait.lo, wait.hi)]
        for slot in (*slots, *(post.slot for post in posts)):
            _clone_definition(slot, mapping)
        for memref in task.memrefs:
            _clone_definition(memref, mapping)
        end = func.ReturnOp([])
        point = ir.InsertionPoint(end)
        for wait in waits:
            with point:
                semaphore = wait.semaphore
                if wait.named is None:
                    lo, hi = (_slot(mapping[v], semaphore.first) for v in (wait.lo, wait.hi))
                else:  # a few workers leave a stage no tail: all rows are there as early as those that indices name
                    lo, hi = (_slot(_index(slot), semaphore.first) for slot in (0, semaphore.slots))
                count = arith.constant(_i(32), wait.count)
                there = _call("kitsune_wait", [_i(1)], [pointer, lo, hi, count])
                point = _inside_if(there)
        inside = point
        if cut is not None:
            with point:
                inside = _inside_if(_is_needed(pointer, coordinates[cut[0]], task.view.grid[cut[0]], cut[1]))
        with inside:
            arguments = [*coordinates, *(mapping[v] for v in task.memrefs)]
            if extra.scratch:
                arguments.append(_prefix(scratch, extra.scratch))
            if extra.asserts:
                arguments.append(control)
            func.CallOp([], ir.FlatSymbolRefAttr.get(task.body.name), arguments)
        if extra.asserts and posts:
            with point:
                failed = _call("kitsune_failed", [_i(1)], [pointer])
                point = _inside_if(arith.xori(failed, arith.constant(_i(1), 1)))
        with point:
            for post in posts:
                _call("kitsune_post", [], [pointer, _slot(mapping[post.slot], post.semaphore.first)])


def _is_needed(pointer: ir.Value, place: ir.Value, extent: int, word: int) -> ir.Value:
    """Whether a tile is at none of the places that the call leaves out."""
    left_out = _call("kitsune_left_out", [_i(64)], [pointer, arith.constant(_i(64), word)])
    end = arith.subi(_index(extent), arith.index_cast(ir.IndexType.get(), left_out))
    return arith.cmpi(arith.CmpIPredicate.slt, place, end)


def _fill_worker(worker: func.FuncOp, program: Program, drivers: list[func.FuncOp]) -> None:
    entry = worker.add_entry_block()
    arguments = list(entry.arguments)
    control = arguments[-2]
    with ir.InsertionPoint(entry):
        pointer = _pointer(control)
        loop = scf.WhileOp([ir.IndexType.get()], [])
        func.ReturnOp([])
    before = loop.operation.regions[0].blocks.append()
    after = loop.operation.regions[1].blocks.append(ir.IndexType.get(), arg_locs=[worker.operation.location])
    with ir.InsertionPoint(before):
        number = _call("kitsune_next", [_i(64)], [pointer])
        tile = arith.index_cast(ir.IndexType.get(), number)
        more = arith.cmpi(arith.CmpIPredicate.ult, tile, _index(program.tiles))
        failed = _call("kitsune_failed", [_i(1)], [pointer])
        go = arith.andi(more, arith.xori(failed, arith.constant(_i(1), 1)))
        scf.ConditionOp(go, [tile])
    starts, total = [], 0
    for task in program.tasks:
        starts.append(total)
        total += task.view.tiles
    with ir.InsertionPoint(after):
        end = scf.YieldOp([])
    with ir.InsertionPoint(end):
        _dispatch(after.arguments[0], starts, drivers, arguments)


def _dispatch(tile: ir.Value, starts: list[int], drivers: list[func.FuncOp], arguments: list[ir.Value]) -> None:
    """A binary search over the tasks, as nested branches; calls the driver with the tile's number within its task."""
    if not drivers:
        return
    if len(drivers) == 1:
        local = arith.subi(tile, _index(starts[0]))
        func.CallOp(drivers[0], [local, *arguments])
        return
    half = len(drivers) // 2
    first = arith.cmpi(arith.CmpIPredicate.ult, tile, _index(starts[half]))
    branch = scf.IfOp(first, has_else=True)
    for region, part in zip(branch.operation.regions, (slice(None, half), slice(half, None)), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            _dispatch(tile, starts[part], drivers[part], arguments)
            scf.YieldOp([])


def _coordinates(tile: ir.Value, grid: tuple[int, ...]) -> list[ir.Value]:
    """Row-major coordinates of a tile number."""
    result: list[ir.Value] = []
    for extent in reversed(grid[1:]):
        result.append(arith.remui(tile, _index(extent)))
        tile = arith.divui(tile, _index(extent))
    return [tile, *reversed(result)]


def _clone_definition(value: ir.Value, mapping: dict[ir.Value, ir.Value]) -> None:
    """Clone the operation that defines `value` (index arithmetic, a view) and what it needs, at the insertion point."""
    for each in postorder([value], lambda v: [] if v in mapping else v.owner.operation.operands):
        if each not in mapping:
            clone_with(each.owner.operation, mapping)


def _inside_if(condition: ir.Value) -> ir.InsertionPoint:
    branch = scf.IfOp(condition)
    block = branch.operation.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        end = scf.YieldOp([])
    return ir.InsertionPoint(end)


def _prefix(scratch: ir.Value, size: int) -> ir.Value:
    """The first `size` bytes of the scratch area."""
    if ir.MemRefType(scratch.type).shape[0] == size:
        return scratch
    type_ = ir.MemRefType.get([size], _i(8))
    attributes = {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
        "static_offsets": ir.DenseI64ArrayAttr.get([0]),
        "static_sizes": ir.DenseI64ArrayAttr.get([size]),
        "static_strides": ir.DenseI64ArrayAttr.get([1]),
    }
    return ir.Operation.create("memref.reinterpret_cast", [type_], [scratch], attributes).results[0]


def _pointer(control: ir.Value) -> ir.Value:
    address = ir.Operation.create("memref.extract_aligned_pointer_as_index", [ir.IndexType.get()], [control]).results[0]
    number = arith.index_cast(_i(64), address)
    return ir.Operation.create("llvm.inttoptr", [ir.Type.parse("!llvm.ptr")], [number]).results[0]


def _slot(index: ir.Value, first: int) -> ir.Value:
    return arith.index_cast(_i(64), arith.addi(index, _index(CONTROL_SLOTS + first)))


def _call(name: str, results: list[ir.Type], operands: list[ir.Value]) -> ir.Value | None:
    attributes = {
        "callee": ir.FlatSymbolRefAttr.get(name),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    }
    call = ir.Operation.create("llvm.call", results, operands, attributes)
    return call.results[0] if results else None


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _i(width: int) -> ir.IntegerType:
    return ir.IntegerType.get_signless(width)
