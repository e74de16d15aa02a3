"""A function's operations, read once: emulators ask for them at each execution, and the bindings make objects at each look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from test.emulators.arithmetic import DTYPES, quick

__all__ = ["Code", "Operation", "Value", "decoded"]

TERMINATORS = ("scf.yield", "func.return", "scf.condition", "scf.reduce", "llvm.return")


@dataclass(eq=False, slots=True)
class Value:
    """A value; it is itself alone."""

    type: ir.Type


class Attributes(dict[str, ir.Attribute]):
    """An operation's attributes, each looked up once."""

    def __init__(self, op: ir.Operation):
        super().__init__()
        self.op = op

    def __missing__(self, name: str) -> ir.Attribute:
        self[name] = self.op.attributes[name]
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.op.attributes


@dataclass
class Region:
    """Its blocks."""

    blocks: list[Code]


@dataclass
class Code:
    """A block: `ends` are the operands of its terminator."""

    arguments: list[Value]
    operations: list[Operation]
    ends: list[Value]


class Operation:
    """An operation as the bindings show it, and `dtype`, that of its first result where that is a number.

    Attributes:
        quick: `arithmetic.quick` of it.
    """

    __slots__ = ("attributes", "dtype", "name", "of", "operands", "quick", "regions", "results")

    def __init__(self, op: ir.Operation, values: dict[ir.Value, Value]):
        self.of, self.name, self.attributes = op, op.name, Attributes(op)
        self.operands = [values[operand] for operand in op.operands]
        self.results = [values.setdefault(result, Value(result.type)) for result in op.results]
        self.dtype: type | None = DTYPES.get(str(self.results[0].type)) if self.results else None
        self.regions = [Region([decoded(block, values) for block in region.blocks]) for region in op.regions]
        self.quick: Callable[..., np.ndarray] | None = quick(self)

    def __str__(self) -> str:
        return str(self.of)


def decoded(block: ir.Block, values: dict[ir.Value, Value] | None = None) -> Code:
    """A block with all that it holds; `values` are those from outside of it."""
    values = {} if values is None else values
    arguments = [values.setdefault(argument, Value(argument.type)) for argument in block.arguments]
    operations: list[Operation] = []
    for op in block.operations:
        if op.operation.name in TERMINATORS:
            return Code(arguments, operations, [values[operand] for operand in op.operation.operands])
        operations.append(Operation(op.operation, values))
    return Code(arguments, operations, [])
