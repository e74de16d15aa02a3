"""Rows that a map makes, put into rows of a buffer that indices name: where a message would be stored, it is added instead.

A vector lies within a row, as far as rows are that long; its row's number, and what is there where that matters, are loaded
beside the operands.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.combination import Combination
from kitsune_mlir.codegen.gpu.emit.control_flow import if_
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, bitcast, cast, select, unpack, vector
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Index, Linear, add, at, emit, scale
from kitsune_mlir.codegen.gpu.engines.simt.cached import Coordinates
from kitsune_mlir.codegen.gpu.engines.simt.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes
from kitsune_mlir.dialects.access import constant_of, shape_of
from kitsune_mlir.dialects.scatter_kinds import ADDITIONS, ASSIGN
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Buffer, TaskView
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Update", "read_update"]


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """A `kitsune.atomic_scatter` of rows that a task computes.

    Attributes:
        tensor: the rows.
        indices: where to: a tensor of one integer a row.
        first: rows before it are left out.
        buffer: what they are put into.
        combination: what is done with a run of a row.
    """

    tensor: ir.Value
    indices: ir.Value
    first: ir.Value
    buffer: Buffer
    combination: Combination

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return math.prod(shape_of(self.tensor)[1:])

    def prepared(self, evaluator: Evaluator, where: Coordinates) -> Callable[[], None]:
        """Make a vector of the rows, with all loads for it; what is returned puts it where it belongs."""
        width, combination = evaluator.width, self.combination
        values = self._in_memory(evaluator, evaluator.tensor(self.tensor, where))
        indices = evaluator.tensor(self.indices, (where[0], *(Linear() for _ in shape_of(self.indices)[1:])))
        column: Index = Linear()
        for index, stride in zip(where[1:], self.buffer.strides[1:], strict=True):
            column = add(column, scale(index, stride))
        run = math.gcd(width, combination.width)
        evaluator.memory.accesses.append(Access(True, width * dtype_bytes(combination.dtype), width // run))
        runs = []
        combination = dataclasses.replace(combination, width=run)
        for lane in range(0, width, run):
            place = cast(indices[lane if len(indices) > 1 else 0], "i64", signed=True)
            there = place.below(self.buffer.shape[0])
            if constant_of(self.first) != 0:
                there = there & (emit(at(where[0], lane)) >= emit(evaluator.outer(self.first)))
            inside = cast(emit(at(column, lane)), "i64", signed=False)

            before = []
            if combination.looks_first:
                element = select(there, place, 0) * self.columns + inside
                start = evaluator.tile.pointer(self.buffer)
                before = combination.load(offset(start, element * dtype_bytes(combination.dtype)))
            runs.append((there, place, inside, values[lane : lane + run], before))

        def put() -> None:
            for there, place, inside, some, before in runs:

                def some_put(place=place, inside=inside, some=some, before=before) -> None:
                    start = evaluator.tile.pointer(self.buffer)
                    combination.put_at(start, place * self.columns + inside, some, before)

                if_(there, some_put)

        return put

    def _in_memory(self, evaluator: Evaluator, values: Lanes) -> list[Value]:
        """Values as memory has them."""
        width, dtype = evaluator.width, self.combination.dtype
        full = [values[e if len(values) > 1 else 0] for e in range(width)]
        if dtype in HALF_TYPES and width > 1:
            words = evaluator.scalars.words(full, dtype)
            return unpack(bitcast(vector(words), f"vector<{width}x{dtype}>"))
        return [cast(value, dtype, signed=False) if dtype == "i8" else cast(value, dtype) for value in full]


def read_update(task: TaskView, op: ir.Operation) -> Update:
    """The update that a `kitsune.atomic_scatter` of computed rows is.

    Raises:
        UnsupportedError: there is no instruction for it.
    """
    tensor, indices, first, destination = list(op.operands)
    buffer = next((b for b in task.buffers if b.value == destination), None)
    kind, element = ir.StringAttr(op.attributes["kind"]).value, str(ir.RankedTensorType(tensor.type).element_type)
    if buffer is None or shape_of(tensor)[1:] != list(buffer.shape[1:]) or math.prod(shape_of(indices)[1:]) != 1:
        raise UnsupportedError(op.name, "rows are put into rows as long", str(tensor.type), str(op.location))
    if element in HALF_TYPES and kind not in (*ADDITIONS, ASSIGN):
        raise UnsupportedError(op.name, "16-bit floats are added or assigned", kind, str(op.location))
    combination = Combination.of(kind, element, math.prod(buffer.shape[1:]), [buffer.offset], buffer.shape[0])
    return Update(tensor, indices, first, buffer, combination)
