"""Rows that sums start from, such as gathered ones: on their way before the pass that starts from them.

While a pass is multiplied, the rows of the next one come into registers that the results do not need yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.core.accumulator_init import Term, row_reads
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD
from kitsune_mlir.codegen.gpu.engines.chain.core.evaluate import Evaluator
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import WideLayer

__all__ = ["fetch_ahead"]


def fetch_ahead(evaluator: Evaluator, terms: Sequence[Term], layer: WideLayer, index: int) -> None:
    """Start to load the rows that the sums of pass `index` of a layer start from; forget those of other passes."""
    evaluator.memory.runs = {}
    reads: list[tuple[ir.Operation, ir.Value]] = [
        (term.op, read) for term in terms for read in row_reads(evaluator.chain, term)
    ]
    for part in layer.passes[index : index + 1]:
        for block in part.blocks[::QUAD]:
            for half in range(2):
                for op, read in reads:
                    evaluator.inner(op, read, FragmentIndex(half, block))
