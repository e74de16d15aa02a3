"""Elements that an element-wise body reads by index (`tensor.extract`): a gathered row of a table that lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.contraction.scalar_body import emit_body
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, constant, i64, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, TaskView

__all__ = ["extract_pair", "indices_read", "tables_of", "walked_loop"]


def tables_of(task: TaskView) -> dict[ir.Value, Load]:
    """The tensors of a task that a body may index: whole buffers."""
    return {load.tensor: load for load in task.loads if load.whole}


def walked_loop(index: ir.Value) -> int | None:
    """The loop of which an index of a body is the position, in the tile or in the whole; None for anything else."""
    op = defining_op(index)
    if op is not None and op.name == "arith.addi":
        inner = [o for o in map(defining_op, op.operands) if o is not None and o.name == "linalg.index"]
        op = inner[0] if len(inner) == 1 else None
    return ir.IntegerAttr(op.attributes["dim"]).value if op is not None and op.name == "linalg.index" else None


def indices_read(
    op: ir.Operation, elements: Sequence[Value | None], tile: TileContext, index: Callable[[int], Value], dtype: str
) -> list[Value]:
    """Where the body of `op`, for one element, reads a table by its only `tensor.extract`: indices of type `dtype`.

    Other arguments are those of `scalar_body.emit_body`.
    """
    found: list[Value] = []

    def extract(inner: ir.Operation, indices: Sequence[ir.Value]) -> Value:
        found.extend(wrap(arith.index_castui(as_type(dtype), index)) for index in indices)
        return constant(0.0, str(inner.results[0].type))

    emit_body(op, elements, tile, index, extract)
    return found


def extract_pair(tile: TileContext, table: Load, indices: Sequence[ir.Value], together: bool) -> list[Value]:
    """The element of a table at `indices` (index values), and where `together`, its right neighbour too in one access.

    Args:
        together: the element's offset is even and the neighbour exists.
    """
    buffer = table.buffer
    place = i64(0)
    for index, stride in zip(indices, buffer.strides, strict=True):
        place = place + wrap(arith.index_castui(as_type("i64"), index)) * stride
    size = element_bytes(buffer.element)
    pointer = offset(tile.pointer(buffer), place * size)
    count = 2 if together else 1
    return load_elements(pointer, str(buffer.element), count, align=count * size, constant=buffer.role == "input")
