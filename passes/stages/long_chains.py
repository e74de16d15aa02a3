"""Chains of products whose code is more than a multiprocessor's instruction cache holds are several."""

from __future__ import annotations

from kitsune_mlir.codegen.gpu.engines.chain.layers import WIDTH
from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.dialects.contraction import matrix_extents
from kitsune_mlir.dialects.products import is_contraction

from .grouping import Grouping

__all__ = ["long_chains"]

MOST_COLUMNS = 12 * 256
"""Of all layers of a chain together: what its code goes by where layers are not multiplied in passes. Each is written out, and
all blocks go through them at once, so that what the cache does not hold is fetched for each tile. (A radiance field's training
step, 22 layers of up to 256 columns, under a graph on an H200: 3.35 ms as one chain, 330 KB of code, 3.06 as two; with at most
8, 6 and 4 products a chain 3.22, 3.13 and 3.13, option `cut=products:4`.)"""


def long_chains(grouping: Grouping) -> list[tuple[frozenset[int], int]]:
    """Of which products a stage holds how many at most (`Grouping.cuts`): longer chains are parts of about as many products."""
    found = []
    for g, members in grouping.members.items():
        products = [op for op in members if is_contraction(op)]
        offer = grouping.offer_of(g) if len(products) > 1 else None
        if offer is None or not traits_of(offer.engine).several_products:
            continue
        columns = [matrix_extents(op)[1] for op in products]
        parts = -(-sum(columns) // MOST_COLUMNS)
        if parts > 1 and max(columns) <= WIDTH:
            found.append((frozenset(map(hash, products)), -(-len(products) // parts)))
    return found
