"""An operation as text that does not depend on names, locations, or where its operands come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch_mlir import ir

from .unchanged import constant

__all__ = ["structure", "text_of"]


def text_of(module: ir.Module) -> str:
    """`str(module)` of a module that has been verified: that would ask all verifiers again before it writes."""
    return module.operation.get_asm(assume_verified=True)


@constant
def _text(what: ir.Attribute | ir.Type) -> str:
    return str(what)


def structure(op: ir.Operation, numbers: dict[ir.Value, int], ignored: Collection[str] = ()) -> Iterator[str]:
    """An operation and what it holds, a line each: equal for operations that do the same to operands of equal types.

    Args:
        numbers: filled with the values in the order in which they are met, those from outside too.
        ignored: attributes that do not count.
    """

    def number(value: ir.Value) -> str:
        """A value's number, with its type where it is met first."""
        known = numbers.get(value)
        if known is not None:
            return str(known)
        numbers[value] = known = len(numbers)
        return f"{known}:{_text(value.type)}"

    attributes = sorted(f"{a}={_text(op.attributes[a])}" for a in op.attributes if a not in ignored)
    results = [number(result) for result in op.results]
    yield f"{results} = {op.name}({[number(v) for v in op.operands]}) {attributes}"
    for region in op.regions:
        for block in region.blocks:
            yield f"block {[number(a) for a in block.arguments]}"
            for inner in block.operations:
                yield from structure(inner.operation, numbers, ignored)
            yield "end"
