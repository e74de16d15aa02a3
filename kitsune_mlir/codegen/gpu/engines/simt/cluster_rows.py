"""Rows that the blocks of a cluster share: each has a part of the columns, and hands its part of a result to the others.

A row that does not fit the shared memory of one block so often that others can load while one computes stays in the shared
memory of several. Parts of results go straight into the other blocks' shared memory (distributed shared memory), which
with the cluster's barrier takes a fraction of the time of a hand-over through L2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.control_flow import cluster_rank, if_
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear
from kitsune_mlir.codegen.gpu.engines.simt.exchange import ITEM_BYTES, Combiner, Partial, Sharing, loaded, stored
from kitsune_mlir.codegen.gpu.sm90.dsmem import remote
from kitsune_mlir.codegen.gpu.sm90.mbarrier import sync_cluster

__all__ = ["Cluster"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The blocks that share a row, seen from one of them.

    Attributes:
        blocks: how many they are.
        share: columns of a block.
        rank: which block this is.
    """

    blocks: int
    share: int
    rank: Value

    @staticmethod
    def open(blocks: int, share: int) -> Cluster:
        """The cluster of the running block."""
        return Cluster(blocks, share, cluster_rank())

    @property
    def first(self) -> Linear:
        """The block's first column."""
        return Linear(((Atom(self.rank, 1, self.blocks), self.share),))

    def meet(self) -> None:
        """Wait until all blocks of the cluster run: before that, nobody may write to their shared memory. All threads."""
        sync_cluster()

    def combine(
        self,
        combiners: Sequence[Combiner],
        partials: Sequence[Partial],
        sharing: Sharing,
        sharer: Value,
        scratch: Value,
        again: bool,
    ) -> list[Partial]:
        """Combine each partial result of a block, which all its threads that share it have, over the cluster. All threads.

        Args:
            sharing: who shares rows in the block.
            sharer: number of the thread among those that share its rows, at least `blocks`.
            scratch: shared memory of `blocks` * `sharing.places` * `ITEM_BYTES` for each value.
            again: the scratch is used next, without another `combine` with other scratch between.
        """
        values = [value for partial in partials for value in partial]

        def at(number: int, block: Value | int) -> Value:
            row = number if sharing.places == 1 else number * sharing.places + sharing.place
            return offset(scratch, (row * self.blocks + block) * ITEM_BYTES)

        def hand_over() -> None:
            for number, value in enumerate(values):
                store(stored(value), remote(at(number, self.rank), sharer))

        if_(sharer < self.blocks, hand_over)
        sync_cluster()
        results, number = [], 0
        for combiner, partial in zip(combiners, partials, strict=True):
            parts = [
                tuple(loaded(at(number + i, block), value) for i, value in enumerate(partial)) for block in range(self.blocks)
            ]
            results.append(combiner.tree(parts))
            number += len(partial)
        if again:
            sync_cluster()
        return results
