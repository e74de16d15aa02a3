"""Which ops become one row-local stage on a GPU: what the `chain` engine can hold on chip, and when that pays.

A chain is a sequence of products whose rows stay in one block: each layer's result is the next one's input, without a way
through memory (Kitsune's pipelines collapsed into a block, FusionStitching's block composition). Its price is parallelism: a
stage has one tile for 64 or 128 rows, and every tile reads all weights.
"""

import itertools
import math
from collections.abc import Container
from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.core.seams import SEAM
from kitsune_mlir.codegen.gpu.engines.chain.footprint import is_load, kept_reason, registers_reason, rows_reason, shared_reason
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.dialects.access import affine_maps, is_tensor, plain_loops, shape_of
from kitsune_mlir.dialects.contraction import contraction_dims, matrix_extents
from kitsune_mlir.dialects.iteration import Space, is_free, is_reshape
from kitsune_mlir.dialects.joined import read_beside_products
from kitsune_mlir.dialects.products import body_of, is_contraction, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target

from .wide_layers import MOST_COLUMNS, wide_reason

TILE_ROWS = (128, 64)  # two warpgroups of 64 rows, or one
WIDTH = 256  # columns of a layer that is multiplied in one pass: 64 x 256 accumulators are half of a warpgroup's registers
DEPTH = 1024  # columns that one product sums over
RESIDENT_BYTES = 160 << 10  # weights that stay in shared memory for all tiles of a block
FEW_ROWS = 16  # rows of layers beside pairs: one product of a warp (codegen/gpu/engines/chain/few_rows/plan.py)
FEW_UNIT, FEW_SHORT = 32, 64  # its sums are of multiples of 32 terms, or, in the first layer, of up to 64


@dataclass(frozen=True)
class Layer:
    """One product of a chain: `rows` x `depth` times `depth` x `columns`."""

    rows: int
    depth: int
    columns: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.depth * self.columns

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, 16 bits an element."""
        return 2 * self.depth * self.columns


def offer(name: str, candidate: Candidate, machine: Target) -> Offer | Decline:
    """Row-local products one after the other, or one whose rows are whole in a tile: what reads them needs all columns."""
    if not candidate.products:
        return Decline(name, "it holds no product")
    if candidate.several_passes is None:
        return Decline(name, "its one product can be tiled along its columns, too")
    if any(op.name == "tensor.concat" and _is_returned(op.results[0]) for op in candidate.space.ops):
        return Decline(name, "a concatenation is a result: a chain stores what it computes")
    layers = candidate.asserts or layers_of(candidate.space)
    if isinstance(layers, str):
        return Decline(name, layers)
    rows = candidate.space.dims[0].size
    tile, wide = tile_rows(rows, machine), any(layer.columns > WIDTH for layer in layers)
    if not wide and tile > TILE_ROWS[-1] and shared_reason(candidate.space, tile) is not None:
        tile = TILE_ROWS[-1]
    # One wide layer alone never pays: as a product it reads what is joined or gathered in place.
    seconds = math.inf if wide and len(layers) == 1 else chain_seconds(layers, machine)
    return Offer(name, (tile,), seconds)


def _is_returned(value: ir.Value) -> bool:
    """Whether a value, or a reshape of it, leaves the function or the stage: what reads it may still join the group."""
    for use in value.uses:
        user = use.owner.operation
        if user.name in ("func.return", "kitsune.yield", "builtin.unrealized_conversion_cast"):
            return True
        if is_reshape(user) and _is_returned(user.results[0]):
            return True
    return False


def layers_of(space: Space) -> list[Layer] | str:
    """The products of a row-local group; a reason where it is none that the chain engine takes."""
    layers = row_local_layers(space)
    if isinstance(layers, str):
        return layers
    reason = (
        registers_reason(space)
        or kept_reason(space)
        or rows_reason(space)
        or shared_reason(space, min(layers[0].rows, TILE_ROWS[-1]))
    )
    if reason is not None or any(layer.columns > WIDTH for layer in layers):
        wide = wide_reason(space)
        return layers if wide is None else reason or wide
    return layers


def row_local_layers(space: Space) -> list[Layer] | str:
    """The products of a row-local group of limited widths; a reason where it is something else."""
    if len(space.dims) != 1:
        return "tiles of a chain are rows: one parallel dimension, not " + ("x".join(str(d.size) for d in space.dims) or "none")
    layers, inside = [], {result for op in space.ops for result in op.results}
    for n, (op, access) in enumerate(zip(space.ops, space.accesses, strict=True)):
        if not any(is_tensor(r) for r in op.results) or op.name in ("tensor.empty", "arith.constant"):
            continue
        loop = space.dims[0].loops.get(n)
        if access is None or (loop is None and not is_free(op)):
            return f"'{op.name}' does not run along the rows"
        if not _rows_first(space, n, inside):
            return f"the rows are not the first dimension of what '{op.name}' makes"
        if is_contraction(op):
            layer = _layer(op, access.sizes, loop)
            if isinstance(layer, str):
                return layer
            layers.append(layer)
        elif not _is_source(op, space, inside) and (reason := _beside(op, access.sizes, loop)) is not None:
            return reason
    return layers


def _rows_first(space: Space, number: int, inside: Container[ir.Value]) -> bool:
    """Whether the rows are the first dimension of what an op makes, and of what is computed for it, those of extent 1 left out
    (or none of them)."""
    op = space.ops[number]
    walked = [(space.result_dims(number, place), result) for place, result in enumerate(op.results)]
    if is_generic(op) or is_contraction(op):
        loop = space.dims[0].loops.get(number)
        rows = [[0 if one == loop else None for one in plain_loops(map_)] for map_ in affine_maps(op)]
        walked += [(its, value) for its, value in zip(rows, op.operands, strict=True) if value in inside or is_contraction(op)]
    return not any(0 in [d for d, size in zip(dims, shape_of(v), strict=True) if size != 1][1:] for dims, v in walked)


def _is_source(op: ir.Operation, space: Space, inside: Container[ir.Value]) -> bool:
    """Whether an op is a box of a tensor in memory: rows that products read, alone or joined, or which rows to gather."""
    if not is_load(op.results[0], inside):
        return False
    if isinstance(ir.ShapedType(op.results[0].type).element_type, ir.IntegerType):
        return True
    if [d for d, size in enumerate(shape_of(op.results[0])) if shape_of(op.operands[0])[d] != size] == [0]:
        return True  # neighbouring rows, whole: they lie like a tensor's own
    users = [other for other in space.ops if op.results[0] in list(other.operands)]
    return all(is_contraction(user) or user.name == "tensor.concat" for user in users)


def _layer(op: ir.Operation, sizes: tuple[int, ...], loop: int | None) -> Layer | str:
    if not is_projected_product(op):
        return "a convolution's rows need their neighbours"
    types = [str(ir.ShapedType(v.type).element_type) for v in op.operands]
    if types[0] != types[1] or types[0] not in HALF_TYPES:
        return f"a chain has products of {' or '.join(HALF_TYPES)}, not of {types[0]} and {types[1]}"
    dims = contraction_dims(op)
    if loop is None or loop not in (*dims.m, *dims.n):
        return "a batched product has no common weights for its rows"
    out = {*dims.batch, *dims.m, *dims.n}
    wide = [size for i, size in enumerate(sizes) if i in out and i != loop and size > 1]
    sums = [size for i, size in enumerate(sizes) if i not in out and size > 1]
    if len(wide) > 1 or len(sums) > 1:
        return "a product over several dimensions is no layer"
    columns, depth = math.prod(wide), math.prod(sums)
    if columns > MOST_COLUMNS:
        return f"a layer of {columns} columns; a block holds {MOST_COLUMNS}"
    if depth > DEPTH:
        return f"a sum over {depth} columns; a block reads {DEPTH}"
    return Layer(sizes[loop], depth, columns)


def layer_of(op: ir.Operation) -> Layer:
    """The extents of any product, as one layer: columns are what only its second factor has."""
    rows, columns, depth = matrix_extents(op)
    return Layer(rows, depth, columns)


def _beside(op: ir.Operation, sizes: tuple[int, ...], loop: int | None) -> str | None:
    """Why an op that is no product cannot stand in a chain."""
    if loop is None and op.name == "tensor.extract_slice":
        return None  # a part of a weight
    if not (is_generic(op) or op.name in ("linalg.fill", "tensor.concat", "tensor.expand_shape", "tensor.collapse_shape")):
        return f"'{op.name}' is no part of a chain"
    if loop is None and is_generic(op) and any(inner.name == "linalg.index" for inner in body_of(op)):
        return "a table of positions is no part of a chain"
    others = [size for i, size in enumerate(sizes) if i != loop and size > 1]
    if len(others) > 1:
        return f"'{op.name}' has {len(others)} dimensions beside the rows"
    if op.name == "tensor.concat" and ir.IntegerAttr(op.attributes["dim"]).value != len(shape_of(op.results[0])) - 1:
        return "a concatenation of rows"
    if op.name == "tensor.concat" and read_beside_products(op.results[0]):
        starts = list(itertools.accumulate(shape_of(part)[-1] for part in op.operands))[:-1]
        if any(start % SEAM for start in starts):
            return f"element-wise work on tensors joined at columns {starts}; the engine has multiples of {SEAM}"
    if others and others[0] > DEPTH:
        return f"rows of {others[0]} elements; a block holds {DEPTH}"
    return None


def tile_rows(rows: int, target: Target) -> int:
    """Rows of a chain's tile: 128 where that gives every multiprocessor one, else 64."""
    most, least = TILE_ROWS
    return min(rows, most if rows > least * target.workers else least)


def chain_seconds(layers: list[Layer], target: Target) -> float:
    """Time of a chain: waves of tiles, each as long as its products, or as its weights take from L2 where they do not stay."""
    rows = tile_rows(layers[0].rows, target)
    waves = -(-layers[0].rows // (rows * target.workers))
    rate, read = target.matrix_rate / target.workers, target.cache_rate / target.workers
    stays = sum(layer.weight_bytes for layer in layers) <= RESIDENT_BYTES
    first = sum(layer.weight_bytes for layer in layers) / read
    one = 0.0
    for layer in layers:
        products = 2 * max(rows, TILE_ROWS[-1]) * layer.depth * layer.columns / rate
        one += (rates.CHAIN_LAYER if layer.columns <= WIDTH else rates.CHAIN_WIDE_LAYER) + (
            products if stays else max(products, layer.weight_bytes / read)
        )
    return (first if stays else 0.0) + waves * one


def few_rows_seconds(layers: list[Layer], target: Target) -> float:
    """Time of layers in tiles of `FEW_ROWS` rows, each of which reads all weights from L2 (as the `pairs` engine does them)."""
    read = target.cache_rate / target.workers
    waves = -(-layers[0].rows // (FEW_ROWS * target.workers))
    return waves * sum(layer.weight_bytes / read + rates.CHAIN_LAYER for layer in layers)


def few_rows_reason(layers: list[Layer]) -> str | None:
    """Why layers cannot be done in tiles of `FEW_ROWS` rows; None if they can."""
    for number, layer in enumerate(layers):
        if layer.columns % 8:
            return f"a layer of {layer.columns} columns, no multiple of 8"
        if layer.depth % FEW_UNIT and (number or layer.depth > FEW_SHORT):
            return f"sums over {layer.depth} terms, no multiple of {FEW_UNIT}"
    return None
