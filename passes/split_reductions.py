"""`kitsune-split-reductions`: reductions that would leave the machine idle are done in parts, which a second stage combines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.mma.cost import CHUNK_BYTES, Work, choose_pieces, microseconds
from kitsune_mlir.codegen.gpu.engines.mma.tiles import mma_tile
from kitsune_mlir.codegen.gpu.interface.few_rows import few_rows
from kitsune_mlir.dialects.access import access_of, iterator_kinds, loop_sizes, shape_of
from kitsune_mlir.dialects.attribute_table import ATTENTION, OPERAND_SUM
from kitsune_mlir.dialects.contraction import contraction_dims, is_dot, matrix_extents
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import element_bytes, tensor_bytes
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.reductions.associative import Reduction, reduction_of, splittable_loop
from kitsune_mlir.passes.reductions.joined_factors import multiply_parts
from kitsune_mlir.passes.reductions.one_pass_moments import moments_in_one_pass
from kitsune_mlir.passes.reductions.operand_sums import mark_operand_sums
from kitsune_mlir.passes.reductions.parts import Cut, in_parts
from kitsune_mlir.passes.reductions.sibling_sums import join_siblings
from kitsune_mlir.passes.stages.column_sums import LINE, adds_columns

from .base import Pass
from .remarks import remark

MARGIN = 0.9  # of the time as it is may be what it takes in parts: estimates are no better than that
RING_CHUNKS = 8  # of the sum that a block which multiplies has on its way at most, if `rates.PARTS_RING_BYTES` are more
LEAST_TERMS = 16  # that a part has
TENSOR_TYPES = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class Estimate:
    """Seconds of a reduction as it is and in parts, and in how many parts that is."""

    whole: float
    parts: int
    split: float


@dataclass(frozen=True)
class SplitReductions(Pass):
    """Do reductions in parts where their parallel dimensions cannot fill the machine, and combine the parts in a second stage.

    Sums, products, maxima and minima over long dimensions: products with a small result and a long sum (weight gradients,
    `x.T @ y`), statistics over the batch that the batch is normalised with, long rows that are read again. Each part is a
    slice of the longest summed dimension; partial results lie in memory, and a stage of its own combines them in their order:
    results do not depend on timing, and are the same on every run. (Atomic additions would save no hand-off: what they add to
    must be cleared, and a 16-bit result be rounded, by stages of their own.) An engine that can share a tile's sum among blocks
    does so inside its stage; where that is as fast, the stage is left alone, and `--remarks` says so. On a GPU a product whose
    rows or columns are those of a concatenation that nobody else needs whole (a weight's gradient, of what its layer read) is
    first of all one for each of the joined tensors. A sum of the operand that has a product's rows, over the product's terms
    (a bias' gradient beside its weight's), is marked: it is done in the same parts, and beside the product. On a GPU sums of
    columns that walk the same loops of a large tensor, neither made of the other (a normalization's gradients), are one, and so
    are the sum of 16-bit numbers and of their squared distances from the mean.
    Options: `target`; `parts`: as many for every reduction, or as near as divides it, instead of the choice by cost (1: none
    is split).
    """

    name: ClassVar[str] = "kitsune-split-reductions"
    target: str = "host"
    parts: int = 0

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        with module.context, ir.Location.unknown():
            for op in [op for op in walk(module) if target.is_gpu and is_contraction(op) and _at_top(op)]:
                multiply_parts(op)
            every = [op for op in walk(module) if is_generic(op) and _at_top(op) and ATTENTION not in op.attributes]
            beside = mark_operand_sums(every) if target.is_gpu else []
            taken = set(beside)
            rest = [op for op in every if op not in taken]
            for op in join_siblings(moments_in_one_pass(rest)) if target.is_gpu else rest:
                found = reduction_of(op)
                if isinstance(found, Reduction):
                    mark = op.attributes[OPERAND_SUM] if OPERAND_SUM in op.attributes else None
                    self._split(found, target, beside[ir.IntegerAttr(mark).value] if mark else None)
                elif found is not None and self.parts > 1:
                    remark(op, f"not in parts: {found}")

    def _split(self, reduction: Reduction, target: Target, beside: ir.Operation | None = None) -> None:
        """Do a reduction in parts if that pays; `beside`: the sum that its stage makes, too, in the same parts."""
        loop = splittable_loop(reduction)
        if loop is None:
            return
        number, extent = loop
        if self.parts == 1:
            return
        parts = nearest_divisor(extent, self.parts) if self.parts else self._choose(reduction, extent, target)
        if parts < 2:
            return
        both = [(reduction, number)]
        if beside is not None:
            sum_ = reduction_of(beside)
            assert isinstance(sum_, Reduction)
            both.insert(int(reduction.op.is_before_in_block(beside)), (sum_, iterator_kinds(beside).index("reduction")))
        cut: Cut = {}  # what the first one is given stands before both
        for one, loop_of_it in both:
            _replace(one, loop_of_it, parts, cut)

    def _choose(self, reduction: Reduction, extent: int, target: Target) -> int:
        """How many parts are fastest; 1 where the reduction is best left as it is."""
        op = reduction.op
        if extent < 2 * LEAST_TERMS or not target.is_gpu:
            return 1
        if is_convolution(op):
            remark(op, "stays whole: blocks share the tiles of a convolution inside one stage")
            return 1
        tiles = tiles_of(op)
        if tiles * 2 > target.workers:
            return 1  # the machine is busy
        apart = math.prod(shape_of(op.results[0])) < -(-target.workers // 4)  # so few rows that form-stages joins nothing
        if not is_product(op) and (apart or not is_read_back(op) or (adds_lines(op) and not is_summed_again(op))):
            remark(op, f"stays whole: its {tiles} tiles can be shared by blocks inside one stage")
            return 1
        found = estimate(op, extent, tiles, target)
        if found.parts < 2 or found.split > min(MARGIN * found.whole, found.whole - rates.PARTS_LEAST_GAIN):
            remark(op, f"stays whole: {found.whole * 1e6:.1f} us, in {found.parts} parts {found.split * 1e6:.1f} us")
            return 1
        remark(op, f"in {found.parts} parts: {found.split * 1e6:.1f} us instead of {found.whole * 1e6:.1f} us")
        return found.parts


def _replace(reduction: Reduction, loop: int, parts: int, cut: Cut) -> None:
    op = reduction.op
    with ir.InsertionPoint(op), op.location:
        values = in_parts(reduction, loop, parts, cut)
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    sources = list(op.operands)
    op.erase()
    _erase_unused(sources)


def _erase_unused(values: Sequence[ir.Value]) -> None:
    """Erase what makes values that nobody reads any more, and what only that has read."""
    pending = dict.fromkeys(values)  # each once: what makes it can be erased once, and one may be made of another
    while pending:
        maker = defining_op(pending.popitem()[0])
        if maker is None or maker.name not in ("linalg.generic", "tensor.empty") or any(list(r.uses) for r in maker.results):
            continue
        for result in maker.results:
            pending.pop(result, None)
        pending.update(dict.fromkeys(maker.operands))
        maker.erase()


def _at_top(op: ir.Operation) -> bool:
    """Whether an op stands in a function's body, not in a stage."""
    return op.parent is not None and op.parent.name == "func.func"


def nearest_divisor(extent: int, wanted: int) -> int:
    """The divisor of `extent` nearest to `wanted` by ratio, at most `wanted * 2`; 1 where none is in reach."""
    near = [n for n in range(max(2, wanted // 2), min(extent, 2 * wanted) + 1) if extent % n == 0]
    return min(near, key=lambda n: (abs(math.log(n / wanted)), n), default=1)


def is_product(op: ir.Operation) -> bool:
    """Whether an op multiplies for rows or columns; a dot product only reads."""
    return is_contraction(op) and not is_dot(op)


def is_convolution(op: ir.Operation) -> bool:
    """Whether an op is a product whose indices are sums of loops, of numbers that the engine of convolutions takes."""
    return is_contraction(op) and element_bytes(op.operands[0].type) in (2, 4) and not is_projected_product(op)


def tiles_of(op: ir.Operation) -> int:
    """About how many tiles a reduction has: its results, in lines of memory where its terms lie a row apart."""
    points = math.prod(shape_of(op.results[0]))
    if is_product(op):
        return max(1, -(-points // (64 * LINE)))
    return max(1, points // LINE) if adds_columns(op) else points


def is_read_back(op: ir.Operation) -> bool:
    """Whether something that the results lead to walks more points than they have: the same stage would hold both.

    Such a stage has the reduction's tiles for everything in it, and its blocks cannot share them.
    """
    return bool(_readers_of_more(op))


def adds_lines(op: ir.Operation) -> bool:
    """Whether a reduction is of columns that fill lines of memory: blocks can share its tiles, whoever reads it back.

    Not of what takes long to compute and others read, too (exponentials): a stage of parts adds that up and stores it.
    """
    made = [maker for value in op.operands if (maker := defining_op(value)) is not None and is_generic(maker)]
    kept = [maker for maker in made if len(list(maker.results[0].uses)) > 1]
    costly = any(inner.name.startswith("math.") for maker in kept for inner in body_of(maker))
    lines = math.prod(shape_of(op.results[0])) % LINE == 0
    return adds_columns(op) and lines and not costly


def is_summed_again(op: ir.Operation) -> bool:
    """Whether a reduction of columns is the first that walks more points than the results that it is made of have.

    A map of rows is a stage of its own then (`stages.column_sums`), and blocks share the sum; a second sum of the same columns
    would be in the stage of the first.
    """
    return any(is_generic(user) and "reduction" in iterator_kinds(user) for user in _readers_of_more(op))


def _readers_of_more(op: ir.Operation) -> list[ir.Operation]:
    """The ops that walk more points than an op has results, and read these, or what no such op makes of them."""
    points, pending, seen, found = math.prod(shape_of(op.results[0])), list(op.results), set[int](), list[ir.Operation]()
    while pending:
        for use in pending.pop().uses:
            user = use.owner.operation
            while user.parent is not None and user.parent.name != "func.func":
                user = user.parent.operation
            if hash(user) in seen:
                continue
            seen.add(hash(user))
            access = access_of(user)
            if access is not None and math.prod(access.sizes) > points:
                found.append(user)
            else:
                pending += list(user.results)
    return found


def estimate(op: ir.Operation, extent: int, tiles: int, target: Target) -> Estimate:
    """The best number of parts that divides the extent, and the time of both forms."""
    most = min(extent // LEAST_TERMS, 4 * target.workers)
    candidates = [n for n in range(2, most + 1) if extent % n == 0]
    time = _product_seconds if is_product(op) else _moving_seconds
    whole = time(op, 1, tiles, target)
    points = math.prod(shape_of(op.results[0]))
    best = min(((time(op, n, tiles, target) + _combine_seconds(points, n, target), n) for n in candidates), default=(whole, 1))
    return Estimate(whole, best[1], best[0])


def _combine_seconds(points: int, parts: int, target: Target) -> float:
    """A hand-off, and reading `parts` results of `points` numbers each."""
    tiles = min(target.workers, max(1, points // LINE))
    return rates.CHAIN_HAND_OFF + 8 * points * parts / min(2 * tiles * rates.PARTS_LOAD_RATE, rates.PARTS_PARTIAL_RATE)


def _bytes_read(op: ir.Operation) -> int:
    inputs = list(op.operands)[: -len(op.results)] + [v for v in captures(op) if isinstance(v.type, ir.RankedTensorType)]
    return sum(tensor_bytes(v.type) for v in inputs)


def _moving_seconds(op: ir.Operation, parts: int, tiles: int, target: Target) -> float:
    """Reading everything once, by as many multiprocessors as have tiles."""
    workers = min(target.workers, tiles * parts)
    return rates.PARTS_START + _bytes_read(op) / min(target.dram_rate, workers * rates.PARTS_LOAD_RATE)


def _product_seconds(op: ir.Operation, parts: int, tiles: int, target: Target) -> float:
    """A product whose sum is cut into parts, by the engine that it would get."""
    moving = _moving_seconds(op, parts, target.workers, target)
    types = {str(ir.ShapedType(v.type).element_type) for v in op.operands}
    if not is_projected_product(op) or not types <= set(TENSOR_TYPES):
        workers = min(target.workers, tiles * parts)
        return max(moving, rates.PARTS_START + math.prod(loop_sizes(op)) / (workers * rates.PARTS_SCALAR_RATE))
    if parts == 1 and (found := few_rows(op)) is not None:
        columns = loop_sizes(op)[found.columns]
        return rates.PARTS_START + _bytes_read(op) / min(target.dram_rate, max(1, columns // 16) * rates.PARTS_LOAD_RATE)
    dims, sizes = contraction_dims(op), loop_sizes(op)
    rows, cols, batch = (math.prod(sizes[loop] for loop in loops) for loops in (dims.m, dims.n, dims.batch))
    bytes_ = max(element_bytes(v.type) for v in list(op.operands)[:2])
    terms = matrix_extents(op)[2] // parts
    tile = mma_tile([batch * parts, rows, cols], ["batch", "m", "n"], terms, target, bytes_)
    work = Work(
        batch * parts * -(-rows // tile[1]) * -(-cols // tile[2]),
        -(-terms * bytes_ // CHUNK_BYTES),
        -(-tile[1] // 64) * 64,
        -(-tile[2] // 8) * 8,
        3 if bytes_ > 2 else 1,
        bytes_,
        4,
    )
    pieces, whole = choose_pieces(work, target.workers)
    # The sum is long and the operands come from memory: a block takes them no faster than its ring holds what is on the way.
    chunk = (work.rows + work.cols) * CHUNK_BYTES
    rate = min(rates.PARTS_RING_BYTES, RING_CHUNKS * chunk) / rates.PARTS_LATENCY
    streaming = rates.PARTS_START + -(-work.tiles * pieces // target.workers) * -(-work.chunks // pieces) * chunk / rate
    sharing = rates.PARTS_SHARED_TILES if pieces > 1 else 1.0
    return max(moving, sharing * streaming, sharing * microseconds(work, pieces, target.workers, whole) * 1e-6)
