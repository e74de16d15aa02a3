"""`kitsune-fuse-attention`: write each attention as one loop nest over (batch, heads, rows), without reshapes inside.

So are its gradients (`dialects.attention_gradient`): that of the queries is a nest over their rows, those of keys and values
are one over keys. They read the logarithm of each row's sum of exponentials, which attention then has as a second result.

An attention arrives as two batched products with a softmax between them, taken apart by reshapes and transpositions. Here
it is read (`dialects.attention`) and written again in one fixed form, whose operations all share the dimensions of the
result but its last: q, k and v are read where they lie in memory, whatever the order of their dimensions, and heads that share
keys read the same keys. The operations are marked, and `form-stages` makes one stage of each mark.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.attention.tiles import JOINED_ROWS
from kitsune_mlir.dialects.attention import Attention, Operand, read_attention, weighted_sums
from kitsune_mlir.dialects.attention_gradient import Gradient, between, read_attention_gradient, sums_of_products
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import defining_op, is_contraction
from kitsune_mlir.dialects.scalar_tree import GATHERS
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.attention.gathers_apart import take_gathers_out
from kitsune_mlir.passes.attention.products_of_heads import multiply_heads_where_they_lie
from kitsune_mlir.passes.attention.turned_readers import read_turned
from kitsune_mlir.passes.attention.write import write_attention
from kitsune_mlir.passes.attention.write_gradient import place_of, write_gradient
from kitsune_mlir.passes.reductions.vector_products import sum_vector_products

from .base import Pass
from .normalize import run_upstream
from .remarks import remark

__all__ = ["FuseAttention", "obstacle"]

WIDEST_HEAD = 256
TMA_DIMENSIONS = 5


def obstacle(attention: Attention) -> str | None:
    """Why the `attention` engine would not do an attention that was understood; None if it would.

    TMA reads q, k and v: their elements are neighbours in memory, and distances between rows are multiples of 16 bytes.
    """
    for name, factors in (("keys", attention.column), ("a head's elements", attention.width), ("values", attention.head)):
        if len(factors) != 1:
            return f"{name} have {len(factors)} dimensions wider than 1"
    width, head = attention.width[0].size, attention.head[0].size
    if max(width, head) > WIDEST_HEAD or width % 8 or head % 8:
        return f"heads of {width} and {head} elements; multiples of 8 up to {WIDEST_HEAD} are done"
    for operand in (attention.query, attention.result, *attention.keys, *attention.values):
        if sum(len(dim) for dim in operand.dims) > TMA_DIMENSIONS:
            return f"an operand has more than {TMA_DIMENSIONS} dimensions"
    if str(ir.ShapedType(attention.result.value.type).element_type) != attention.dtype:
        return "the result is not rounded to the queries' type"
    operands = ((attention.query, width), *((part, width) for part in attention.keys))
    for operand, size in (*operands, *((part, head) for part in (*attention.values, attention.result))):
        if not operand.dims or not operand.dims[-1] or operand.dims[-1][-1].size != size:
            return "the elements of a head are not neighbours in memory"
        if operand.dims[-1][-1] not in (attention.width[0], attention.head[0]):
            return "the elements of a head are not neighbours in memory"
    return None


def gradient_obstacle(gradient: Gradient) -> str | None:
    """Why the engine of attention's gradients would not do gradients that were understood; None if it would."""
    named = (("keys", gradient.column), ("a head's elements", gradient.width), ("values", gradient.head))
    for name, factors in named:
        if len(factors) != 1:
            return f"{name} have {len(factors)} dimensions wider than 1"
    width, head = gradient.width[0].size, gradient.head[0].size
    if max(width, head) > WIDEST_HEAD or width % 8 or head % 8:
        return f"heads of {width} and {head} elements; multiples of 8 up to {WIDEST_HEAD} are done"
    if any(step.kind == "causal" and len(step.row) != 1 for step in gradient.steps):
        return "a causal mask goes by several dimensions"
    if any(step.kind == "keep" and step.number != -math.inf for step in gradient.steps):
        return "masked scores are not minus infinity"
    if not set(gradient.along) or not set(gradient.outer) - set(gradient.rows):
        return "there is one query or one key"
    operands = ((gradient.scored, width), (gradient.streamed, width), (gradient.sloped, head), (gradient.weighed, head))
    for operand, size in (*operands, *zip(gradient.results, (width, head), strict=False)):
        if sum(len(dim) for dim in operand.dims) > TMA_DIMENSIONS:
            return f"an operand has more than {TMA_DIMENSIONS} dimensions"
        if str(ir.ShapedType(operand.value.type).element_type) != gradient.dtype:
            return "a result is not rounded to the operands' type"
        if not operand.dims or not operand.dims[-1] or operand.dims[-1][-1].size != size:
            return "the elements of a head are not neighbours in memory"
        if operand.dims[-1][-1] not in (gradient.width[0], gradient.head[0]):
            return "the elements of a head are not neighbours in memory"
    return None if place_of(gradient) is not None else "an operand is made after a result"


def _weight_sums(contractions: Sequence[ir.Operation]) -> dict[int, list[ir.Operation]]:
    """The contractions that sum weights of scores, not of their gradient, by the hash of the product that makes the scores."""
    found: dict[int, list[ir.Operation]] = {}
    for op in contractions:
        try:
            end = between(op)
        except MatchFailure:
            continue
        if end.slope is None:
            found.setdefault(hash(end.product), []).append(op)
    return found


def _gradients(op: ir.Operation, weight_sums: Mapping[int, Sequence[ir.Operation]]) -> Gradient | None:
    """The gradients of which `op` is the sum of the scores' gradient; None if it is none.

    Args:
        weight_sums: see `_weight_sums`.
    """
    try:
        end = between(op)
        if end.slope is None:
            return None
        gradient = read_attention_gradient([op])
    except MatchFailure:
        return None
    if not gradient.keys:
        return gradient
    for other in weight_sums.get(hash(gradient.product), ()):
        try:
            return read_attention_gradient([op, other])
        except MatchFailure:
            continue
    return gradient


def _readable(weighted: ir.Operation) -> None:
    """Take apart what bodies gather, where an attention cannot be read for that alone."""
    try:
        read_attention(weighted)
    except MatchFailure as failure:
        if failure.args == (GATHERS,):
            take_gathers_out(weighted)


def _shared_rows(attention: Attention) -> int:
    """Rows of the result that read the same keys."""
    seen = {factor for dim in attention.keys[0].dims for factor in dim}
    rows = 1
    for factor in attention.outer:
        rows *= 1 if factor in seen else factor.size
    return rows


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Write softmax(scale * q k^T, masked) v as one loop nest over batch, heads and rows, for the `attention` engine.

    What products are left of a batch of matrices with a vector each become sums of what is multiplied element by element: they
    take as long as the matrices come from memory. Other products of heads read these where they lie, not turned. Only for
    targets that have the engine; others keep the two products.
    `--remarks` says of each attention that stays as it is why. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-fuse-attention"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        if not find_target(self.target).is_gpu:
            return
        number = 0
        with module.context, ir.Location.unknown():
            for op in [op for op in walk(module) if op.name == "func.func" and len(op.regions[0].blocks)]:
                read_turned(op.regions[0].blocks[0])
            for op in weighted_sums(walk(module)):
                _readable(op)
            contractions = [op for op in walk(module) if is_contraction(op)]
            sums = sums_of_products(walk(module))
            weight_sums = _weight_sums(contractions) if sums else {}
            wanted = {hash(found.product) for op in sums if (found := self._taken(op, weight_sums)) and found.made}
            logarithms: dict[int, tuple[ir.Operation, ir.Value]] = {}
            for op in weighted_sums(walk(module)):
                try:
                    attention = read_attention(op)
                except MatchFailure:
                    continue
                if (reason := obstacle(attention)) is not None:
                    remark(op, f"attention stays two products: {reason}")
                    continue
                rows = _leaves_logarithm(attention) and (hash(attention.product) in wanted or bool(attention.logarithms))
                # Where all rows that share keys are one tile, a concatenation of keys is read part by part.
                left = write_attention(attention, number, _shared_rows(attention) <= JOINED_ROWS, rows)
                if left is not None:
                    logarithms[hash(attention.product)] = (attention.product, left)
                number += 1
            weight_sums = _weight_sums(contractions) if sums else {}  # the attentions are other ops now
            for op in sums:
                number += self._write_gradients(op, weight_sums, logarithms, number)
            changed = sum_vector_products(module)
            changed = multiply_heads_where_they_lie(module) or changed
        if number or changed:
            run_upstream(module, "canonicalize,cse")

    def _taken(self, op: ir.Operation, weight_sums: Mapping[int, Sequence[ir.Operation]]) -> Gradient | None:
        """The gradients of a sum that the engine does."""
        found = _gradients(op, weight_sums)
        return found if found is not None and gradient_obstacle(found) is None else None

    def _write_gradients(
        self,
        op: ir.Operation,
        weight_sums: Mapping[int, Sequence[ir.Operation]],
        logarithms: Mapping[int, tuple[ir.Operation, ir.Value]],
        number: int,
    ) -> int:
        """Write the gradients of a sum; how many stages they are, 0 or 1."""
        gradient = _gradients(op, weight_sums)
        if gradient is None:
            return 0
        reason = None
        if gradient.made:
            if hash(gradient.product) in logarithms:
                left = Operand(logarithms[hash(gradient.product)][1], gradient.logarithm.dims)
                gradient = dataclasses.replace(gradient, logarithm=left)
            else:
                reason = "the attention does not leave the logarithms of its rows' sums"
        reason = reason or gradient_obstacle(gradient)
        if reason is not None:
            remark(op, f"a gradient of attention stays two products: {reason}")
            return 0
        write_gradient(gradient, number)
        return 1


def _leaves_logarithm(attention: Attention) -> bool:
    """Whether the logarithms of the rows' sums can be a second result, which comes in time for all who read them."""
    last = defining_op(attention.result.value)
    dims = attention.scores.dims
    if last is None or any(set(dim) & set(attention.column) and dim != attention.column for dim in dims):
        return False
    order = [factor for dim in dims for factor in dim if factor not in attention.column]
    for operand in attention.logarithms:
        if [factor for dim in operand.dims for factor in dim] != order:
            return False
        users = [use.owner.operation for use in operand.value.uses]
        if any(user.block == last.block and user.is_before_in_block(last) for user in users):
            return False
    return True
