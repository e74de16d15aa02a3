"""`tm_tensor.sort` on memrefs as a merge sort of each row, in the place of upstream's loops, which swap neighbours.

Runs of 1, 2, 4, ... elements are merged two by two into a row beside it, which is copied back. Of elements that the sort's
comparison lets come in either order the first one stays first.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.verify import operations_named, walk

__all__ = ["merge_sorts"]

_LEFT, _RIGHT, _BEFORE = "left", "right", "before"
"""Attributes of ops in `_text`: loads of the elements that are compared, and where the comparison comes."""


def merge_sorts(root: ir.Operation) -> None:
    """Replace each sort of memrefs in `root` by loops."""
    for op in operations_named(root, "tm_tensor.sort"):
        memrefs = [ir.MemRefType(operand.type) for operand in op.operands]
        with op.location:
            module = ir.Module.parse(_text(memrefs, ir.IntegerAttr(op.attributes["dimension"]).value), op.context)
        block = module.body.operations[0].regions[0].blocks[0]
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, op.operands, strict=True))
        made = []
        with ir.InsertionPoint(op):
            for inner in list(block.operations)[:-1]:
                made.append(clone_with(inner.operation, known))
        inside = [inner for one in made for inner in walk(one)]
        pairs = zip(*([o.results[0] for o in inside if name in o.attributes] for name in (_LEFT, _RIGHT)), strict=True)
        (before,) = (o for o in inside if _BEFORE in o.attributes)
        body = op.regions[0].blocks[0]
        elements: dict[ir.Value, ir.Value] = dict(zip(body.arguments, (value for pair in pairs for value in pair), strict=True))
        *compared, end = [inner.operation for inner in body.operations]
        with ir.InsertionPoint(before):
            for inner in compared:
                clone_with(inner, elements)
        found = end.operands[0]
        before.results[0].replace_all_uses_with(elements.get(found, found))
        before.erase()
        op.erase()


def _text(memrefs: list[ir.MemRefType], dim: int) -> str:
    """A module with one function of the memrefs that are sorted."""
    shape = memrefs[0].shape
    others = [d for d in range(len(shape)) if d != dim]

    def at(place: str) -> str:
        return ", ".join(place if d == dim else f"%d{d}" for d in range(len(shape)))

    def each(line: str, place: str = "") -> list[str]:
        return [
            line.format(
                n=n, at=at(place), type=type_, element=type_.element_type, row=f"memref<{shape[dim]}x{type_.element_type}>"
            )
            for n, type_ in enumerate(memrefs)
        ]

    numbers = {"zero": 0, "one": 1, "two": 2, "length": shape[dim], "levels": max(0, (shape[dim] - 1).bit_length())}
    numbers |= {f"e{d}": shape[d] for d in others}
    lines = [
        f"func.func @sort({', '.join(each('%m{n}: {type}'))}) {{",
        *(f"%{name} = arith.constant {number} : index" for name, number in numbers.items()),
        *each("%row{n} = memref.alloc() : {row}"),
        *(f"scf.for %d{d} = %zero to %e{d} step %one {{" for d in others),
        "scf.for %level = %zero to %levels step %one {",
        "%width = arith.shli %one, %level : index",
        "%both = arith.muli %width, %two : index",
        "scf.for %start = %zero to %length step %both {",
        "%mid_all = arith.addi %start, %width : index",
        "%mid = arith.minsi %mid_all, %length : index",
        "%end_all = arith.addi %start, %both : index",
        "%end = arith.minsi %end_all, %length : index",
        "%mid_last = arith.subi %mid, %one : index",
        "%end_last = arith.subi %end, %one : index",
        "%ends:2 = scf.for %k = %start to %end step %one iter_args(%i = %start, %j = %mid) -> (index, index) {",
        "%i_in = arith.minsi %i, %mid_last : index",
        "%j_in = arith.minsi %j, %end_last : index",
        *each(f"%l{{n}} = memref.load %m{{n}}[{{at}}] {{{{{_LEFT}}}}} : {{type}}", "%i_in"),
        *each(f"%r{{n}} = memref.load %m{{n}}[{{at}}] {{{{{_RIGHT}}}}} : {{type}}", "%j_in"),
        f"%before = arith.cmpi eq, %i, %j {{{_BEFORE}}} : index",
        "%some = arith.cmpi slt, %i, %mid : index",
        "%none = arith.cmpi sge, %j, %end : index",
        "%first = arith.ori %before, %none : i1",
        "%left = arith.andi %first, %some : i1",
        *each("%c{n} = arith.select %left, %l{n}, %r{n} : {element}"),
        *each("memref.store %c{n}, %row{n}[%k] : {row}"),
        "%i_next = arith.addi %i, %one : index",
        "%j_next = arith.addi %j, %one : index",
        "%i_new = arith.select %left, %i_next, %i : index",
        "%j_new = arith.select %left, %j, %j_next : index",
        "scf.yield %i_new, %j_new : index, index",
        "} }",
        "scf.for %k = %zero to %length step %one {",
        *each("%v{n} = memref.load %row{n}[%k] : {row}"),
        *each("memref.store %v{n}, %m{n}[{at}] : {type}", "%k"),
        "} }",
        *("}" for _ in others),
        "return }",
    ]
    return "\n".join(lines)
