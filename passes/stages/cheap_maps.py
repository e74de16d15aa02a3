"""Maps that are so cheap that what reads them can as well compute them: by what they compute, and by what they read."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import ALONG_ROWS, is_tensor, iterator_kinds
from kitsune_mlir.dialects.attribute_table import NO_FUSION
from kitsune_mlir.dialects.products import body_of, is_contraction, is_generic
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import captures

__all__ = ["costs_nothing", "made_for_rows", "reads_as_much"]

MOST_WORK = 6
"""Of arithmetic for an element, in additions: less than a load of it takes."""
_SIMPLE = ("addf", "subf", "mulf", "negf", "maximumf", "minimumf", "addi", "subi", "muli", "cmpf", "cmpi", "select")
_FREE = ("arith.extf", "arith.truncf", "arith.sitofp", "arith.extsi", "arith.extui", "arith.constant", "linalg.yield")
_WORK = {**{f"arith.{name}": 1 for name in _SIMPLE}, "arith.divf": 4, **dict.fromkeys(_FREE, 0)}


def reads_as_much(group: Sequence[ir.Operation]) -> bool:
    """Whether a group of ops is one cheap map, of inputs that have at most the bytes of its one result."""
    ops = group
    if not ops or not all(map(_is_map, ops)):
        return False
    if sum(_WORK.get(inner.name, MOST_WORK + 1) for op in ops for inner in body_of(op)) > MOST_WORK:
        return False
    made = {result for op in ops for result in op.results}
    ends = [value for value in made if any(use.owner.operation not in ops for use in value.uses)]
    if len(ends) != 1:
        return False
    inputs = {v for op in ops for v in list(op.operands)[: len(op.operands) - 1] if is_tensor(v)} - made
    return sum(tensor_bytes(v.type) for v in inputs) <= 1.02 * tensor_bytes(ends[0].type)


def costs_nothing(maker: Sequence[ir.Operation], reader: Sequence[ir.Operation]) -> bool:
    """Whether a group is such a map that another one alone reads, which has no products: then that has nothing more to do."""
    if any(is_contraction(op) or not is_generic(op) for op in reader):
        return False
    own = {hash(op) for op in (*maker, *reader)}
    read = {hash(use.owner.operation) for op in maker for result in op.results for use in result.uses}
    return read <= own and reads_as_much(maker)


def made_for_rows(op: ir.Operation, reader: ir.Operation) -> bool:
    """Whether a map is read by a scan or a sort alone, which does it on the way and reads fewer bytes so than the map's result
    has. Joined with what makes its operands, it would store them all."""
    if reader.name not in ALONG_ROWS or not _is_map(op) or {use.owner.operation for use in op.results[0].uses} != {reader}:
        return False
    inputs = {v for v in list(op.operands)[:-1] if is_tensor(v)}
    return sum(tensor_bytes(v.type) for v in inputs) <= tensor_bytes(op.results[0].type)


def _is_map(op: ir.Operation) -> bool:
    if not is_generic(op) or len(op.results) != 1 or NO_FUSION in op.attributes or any(map(is_tensor, captures(op))):
        return False
    marked = any(name.startswith("kitsune.") for name in op.attributes)
    return not marked and not set(iterator_kinds(op)) - {"parallel"}
