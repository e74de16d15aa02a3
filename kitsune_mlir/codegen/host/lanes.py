"""Turns the scalar body of a nest into vector code: each operation is either *uniform* (the same in every lane, so it stays
scalar) or *varying* (a vector).

`BodyEmitter` checks once whether a body can be vectorised along a dimension, and then emits it as often as a schedule needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch_mlir import ir
from torch_mlir.dialects import arith, cf, memref, vector

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.verify import captures

__all__ = ["BodyEmitter", "computing_bytes"]

# Not element-wise on vectors, or with no vector lowering.
_REFUSED = frozenset({"arith.scaling_extf", "arith.scaling_truncf", "math.fpowi", "math.ipowi", "math.clampf", "math.sincos"})

_TYPES = (ir.IntegerType, ir.IndexType, ir.FloatType, ir.MemRefType)

Environment = dict[ir.Value, ir.Value]


class BodyEmitter:
    """Emits the body of a `linalg.generic` for several lanes along the dimension `lane_dimension`.

    Args:
        block: the body.
        varying: the block arguments that differ from lane to lane.
        lane_dimension: the vectorised dimension; None where there is none.
    """

    def __init__(self, block: ir.Block, varying: Iterable[ir.Value], lane_dimension: int | None):
        self.block = block
        self.operations = [op.operation for op in block.operations][:-1]
        self.yielded = list(list(block.operations)[-1].operation.operands)
        self.lane_dimension = lane_dimension
        self._varying: set[ir.Value] = set(varying)
        self._lane_base: dict[ir.Value, ir.Value | None] = {}
        self.possible = all([self._classify(op) for op in self.operations])

    def _classify(self, op: ir.Operation) -> bool:
        """Find out whether `op` varies; False if it does and cannot be vectorised."""
        if op.name == "linalg.index":
            if ir.IntegerAttr(op.attributes["dim"]).value == self.lane_dimension:
                self._varying.add(op.results[0])
                self._lane_base[op.results[0]] = None
            return True
        varies = any(v in self._varying for v in [*op.operands, *captures(op)])
        if not varies:
            return True
        self._varying.update(op.results)
        if op.name in ("arith.addi", "arith.subi") and self._is_lane_index(op):
            self._lane_base[op.results[0]] = None
        if op.name == "cf.assert":
            return True
        if len(op.regions) or not all(isinstance(v.type, _TYPES) for v in [*op.operands, *op.results]):
            return False
        if op.name == "memref.load":
            return op.operands[0] not in self._varying
        return op.name.startswith(("arith.", "math.")) and op.name not in _REFUSED

    def _is_lane_index(self, op: ir.Operation) -> bool:
        """Whether an index is `base + lane`, as a slice along the vectorised dimension has it."""
        a, b = op.operands
        if not isinstance(a.type, ir.IndexType):
            return False
        return (a in self._lane_base and b not in self._varying) or (
            op.name == "arith.addi" and b in self._lane_base and a not in self._varying
        )

    def emit(
        self, environment: Environment, index: Callable[[int], ops.Index], lanes: int, *, only_uniform: bool = False
    ) -> Environment:
        """Emit what `environment` does not hold yet; returns a new environment that holds everything emitted.

        Args:
            environment: values of block arguments (and of operations that were emitted before).
            index: the counter of a dimension; of the vectorised one its first lane.
            lanes: how many; 1 emits scalar code.
            only_uniform: emit just the uniform operations (outside the loop over lanes).
        """
        made = dict(environment)
        starts: dict[ir.Value, ops.Index] = {}
        for op in self.operations:
            if op.results and all(r in made for r in op.results):
                continue
            varies = any(v in self._varying for v in [*op.results, *op.operands])
            if only_uniform and (varies or not self._ready(op, made)):
                continue
            if not op.results and not varies and not only_uniform and self._emitted_before(environment, op):
                continue
            self._emit(op, made, starts, index, lanes if varies else 1)
        return made

    def _ready(self, op: ir.Operation, made: Environment) -> bool:
        inside = set(self.block.arguments) | {r for o in self.operations for r in o.results}
        return all(v in made or v not in inside for v in [*op.operands, *captures(op)])

    def _emitted_before(self, environment: Environment, op: ir.Operation) -> bool:
        """A uniform `cf.assert` is emitted with the uniform operations: its condition is there."""
        return all(v in environment for v in op.operands)

    def _emit(self, op: ir.Operation, made: Environment, starts: dict, index: Callable[[int], ops.Index], lanes: int) -> None:
        if op.name == "linalg.index":
            dimension = ir.IntegerAttr(op.attributes["dim"]).value
            start = index(dimension)
            result = op.results[0]
            starts[result] = start
            made[result] = ops.value_of(start) if lanes == 1 else _lane_indices(start, lanes)
            return
        if lanes == 1:
            clone_with(op, made)
            if op.results and op.results[0] in self._lane_base:
                starts[op.results[0]] = made[op.results[0]]
            return
        if op.name == "cf.assert":
            everywhere = vector.reduction(
                ir.IntegerType.get_signless(1), ir.Attribute.parse("#vector.kind<and>"), made[op.operands[0]]
            )
            cf.assert_(everywhere, ir.StringAttr(op.attributes["msg"]).value)
            return
        if op.name == "memref.load":
            made[op.results[0]] = self._gather(op, made, starts, lanes)
            return
        operands = [made.get(v, v) for v in op.operands]
        if op.results[0] in self._lane_base:
            a, b = (starts.get(v, made.get(v, v)) for v in op.operands)
            starts[op.results[0]] = ops.add(a, b) if op.name == "arith.addi" else arith.subi(ops.value_of(a), ops.value_of(b))
        types = [ops.vector_type(r.type, lanes) for r in op.results]
        attributes = {name: op.attributes[name] for name in op.attributes}
        copy = ir.Operation.create(op.name, types, [ops.broadcast(v, lanes) for v in operands], attributes)
        made.update(zip(op.results, copy.results, strict=True))

    def _gather(self, op: ir.Operation, made: Environment, starts: dict, lanes: int) -> ir.Value:
        """A load whose index varies: consecutive elements, or one load a lane."""
        source, *indices = op.operands
        type_ = ir.MemRefType(source.type)
        values = [made.get(v, v) for v in indices]
        contiguous = type_.get_strides_and_offset()[0][-1] == 1 and not _is_bool(type_.element_type)
        if contiguous and indices[-1] in starts and not any(ops.is_vector(v) for v in values[:-1]):
            place = [*values[:-1], ops.value_of(starts[indices[-1]])]
            return vector.load(ops.vector_type(type_.element_type, lanes), source, place)
        found = []
        for lane in range(lanes):
            place = [vector.extract(v, [], [lane]) if ops.is_vector(v) else v for v in values]
            found.append(memref.load(source, place))
        return vector.from_elements(ops.vector_type(type_.element_type, lanes), found)


def _is_bool(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IntegerType) and type_.width == 1


def _lane_indices(start: ops.Index, lanes: int) -> ir.Value:
    type_ = ops.vector_type(ir.IndexType.get(), lanes)
    return arith.addi(ops.broadcast(ops.value_of(start), lanes), vector.step(type_))


def computing_bytes(block: ir.Block) -> int:
    """Size of the widest number that a body computes with (index counters aside, they mostly become addresses)."""
    widest = 1
    for op in block.operations:
        for value in [*op.operation.operands, *op.operation.results]:
            if isinstance(value.type, (ir.IntegerType, ir.FloatType)):
                widest = max(widest, value.type.width // 8)
    for argument in block.arguments:
        if isinstance(argument.type, (ir.IntegerType, ir.FloatType)):
            widest = max(widest, argument.type.width // 8)
    return widest
