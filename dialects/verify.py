"""Helpers of the verifiers, and of everything that walks captured values.

Verifiers run before the bindings check attributes, so each looks before it reads.
"""

from collections.abc import Iterator, Mapping

from torch_mlir import ir


def fail(op: ir.Operation | ir.OpView, message: str) -> bool:
    """Emit `message` as an error at the op's location; the value (False) is the verifier's answer."""
    op.location.emit_error(f"'{op.operation.name}' op {message}")
    return False


_KINDS = {
    ir.StringAttr: "a string",
    ir.IntegerAttr: "an integer",
    ir.ArrayAttr: "an array",
    ir.DenseI64ArrayAttr: "array<i64: ...>",
}


def has_attributes(op, kinds: Mapping[str, type], optional: bool = False) -> bool:
    """True when every named attribute is there and of its kind; else an error that names the first that is not.

    With `optional`, an attribute may be missing.
    """
    attributes = op.operation.attributes
    for name, kind in kinds.items():
        if name not in attributes:
            if optional:
                continue
            return fail(op, f"needs attribute '{name}'")
        if not isinstance(attributes[name], kind):
            return fail(op, f"'{name}' must be {_KINDS[kind]}, got {attributes[name]}")
    return True


def are_indices(op, values) -> bool:
    """True when all values are of type index; else an error that names the first other type."""
    for value in values:
        if not isinstance(value.type, ir.IndexType):
            return fail(op, f"needs an index, got {value.type}")
    return True


def single_block(op, region: int = 0) -> ir.Block | None:
    """The one block of a region, or None when the region is empty or has several."""
    blocks = list(op.operation.regions[region].blocks)
    return blocks[0] if len(blocks) == 1 else None


def terminator_of(block: ir.Block) -> ir.Operation | None:
    """The last operation of a block, or None in an empty one."""
    ops = list(block.operations)
    return ops[-1].operation if ops else None


def walk(op: ir.Operation | ir.OpView) -> Iterator[ir.Operation]:
    """Every operation nested in `op` (without `op`), outer before inner, in order."""
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from walk(inner.operation)


def captures(op: ir.Operation | ir.OpView) -> list[ir.Value]:
    """The values that the op's regions use and that are defined outside it, in order of first use.

    These are a stage's inputs: the ops of this dialect take no operand lists, because an IRDL variadic group is limited to
    one type (docs/dialect.md).
    """
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}

    def visit(outer: ir.Operation) -> None:
        for region in outer.regions:
            for block in region.blocks:
                inside.update(block.arguments)
                for inner in block.operations:
                    for operand in inner.operation.operands:
                        if operand not in inside:
                            found[operand] = None
                    visit(inner.operation)
                    inside.update(inner.operation.results)

    visit(op.operation)
    return list(found)


def unpack_type(type_: ir.Type) -> list[ir.Type]:
    """The element types of a tuple type; any other type alone in a list."""
    if isinstance(type_, ir.TupleType):
        return [type_.get_type(i) for i in range(type_.num_types)]
    return [type_]
