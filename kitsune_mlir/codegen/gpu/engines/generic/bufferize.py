"""A task's body as a function over memrefs, with everything but loops, loads and stores lowered by upstream passes.

Results are bufferized *out of place*: a tile is computed in the block's own memory, and only its final values are copied to
the destination (`loops.fuse` then removes the copy where a last element-wise loop can write directly). Accumulating in
the destination would be wrong, because the last tile of a ragged dimension overlaps its neighbour, and another block may
read those rows already.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir, passmanager
from torch_mlir.dialects import bufferization, func, memref

from kitsune_mlir.codegen.recurrence_loops import expand_recurrences
from kitsune_mlir.codegen.scatter_loops import expand_scatters
from kitsune_mlir.dialects.tile_records import Buffer, TaskView
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import CompileError

__all__ = ["Body", "GLOBAL_SPACE", "SHARED_SPACE", "lower_body", "run_passes"]

GLOBAL_SPACE, SHARED_SPACE = 1, 3

_DROPPED = ("kitsune.wait", "kitsune.wait_rows", "kitsune.wait_rounds", "kitsune.post", "kitsune.yield", "cf.assert")

_TENSOR_PASSES = (
    "func.func(tm-tensor-bufferize)",
    "canonicalize,cse,func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops)",
)
_BUFFER_PASSES = (
    "empty-tensor-to-alloc-tensor,one-shot-bufferize,canonicalize,cse",
    "func.func(refback-munge-memref-copy,tm-tensor-to-loops,linalg-generalize-named-ops),canonicalize,cse",
)


@dataclasses.dataclass
class Body:
    """A lowered body: a module that holds one `func.func` and the constants it uses (`memref.global`).

    The function's arguments: the tile's coordinates (index), then one memref in global memory for each of `buffers`.
    """

    module: ir.Module
    function: ir.Operation
    buffers: tuple[Buffer, ...]

    @property
    def block(self) -> ir.Block:
        """The function's entry block."""
        return self.function.regions[0].blocks[0]


def run_passes(module: ir.Module, pipeline: str) -> None:
    """Run upstream passes on a module; CompileError with MLIR's message if one fails."""
    try:
        passmanager.PassManager.parse(f"builtin.module({pipeline})", module.context).run(module.operation)
    except ir.MLIRError as error:
        raise CompileError(f"lowering a task's body failed in '{pipeline}': {error}") from error


def lower_body(task: TaskView) -> Body:
    """Copy the task's body into a function and lower it to linalg on memrefs and loops over scalars.

    Raises:
        CompileError: upstream cannot bufferize an operation of the body.
    """
    body = _outline(task)
    for pipeline in _TENSOR_PASSES:
        run_passes(body.module, pipeline)
        _own_tensors(body.function)
    _carry_in_place(body.function)
    for pipeline in _BUFFER_PASSES:
        run_passes(body.module, pipeline)
    left = {op.name for op in walk(body.function) for result in op.results if isinstance(result.type, ir.RankedTensorType)}
    if left:
        raise CompileError(f"{task.op.location}: task '{task.name}': no bufferization of {', '.join(sorted(left))}")
    return body


def _outline(task: TaskView) -> Body:
    index = ir.IndexType.get()
    space = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), GLOBAL_SPACE)
    types: list[ir.Type] = [index] * len(task.grid)
    types += [ir.MemRefType.get(b.shape, b.element, memory_space=space) for b in task.buffers]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("body", ir.FunctionType.get(types, []))
    block = function.add_entry_block()
    arguments = list(block.arguments)
    with ir.InsertionPoint(block):
        mapping: dict[ir.Value, ir.Value] = {}
        for buffer, argument in zip(task.buffers, arguments[len(task.grid) :], strict=True):
            # Bufferization works on the default space; the address space comes back when LLVM infers it.
            generic = ir.MemRefType.get(buffer.shape, buffer.element)
            mapping[buffer.value] = memref.memory_space_cast(generic, argument)
        end = func.ReturnOp([])
        clone = task.op.clone(ir.InsertionPoint(end)).operation
    for op in [op for op in walk(clone) if op.name in _DROPPED]:
        op.erase()
    for op in walk(clone):
        for number, operand in enumerate(op.operands):
            owner = operand.owner
            if operand not in mapping and not isinstance(owner, ir.Block) and owner.parent == task.op.parent:
                mapping[operand] = owner.operation.clone(ir.InsertionPoint.at_block_begin(block)).results[0]
            if operand in mapping:
                op.operands[number] = mapping[operand]
    inner = clone.regions[0].blocks[0]
    for argument, coordinate in zip(inner.arguments, arguments, strict=False):
        argument.replace_all_uses_with(coordinate)
    for op in list(inner.operations):
        op.operation.move_before(end.operation)
    clone.erase()
    expand_scatters(function.operation)
    expand_recurrences(function.operation)
    return Body(module, function.operation, task.buffers)


def _own_tensors(function: ir.Operation) -> None:
    """`tm-tensor-bufferize` leaves `to_tensor`s that do not say that nobody else writes there; say it."""
    for op in walk(function):
        if op.name == "bufferization.to_tensor" and "restrict" not in op.attributes:
            op.attributes["restrict"] = ir.UnitAttr.get()
            op.attributes["writable"] = ir.UnitAttr.get()


def _carry_in_place(function: ir.Operation) -> None:
    """Make loops that carry tensors write the next value over the old one.

    Else each iteration would have a buffer of its own, and buffers here are static.
    """
    for op in walk(function):
        if op.name in ("scf.for", "scf.while"):
            for region in op.regions:
                block = region.blocks[0]
                end = list(block.operations)[-1].operation
                # The first argument of a `for` is its index, the first operand of a condition its condition.
                arguments = list(block.arguments)[1 if op.name == "scf.for" else 0 :]
                skipped = 1 if end.name == "scf.condition" else 0
                for number, argument in enumerate(arguments):
                    position = number + skipped
                    if position >= len(end.operands) or not isinstance(argument.type, ir.RankedTensorType):
                        continue
                    value = end.operands[position]
                    if value.type == argument.type and value != argument:
                        with ir.InsertionPoint(end), end.location:
                            end.operands[position] = bufferization.materialize_in_destination(argument.type, value, argument)
