"""Operations of `arith` and `math` on values: by name, or as a clone of one that is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.value import TypeLike, Value, as_type, wrap

__all__ = ["clone", "clone_lanes", "create"]


def create(
    name: str, operands: Sequence[Value], types: Sequence[TypeLike], attributes: Mapping[str, ir.Attribute] | None = None
) -> list[Value]:
    """Emit the operation `name`; its results, of `types`."""
    values = [operand.ir for operand in operands]
    made = ir.Operation.create(name, [as_type(type) for type in types], values, dict(attributes or {}))
    return [wrap(result) for result in made.results]


def clone(op: ir.Operation, operands: Sequence[Value], types: Sequence[TypeLike] | None = None) -> list[Value]:
    """Emit an operation without regions again, on other operands; its results, of `types` (default: their own)."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    return create(op.name, operands, [result.type for result in op.results] if types is None else types, attributes)


def clone_lanes(body: Iterable[ir.Operation], known: dict[ir.Value, list[Value]], count: int) -> None:
    """Emit a body's operations, of one result each, again for `count` elements side by side.

    Args:
        known: the elements of each value that the body reads, by value, and of its results when this returns. What is not there
            is a constant from outside, which is emitted again.
    """
    for op in body:
        lanes = [known[v] if v in known else [wrap(clone(v.owner, [])[0].ir)] * count for v in op.operands]
        known[op.results[0]] = [clone(op, [lane[e] for lane in lanes])[0] for e in range(count)]
