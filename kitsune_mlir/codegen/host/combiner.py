"""Operations that add one term to a result, whose order is free."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.codegen.host.nest import Nest

__all__ = ["Combiner", "combine", "combiner_of", "identity"]

# What leaves the other operand as it is. Floating-point bounds are infinite: a row of -inf has the maximum -inf.
_IDENTITY = {
    "arith.addf": -0.0,
    "arith.mulf": 1.0,
    "arith.maximumf": float("-inf"),
    "arith.minimumf": float("inf"),
    "arith.maxnumf": float("nan"),
    "arith.minnumf": float("nan"),
    "arith.addi": 0,
    "arith.muli": 1,
    "arith.maxsi": "lowest",
    "arith.minsi": "highest",
    "arith.maxui": 0,
    "arith.minui": -1,
    "arith.andi": -1,
    "arith.ori": 0,
    "arith.xori": 0,
}


class Combiner:
    """The operation that adds one term to a result: `result = name(result, term)`."""

    def __init__(self, op: ir.Operation, term: ir.Value):
        self.op, self.term = op, term

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.op.name

    @property
    def results(self):
        """Results of the scalar operation."""
        return self.op.results


def combiner_of(nest: Nest, output: int) -> Combiner | None:
    """How a nest accumulates into one of its outputs; None if not by one operation whose order is free."""
    block = nest.block
    argument = block.arguments[len(nest.inputs) + output]
    value = list(list(block.operations)[-1].operation.operands)[output]
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if op.block != block or op.name not in _IDENTITY or sum(1 for _ in argument.uses) != 1:
        return None
    if sum(1 for _ in value.uses) != 1:
        return None
    a, b = op.operands
    if (a == argument) == (b == argument):
        return None
    return Combiner(op, b if a == argument else a)


def identity(name: str, element: ir.Type, lanes: int) -> ir.Value:
    """The neutral element of a combining operation, in every lane."""
    number = _IDENTITY[name]
    if isinstance(number, str):
        width = 64 if isinstance(element, ir.IndexType) else element.width
        number = -(1 << (width - 1)) if number == "lowest" else (1 << (width - 1)) - 1
    elif number == -1 and isinstance(element, ir.IntegerType) and element.width == 1:
        number = 1
    return ops.const(element, number, lanes)


def combine(combiner: Combiner, a: ir.Value, b: ir.Value) -> ir.Value:
    """Two parts of a result as one."""
    attributes = {name: combiner.op.attributes[name] for name in combiner.op.attributes}
    return ir.Operation.create(combiner.name, [a.type], [a, b], attributes).results[0]
