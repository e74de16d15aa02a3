"""Work so small that a hand-off between two stages takes longer than the work: one row's normalisation, say.

Joined, it has fewer tiles than there are multiprocessors, perhaps one; apart, the second stage starts a hand-off later.
What makes single numbers of one that everything was reduced to costs nothing where that number is made.
"""

import math
from collections.abc import Container, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import access_of, is_tensor
from kitsune_mlir.dialects.iteration import Space, is_free
from kitsune_mlir.dialects.products import is_generic
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target


def worth_a_hand_off(bytes_: int, operations: float, tiles: int, target: Target) -> bool:
    """Whether two stages without products are faster as one of `tiles` tiles that moves `bytes_` in all, and computes.

    Args:
        operations: on elements, weighted as `rates.VECTOR_WEIGHTS` does.
    """
    if not target.is_gpu:
        return False
    apart = rates.CHAIN_HAND_OFF + bytes_ / target.dram_rate
    together = max(bytes_ / target.dram_rate, 2 * operations / target.vector_rate) * target.workers / min(tiles, target.workers)
    return together < apart


def one_row(op: ir.Operation) -> bool:
    """Whether an op walks one dimension only, and reads nothing by index: what is left of row-local work on a single row."""
    access = access_of(op)
    return access is not None and sum(size > 1 for size in access.sizes) <= 1 and not any(is_tensor(v) for v in captures(op))


def ends_in_numbers(producer: Space, consumer: Sequence[ir.Operation]) -> bool:
    """Whether `consumer` makes single numbers of single numbers, and `producer` is a reduction of everything.

    A dot product is one; whether an engine does both is asked for after that, as of all products.
    """
    if producer.dims or not all(map(_one_number, consumer)):
        return False
    return all(is_free(op) or is_generic(op) for op in producer.ops)


def numbers_of_many(producer: Sequence[ir.Operation], consumer: Sequence[ir.Operation], others: Container[int]) -> bool:
    """Whether `producer` makes single numbers of single numbers that `consumer`, which does not, reads, and some of `others`
    (hashes of ops), too: all of an optimizer's updates have the same rates."""
    if not all(map(_one_number, producer)) or all(map(_one_number, consumer)):
        return False
    own = {hash(op) for op in (*producer, *consumer)}
    readers = (hash(use.owner.operation) for op in producer for result in op.results for use in result.uses)
    return any(reader in others and reader not in own for reader in readers)  # of a rate there is one for each parameter


def _one_number(op: ir.Operation) -> bool:
    access = access_of(op)
    return access is not None and math.prod(access.sizes) == 1 and not any(is_tensor(v) for v in captures(op))
