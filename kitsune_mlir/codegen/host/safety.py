"""Makes a task body unable to take the process down: divisions and indices that depend on data are guarded.

x86 raises SIGFPE on an integer division by zero and on `INT_MIN / -1`; PyTorch raises an error for the first, and a library
must not end its process. Here such a division gives some value. An index that comes from data is checked against the size of
what it indexes; the failure is a `cf.assert`, which becomes a Python error (`asserts.py`).
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import arith, cf

from kitsune_mlir.codegen.host import ops
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["check_indices", "guard_divisions"]

_SIGNED = frozenset({"arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi"})
_UNSIGNED = frozenset({"arith.divui", "arith.remui", "arith.ceildivui"})

# Operand positions: (memref, first index, number of trailing operands that are no index).
_ACCESSES = {
    "memref.load": (0, 1),
    "memref.store": (1, 2),
    "memref.atomic_rmw": (1, 2),
    "memref.generic_atomic_rmw": (0, 1),
}


def guard_divisions(root: ir.Operation) -> None:
    """Replace every divisor that could raise SIGFPE by a `select` that gives 1 instead. Constants need none."""
    for op in operations_named(root, *_SIGNED, *_UNSIGNED):
        lhs, rhs = op.operands
        known = _constant(rhs)
        if known is not None and known not in (0, -1):
            continue
        type_ = rhs.type
        element = type_.element_type if isinstance(type_, ir.VectorType) else type_
        with ir.InsertionPoint(op), op.location:
            bad = arith.cmpi(arith.CmpIPredicate.eq, rhs, _splat(type_, 0))
            if op.name in _SIGNED:
                lowest = arith.cmpi(arith.CmpIPredicate.eq, lhs, _splat(type_, _lowest(element)))
                minus = arith.cmpi(arith.CmpIPredicate.eq, rhs, _splat(type_, -1))
                bad = arith.ori(bad, arith.andi(lowest, minus))
            op.operands[1] = arith.select(bad, _splat(type_, 1), rhs)


def check_indices(root: ir.Operation) -> None:
    """Assert, before every memref access whose index was computed from data, that the index is in range."""
    from_data: dict[ir.Value, bool] = {}
    for op in operations_named(root, *_ACCESSES):
        memref, first = _ACCESSES[op.name]
        shape = ir.MemRefType(op.operands[memref].type).shape
        for size, index in zip(shape, list(op.operands)[first : first + len(shape)], strict=True):
            if size < 0 or not _depends_on_data(index, from_data):
                continue
            with ir.InsertionPoint(op), op.location:
                inside = arith.cmpi(arith.CmpIPredicate.ult, index, arith.constant(ir.IndexType.get(), size))
                cf.assert_(inside, f"index out of range for a dimension of size {size}")


def _depends_on_data(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether an index was computed from an integer that was loaded, rather than from loop counters and coordinates."""
    for each in postorder([value], lambda v: [] if v in known else _index_operands(v)):
        if each not in known:
            known[each] = _is_data(each, known)
    return known[value]


def _index_operands(value: ir.Value) -> list[ir.Value]:
    """The indices that an index is computed from."""
    op = value.owner
    if isinstance(op, ir.Block) or not op.name.startswith(("arith.", "affine.")):
        return []
    return [v for v in op.operands if isinstance(v.type, ir.IndexType)]


def _is_data(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block):
        parent = owner.owner.operation
        # Counters are safe; other values that a loop carries (or a generic reads) are data when they are indices at all.
        answer = not (parent.name == "func.func" or (parent.name in ("scf.for", "scf.parallel") and _is_counter(value, parent)))
    else:
        op = owner.operation
        if op.name == "arith.constant" or op.name == "linalg.index" or op.name == "memref.dim":
            answer = False
        elif op.name.startswith(("arith.", "affine.")) and op.name not in ("arith.index_cast", "arith.index_castui"):
            answer = any(known[operand] for operand in _index_operands(value))
        elif op.name.startswith("arith.index_cast"):
            answer = _constant(op.operands[0]) is None
        else:
            answer = True
    return answer


def _is_counter(value: ir.Value, loop: ir.Operation) -> bool:
    block = loop.regions[0].blocks[0]
    counters = 1 if loop.name == "scf.for" else len(block.arguments)
    return value in list(block.arguments)[:counters]


def _constant(value: ir.Value) -> int | None:
    """The number of an integer constant (of all lanes, in a vector), or None."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if op.name == "vector.broadcast":
        return _constant(op.operands[0])
    if op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        attribute = attribute.get_splat_value()
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else None


def _lowest(type_: ir.Type) -> int:
    return -(1 << (64 if isinstance(type_, ir.IndexType) else type_.width) - 1)


def _splat(type_: ir.Type, number: int) -> ir.Value:
    """A constant of an integer type, or of a vector of one."""
    element, lanes = (type_.element_type, type_.shape[0]) if isinstance(type_, ir.VectorType) else (type_, 1)
    if isinstance(element, ir.IntegerType) and element.width == 1:
        number &= 1
    if isinstance(type_, ir.VectorType) and lanes == 1:
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(element, number)))
    return ops.const(element, number, lanes)
