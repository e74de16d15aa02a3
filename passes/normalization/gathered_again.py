"""Rows named by indices are gathered by each operation that reads them, where they are many and their table is small.

Attention over a graph's edges reads the source's row for its score, and again for its message. Gathered once and stored, the
rows of all edges are as many times the table's bytes as a node has edges: they are written and read from memory, while the
table stays in L2, from which a row named by an index comes as fast as a stored one. Upstream's fuser puts a gather into the
operation that reads it where no other one does.
"""

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, iterator_kinds
from kitsune_mlir.dialects.cloning import clone_for
from kitsune_mlir.dialects.gathered import SECTOR, run_bytes
from kitsune_mlir.dialects.products import body_of, is_contraction, is_generic, yield_of
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import walk

__all__ = ["gather_again"]

SMALLER = 2
"""Times that a table has to be smaller than what is gathered from it."""
TABLE_BYTES = 16 << 20
"""Of a table that stays in L2 beside what else is read."""


def gather_again(module: ir.Operation) -> None:
    """Clone gathers of rows for every operation that reads them but the first, in place.

    Only where all readers are maps and sums, into which the gather goes: products, scatters and joins take rows from memory.
    """
    for op in [op for op in walk(module) if _gathers(op)]:
        readers = dict.fromkeys(use.owner.operation for use in op.results[0].uses)
        if not all(is_generic(reader) and not is_contraction(reader) for reader in readers):
            continue
        clone_for(op, list(readers)[1:])


def _gathers(op: ir.Operation) -> bool:
    """Whether an operation does nothing but to gather rows of a small table, each of at least a sector, many times over."""
    if not is_generic(op) or len(op.results) != 1 or set(iterator_kinds(op)) != {"parallel"}:
        return False
    extracts = [inner for inner in body_of(op) if inner.name == "tensor.extract"]
    if len(extracts) != 1 or yield_of(op).operands[0] != extracts[0].results[0] or not affine_maps(op)[-1].is_permutation:
        return False
    table = tensor_bytes(extracts[0].operands[0].type)
    many = SMALLER * table <= tensor_bytes(op.results[0].type) and table <= TABLE_BYTES
    return many and run_bytes(op, extracts[0]) >= SECTOR
