"""Reductions that count: result[p, b] is how many l have f(operands at p, l) = b."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from .access import affine_maps, constant_of, iterator_kinds, loop_sizes
from .products import body_of, constant_fill, defining_op, is_generic, yield_of

__all__ = ["Counting", "counting_of"]

EQUAL = 0
"""Number of the predicate of `arith.cmpi`."""


@dataclasses.dataclass(frozen=True)
class Counting:
    """Attributes:
    op: a `linalg.generic`.
    bins: dimension of its result that is compared with. axis: dimension of each operand along which it counts.
    value: what is compared, in its body. body: the operations that make it.
    """

    op: ir.Operation
    bins: int
    axis: int
    value: ir.Value
    body: tuple[ir.Operation, ...]

    @property
    def used(self) -> list[int]:
        """Numbers of the operands that `value` is made of."""
        arguments = list(self.op.regions[0].blocks[0].arguments)[:-1]
        seen = {value for op in self.body for value in op.operands} | {self.value}
        return [number for number, argument in enumerate(arguments) if argument in seen]


def counting_of(op: ir.Operation) -> Counting | str:
    """What a `linalg.generic` counts; why it does not, else."""
    no = "its reduction does not count"
    if not is_generic(op):
        return no
    kinds, maps = iterator_kinds(op), affine_maps(op)
    last = defining_op(op.operands[len(op.operands) - 1])
    start = constant_fill(last) if last is not None else None
    if len(op.results) != 1 or kinds.count("reduction") != 1 or start is None:
        return no
    if str(ir.RankedTensorType(op.results[0].type).element_type) != "i32" or constant_of(start.results[0]) != 0:
        return no
    body, accumulated = body_of(op), op.regions[0].blocks[0].arguments[len(op.operands) - 1]
    add = defining_op(yield_of(op).operands[0])
    if add is None or add.name != "arith.addi" or accumulated not in list(add.operands):
        return no
    extended = defining_op(next((v for v in add.operands if v != accumulated), accumulated))
    compared = defining_op(extended.operands[0]) if extended is not None and extended.name == "arith.extui" else None
    if compared is None or compared.name != "arith.cmpi" or ir.IntegerAttr(compared.attributes["predicate"]).value != EQUAL:
        return no
    index = next((found for v in compared.operands if (found := _index_of(v)) is not None), None)
    value = next((v for v in compared.operands if _index_of(v) is None), None)
    if index is None or value is None:
        return no
    loop, along = ir.IntegerAttr(index.attributes["dim"]).value, kinds.index("reduction")
    made = _needed_for(value, body)
    if kinds[loop] != "parallel" or any(o.name == "linalg.index" or o.regions for o in made):
        return no
    results = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in maps[-1].results]
    if sorted(d for d in results if d is not None) != [d for d in range(len(kinds)) if d != along] or loop not in results:
        return no
    found = Counting(op, results.index(loop), 0, value, tuple(made))
    axes = set()
    for number in found.used:
        dims = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in maps[number].results]
        if None in dims or loop in dims or along not in dims or loop_sizes(op)[along] < 2:
            return "what it counts is indexed by more than single loops"
        axes.add(dims.index(along))
    return dataclasses.replace(found, axis=axes.pop()) if len(axes) == 1 else "it counts along several dimensions"


def _index_of(value: ir.Value) -> ir.Operation | None:
    """The `linalg.index` that an integer is."""
    cast = defining_op(value)
    index = defining_op(cast.operands[0]) if cast is not None and cast.name == "arith.index_cast" else None
    return index if index is not None and index.name == "linalg.index" else None


def _needed_for(value: ir.Value, body: list[ir.Operation]) -> list[ir.Operation]:
    """The operations of a body that make a value, in their order."""
    found, pending = set(), [value]
    while pending:
        op = defining_op(pending.pop())
        if op is not None and op in body and op not in found:
            found.add(op)
            pending += op.operands
    return [op for op in body if op in found]
