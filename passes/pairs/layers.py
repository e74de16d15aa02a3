"""Layers that make one of the vectors whose products are taken: whether a stage of pairs makes it itself, a few rows a tile.

A recommender's dense features go through a small network before they meet the embeddings. As stages of their own its layers are
hand-offs of two microseconds each, with few tiles. A block that brings its samples' embeddings meanwhile makes their vectors in
the time that the weights take to come, which every block reads whole.
"""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.layers import (
    FEW_ROWS,
    few_rows_reason,
    few_rows_seconds,
    layer_of,
    row_local_layers,
)
from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.iteration import is_free, iteration_space
from kitsune_mlir.dialects.pairs import Pairs, maker_of
from kitsune_mlir.dialects.products import defining_op, is_contraction
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.stages.estimates import product_seconds

__all__ = ["layer_bytes", "layers_before"]


def layers_before(pairs: Pairs, target: Target) -> list[ir.Operation] | str | None:
    """The operations that make the one vector that is not gathered, in order; a reason where the stage should not make it.

    None where no layers make it.
    """
    vectors = [part for part in pairs.vectors if part.gather is None]
    if len(vectors) != 1 or vectors[0].count != 1 or len(pairs.vectors) < 2:
        return None
    result = maker_of(vectors[0].value)
    ops = _made_by(result)
    products = [op for op in ops if is_contraction(op)]
    if len(products) < 2:
        return None
    inside = {hash(op) for op in (*ops, *pairs.ops)}
    for op in ops:
        for use in (use for value in op.results for use in value.uses):
            user = use.owner.operation
            joins = user.name == "tensor.expand_shape" and op.results[0] == result
            users = [one.owner.operation for one in user.results[0].uses] if joins else [user]
            if any(hash(one) not in inside for one in users):
                return f"something else uses what '{op.name}' makes"
    space = iteration_space(ops, [result])
    layers = row_local_layers(space)
    if isinstance(layers, str):
        return layers
    if (reason := few_rows_reason(layers)) is not None:
        return reason
    apart = sum(product_seconds(layer_of(op), target) for op in products)
    together = few_rows_seconds(layers, target)
    if together > apart:
        return f"each tile would read its weights, in {together * 1e6:.1f} us; apart they take {apart * 1e6:.1f} us"
    return ops


def layer_bytes(pairs: Pairs, ops: Sequence[ir.Operation]) -> int:
    """On-chip bytes of what the layers among `ops` read, for a tile."""
    inside = [op for op in ops if is_contraction(op) and op not in pairs.ops]
    return sum(FEW_ROWS * (2 * layer_of(op).depth + 192) for op in inside)


def _made_by(value: ir.Value) -> list[ir.Operation]:
    """All operations but free ones that a tensor is made with, in the order of the program."""
    found: dict[int, ir.Operation] = {}
    pending = [value]
    while pending:
        op = defining_op(pending.pop())
        if op is None or hash(op) in found:
            continue
        if not is_free(op):
            found[hash(op)] = op
        pending += [operand for operand in op.operands if is_tensor(operand)]
    ops = list(found.values())
    order = {hash(op.operation): n for n, op in enumerate(ops[0].block.operations)} if ops else {}
    return sorted(ops, key=lambda op: order.get(hash(op), 0))
