"""Helpers of the verifiers, and of everything that walks captured values.

Verifiers run before the bindings check attributes, so each looks before it reads.
"""

from torch_mlir import ir

from .attribute_table import declared
from .unchanged import remembered


def fail(op: ir.Operation | ir.OpView, message: str) -> bool:
    """Emit `message` as an error at the op's location; the value (False) is the verifier's answer."""
    op.location.emit_error(f"'{op.operation.name}' op {message}")
    return False


def has_attributes(op, *needed: str) -> bool:
    """True when the op has the attributes `needed` and all that it has are as the table declares them.

    Else an error that names the first that is missing, unknown or wrong.
    """
    attributes, specs = op.operation.attributes, declared(op.operation.name)
    for name in needed:
        if name not in attributes:
            return fail(op, f"needs attribute '{name}'")
    for name in attributes:
        if name not in specs and "." not in name:
            return fail(op, f"has no attribute '{name}'; it has {', '.join(specs)}")
        if name in specs and (wrong := specs[name].problem(attributes[name])):
            return fail(op, wrong)
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
    ops = block.operations
    count = len(ops)
    return ops[count - 1].operation if count else None


def walk(op: ir.Operation | ir.OpView) -> list[ir.Operation]:
    """Every operation nested in `op` (without `op`), outer before inner, in order; they may be changed meanwhile."""
    found: list[ir.Operation] = []
    add, advance = found.append, ir.WalkResult.ADVANCE  # passes see each operation some eighty times

    def look(inner: ir.Operation) -> ir.WalkResult:
        add(inner)
        return advance

    if len(op.operation.regions):
        op.operation.walk(look, ir.WalkOrder.PRE_ORDER)
        del found[0]
    return found


def operations_named(root: ir.Operation | ir.OpView, *names: str) -> list[ir.Operation]:
    """Every operation nested in `root` that has one of the names, as `walk` gives them; they may be changed and erased."""
    found: list[ir.Operation] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        if op.name in names and op != root:
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.operation.walk(look, ir.WalkOrder.PRE_ORDER)
    return found


def names_in(root: ir.Operation | ir.OpView) -> set[str]:
    """The names of all operations in `root`, its own among them."""
    found: set[str] = set()

    def look(op: ir.Operation) -> ir.WalkResult:
        found.add(op.name)
        return ir.WalkResult.ADVANCE

    root.operation.walk(look)
    return found


def captures(op: ir.Operation | ir.OpView) -> list[ir.Value]:
    """The values that the op's regions use and that are defined outside it, in order of first use.

    These are a stage's inputs: the ops of this dialect take no operand lists, because an IRDL variadic group is limited to
    one type (docs/dialect.md).
    """
    return list(_captured(op.operation)) if len(op.operation.regions) else []


@remembered
def _captured(op: ir.Operation) -> tuple[ir.Value, ...]:
    inside: set[ir.Value] = set()
    found: dict[ir.Value, None] = {}

    def visit(outer: ir.Operation) -> None:
        for region in outer.regions:
            for block in region.blocks:
                inside.update(block.arguments)
                for inner in block.operations:
                    nested = inner.operation
                    for operand in nested.operands:
                        if operand not in inside:
                            found[operand] = None
                    if len(nested.regions):
                        visit(nested)
                    inside.update(nested.results)

    visit(op)
    return tuple(found)


def unpack_type(type_: ir.Type) -> list[ir.Type]:
    """The element types of a tuple type; any other type alone in a list."""
    if isinstance(type_, ir.TupleType):
        return [type_.get_type(i) for i in range(type_.num_types)]
    return [type_]
