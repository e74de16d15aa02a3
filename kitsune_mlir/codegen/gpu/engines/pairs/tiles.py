"""Tiles of products of pairs: samples that a block holds."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.layers import FEW_ROWS
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.attribute_table import PAIRS
from kitsune_mlir.dialects.edges import edge_of, grid_of
from kitsune_mlir.dialects.pairs import Pairs, read_pairs
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.stage_graph import inputs_of
from kitsune_mlir.machine.target import Target

__all__ = ["KEPT_BYTES", "offer", "samples_that_fit"]

KEPT_BYTES = 16 << 10  # shared memory that is not for samples: tables, barriers
BUSY_SHARE = 3  # multiprocessors are left to a stage that has tiles for one in so many at most


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """A stage that `kitsune-fuse-pairs` has marked: one tile for every multiprocessor, if they fit.

    One for those that have no tile of a stage that it waits for, if these fit: they read what is gathered while the others
    make the rest.
    """
    space = candidate.space
    joined = next((op for op in reversed(space.ops) if PAIRS in op.attributes and any(is_tensor(r) for r in op.results)), None)
    if joined is None or len(space.dims) != 1:
        return Decline(name, "it is no product of pairs that 'kitsune-fuse-pairs' has found")
    pairs = read_pairs(joined)
    if _makes_a_vector(pairs, space.ops):
        return Offer(name, (min(pairs.rows, FEW_ROWS),))
    fit, workers = samples_that_fit(pairs, machine), machine.workers
    if (stage := candidate.stage) is not None:
        edges = [edge for value in inputs_of(stage) if (edge := edge_of(stage, space, value)) is not None]
        busy = max((grid_of(edge.producer).tasks for edge in edges), default=0)
        if busy <= workers // BUSY_SHARE and -(-pairs.rows // (workers - busy)) <= fit:
            workers -= busy
    return Offer(name, (max(1, min(fit, -(-pairs.rows // workers))),))


def samples_that_fit(pairs: Pairs, target: Target) -> int:
    """Samples that a block can hold."""
    return (target.fast_bytes - KEPT_BYTES) // (pairs.sample_bytes + pairs.product_bytes)


def _makes_a_vector(pairs: Pairs, ops: Sequence[ir.Operation]) -> bool:
    """Whether layers among the operations of a stage make one of the vectors."""
    return any(is_contraction(op) and op not in pairs.ops for op in ops)
