"""Sums of a product's operand join the product's stage, where its engine makes them beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.offer import Candidate
from kitsune_mlir.codegen.offers import offer_for
from kitsune_mlir.dialects.attribute_table import OPERAND_SUM
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.machine.target import Target

from .marks import marked

__all__ = ["sums_and_products"]


def sums_and_products(
    ops: Sequence[ir.Operation], space: Callable[[list[ir.Operation]], Space], target: Target
) -> Iterator[tuple[ir.Operation, ir.Operation]]:
    """Each sum that `kitsune-split-reductions` has marked, and its product, where one stage can be both; in order.

    They are neighbours, not one the other's producer, so no other rule would join them.

    Args:
        space: of a group of ops.
    """
    for pair in marked(ops, OPERAND_SUM):
        if len(pair) == 2:
            offer, _ = offer_for(Candidate(space(pair)), target)
            if offer is not None and traits_of(offer.engine).operand_sums:
                yield pair[0], pair[1]
