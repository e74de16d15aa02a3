"""Which memory of a tile program its tasks write: what an argument in place holds is the caller's value until one does."""

from collections.abc import Iterable

from torch_mlir import ir

from .attribute_table import WRITTEN
from .verify import walk

__all__ = ["written_arguments", "written_before"]

_READS = ("bufferization.to_tensor", "kitsune.wait_rows")
_VIEWS = ("memref.subview", "memref.view", "memref.expand_shape", "memref.collapse_shape", "memref.cast")


def written_arguments(tasks: Iterable[ir.Operation]) -> set[int]:
    """Numbers of the function's arguments that tasks may write, as a whole or in part: whatever they do not only read."""
    found: set[int] = set()
    for task in tasks:
        for op in walk(task):
            if op.name not in (*_READS, *_VIEWS):
                found.update(number for operand in op.operands if (number := _argument(operand, task)) is not None)
    return found


def written_before(function: ir.Operation) -> set[int]:
    """Numbers of the arguments that earlier kernels of a program write, of which `function` is one."""
    return set(ir.DenseI64ArrayAttr(function.attributes[WRITTEN])) if WRITTEN in function.attributes else set()


def _argument(value: ir.Value, task: ir.Operation) -> int | None:
    """The argument whose memory a value shows; None for what is no memory of the function's."""
    while isinstance(value.type, ir.MemRefType):
        if isinstance(value.owner, ir.Block):
            function = task.parent.operation if hasattr(task.parent, "operation") else task.parent
            return ir.BlockArgument(value).arg_number if value.owner == function.regions[0].blocks[0] else None
        if value.owner.name not in _VIEWS:
            return None
        value = value.owner.operands[0]
    return None
