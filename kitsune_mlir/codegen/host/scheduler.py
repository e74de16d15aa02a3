"""The scheduler inside the compiled code: a driver for each task and a worker that takes tile tasks until none is left.

Workers take tile numbers from one counter, so tiles start in program order; every wait is for earlier tiles, so some worker
can always run, also when there is only one (cuSync, section 4: the order guarantees progress). Driver of a task: find the
tile's coordinates, wait, call the body, post.

A run is of any number of *requests*: the same program on other memory (coalescing, OoO VLIW JIT, section 4). The request is
the outermost dimension of each task, so all requests' tiles of a task come before those of the next one. Each has a row of
pointers, and a control block, one behind the other.

The control block is an array of 32-bit words, zero when a run starts:

    word  0      number of the next tile, in the first request's
    word 16      number of the request's first failed assertion, 0 for none (`asserts.py`); its tiles do nothing when it is set
    word 32 ...  the semaphores' slots
    behind them  for each task of which a call may leave out tiles (`dialects/live_tiles.py`) how many places, from the end of a
                 dimension of its grid; their tiles wait and post like others

The counter, the error and the slots lie in cache lines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

POINTER_BYTES = 8

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

    The worker is `func.func @NAME_worker(pointers: !llvm.ptr, control: !llvm.ptr, scratch: memref<Sxi8>, requests: index)`:
    `pointers` has a row for each request with an address for each argument of the program, `control` as many blocks of
    `control_words` words; `S` is the largest scratch area of a body (at least 1). The module must hold `HELPERS`.
    """
    function = program.view.function
    words = control_words(program.view.slots, len(live))
    places = {task: (each.axis, words - len(live) + n) for n, (task, each) in enumerate(live.items())}
    scratch = ir.MemRefType.get([max([1, *(a.scratch for a in arguments.values())])], _i(8))
    pointer, index = ir.Type.parse("!llvm.ptr"), ir.IndexType.get()
    with function.location:
        drivers = []
        for number, task in enumerate(program.tasks):
            signature = ([index, pointer, pointer, scratch], [])
            driver = func.FuncOp(f"{program.view.name}_task{number}", signature, visibility="private", ip=False)
            module.append(driver)
            with task.view.op.location:
                _fill_driver(driver, program, task, arguments[task.body.name], words, places.get(number))
            drivers.append(driver)
        worker = func.FuncOp(f"{program.view.name}_worker", ([pointer, pointer, scratch, index], []), ip=False)
        module.append(worker)
        _fill_worker(worker, program, drivers, words)
    return worker


def _fill_driver(
    driver: func.FuncOp, program: Program, task: Task, extra: BodyArguments, words: int, cut: tuple[int, int] | None
) -> None:
    entry = driver.add_entry_block()
    tile, row, pointer, scratch = entry.arguments
    mapping: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(entry):
        coordinates = _coordinates(tile, task.view.grid)
        mapping.update(zip(task.view.coordinates, coordinates, strict=True))
        waits, posts = task.view.waits, task.view.posts
        slots = [slot for wait in waits if wait.named is None for slot in (wait.lo, wait.hi)]
        for value in (*slots, *(post.slot for post in posts), *task.memrefs):
            _clone_definition(value, mapping, row)
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
                arguments.append(_memref(pointer, ir.MemRefType.get([words], _i(32))))
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


def _fill_worker(worker: func.FuncOp, program: Program, drivers: list[func.FuncOp], words: int) -> None:
    pointers, control, scratch, requests = worker.add_entry_block().arguments
    row_bytes = POINTER_BYTES * len(program.view.block.arguments)
    with ir.InsertionPoint(worker.regions[0].blocks[0]):
        total = arith.muli(requests, _index(program.tiles))
        loop = scf.WhileOp([ir.IndexType.get()], [])
        func.ReturnOp([])
    before = loop.operation.regions[0].blocks.append()
    after = loop.operation.regions[1].blocks.append(ir.IndexType.get(), arg_locs=[worker.operation.location])
    with ir.InsertionPoint(before):
        number = arith.index_cast(ir.IndexType.get(), _call("kitsune_next", [_i(64)], [control]))
        scf.ConditionOp(arith.cmpi(arith.CmpIPredicate.ult, number, total), [number])

    def one(number: ir.Value, task: int, start: ir.Value) -> None:
        """The tile with this number, of a task whose tiles begin at `start`, unless its request has failed."""
        tiles = program.tasks[task].view.tiles
        local = arith.subi(number, start)
        request, tile = arith.divui(local, _index(tiles)), arith.remui(local, _index(tiles))
        own = _behind(control, arith.muli(request, _index(4 * words)))
        failed = _call("kitsune_failed", [_i(1)], [own])
        with _inside_if(arith.xori(failed, arith.constant(_i(1), 1))):
            row = _behind(pointers, arith.muli(request, _index(row_bytes)))
            func.CallOp(drivers[task], [tile, row, own, scratch])

    starts = [0]
    for task in program.tasks:
        starts.append(starts[-1] + task.view.tiles)
    with ir.InsertionPoint(after):
        end = scf.YieldOp([])
    with ir.InsertionPoint(end):
        _dispatch(after.arguments[0], starts[:-1], requests, one)


def _dispatch(number: ir.Value, starts: list[int], requests: ir.Value, one: Callable, first: int = 0) -> None:
    """A binary search for the task of a tile, as nested branches; `starts`: the tiles of one request before each task."""
    if not starts:
        return
    if len(starts) == 1:
        one(number, first, arith.muli(requests, _index(starts[0])))
        return
    half = len(starts) // 2
    low = arith.cmpi(arith.CmpIPredicate.ult, number, arith.muli(requests, _index(starts[half])))
    branch = scf.IfOp(low, has_else=True)
    for region, start, part in zip(branch.operation.regions, (0, half), (starts[:half], starts[half:]), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            _dispatch(number, part, requests, one, first + start)
            scf.YieldOp([])


def _coordinates(tile: ir.Value, grid: tuple[int, ...]) -> list[ir.Value]:
    """Row-major coordinates of a tile number."""
    result: list[ir.Value] = []
    for extent in reversed(grid[1:]):
        result.append(arith.remui(tile, _index(extent)))
        tile = arith.divui(tile, _index(extent))
    return [tile, *reversed(result)]


def _clone_definition(value: ir.Value, mapping: dict[ir.Value, ir.Value], row: ir.Value) -> None:
    """Clone the operation that defines `value` (index arithmetic, a view) and what it needs, at the insertion point.

    Arguments of the program are taken from a request's row of pointers.
    """

    def below(value: ir.Value) -> Iterable[ir.Value]:
        return () if value in mapping or isinstance(value.owner, ir.Block) else value.owner.operation.operands

    for each in postorder([value], below):
        if each in mapping:
            continue
        if isinstance(each.owner, ir.Block):
            place = _behind(row, _index(POINTER_BYTES * ir.BlockArgument(each).arg_number))
            address = ir.Operation.create("llvm.load", [place.type], [place]).results[0]
            mapping[each] = _memref(address, ir.MemRefType(each.type))
        else:
            clone_with(each.owner.operation, mapping)


def _memref(pointer: ir.Value, type: ir.MemRefType) -> ir.Value:
    """The memory at a pointer: what upstream's conversion to LLVM makes of a memref, which a cast then stands for."""
    strides, offset = type.get_strides_and_offset()
    rank, i64 = type.rank, _i(64)
    sizes = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    struct = ir.Type.parse(f"!llvm.struct<(ptr, ptr, i64{sizes})>")
    value = ir.Operation.create("llvm.mlir.poison", [struct]).results[0]

    def put(part: ir.Value, *position: int) -> None:
        nonlocal value
        attributes = {"position": ir.DenseI64ArrayAttr.get(position)}
        value = ir.Operation.create("llvm.insertvalue", [struct], [value, part], attributes).results[0]

    put(pointer, 0)
    put(pointer, 1)
    put(arith.constant(i64, offset), 2)
    for dimension, (size, stride) in enumerate(zip(type.shape, strides, strict=True)):
        put(arith.constant(i64, size), 3, dimension)
        put(arith.constant(i64, stride), 4, dimension)
    return ir.Operation.create("builtin.unrealized_conversion_cast", [type], [value]).results[0]


def _behind(pointer: ir.Value, bytes: ir.Value) -> ir.Value:
    """The pointer, so many bytes further on."""
    attributes = {"rawConstantIndices": ir.DenseI32ArrayAttr.get([-(2**31)]), "elem_type": ir.TypeAttr.get(_i(8))}
    moved = [pointer, arith.index_cast(_i(64), bytes)]
    return ir.Operation.create("llvm.getelementptr", [pointer.type], moved, attributes).results[0]


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
