"""Recognising dot products of all pairs of a few vectors, of which some are picked by index and joined with other columns.

Recommenders do so with their embeddings (Naumov et al., arXiv 1906.00091): the vectors of a sample are rows of memory, some of
them gathered from tables; of their Gram matrix a list of (left, right) pairs becomes columns of the next layer's input. The
same reader serves whole tensors, where a pass looks for it, and one tile of them, where an engine does.
"""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from .access import affine_maps, is_tensor, iterator_kinds, plain_loops, shape_of
from .contraction import subscripts
from .match_failure import require
from .products import (
    body_of,
    constant_fill,
    defining_op,
    fills_zero,
    is_contraction,
    is_generic,
    is_projected_product,
    yield_of,
)
from .sizes import HALF_TYPES

__all__ = ["Columns", "Pairs", "Vectors", "maker_of", "read_pairs"]

STEP = 32  # elements of a vector that two products of a warp take
MOST_VECTORS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """Some of the vectors, [rows, count, width]: in memory, or gathered from a table.

    Attributes:
        value: the tensor.
        gather: the linalg.generic that gathers them, or None.
        count: how many of each sample.
    """

    value: ir.Value
    gather: ir.Operation | None
    count: int

    @property
    def extract(self) -> ir.Operation:
        """The tensor.extract of a gather: its last index runs along the vector."""
        assert self.gather is not None
        return defining_op(yield_of(self.gather).operands[0])  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """Some columns of the result.

    Attributes:
        kind: "rows" of memory, "picks" of products, or "zeros".
        value: the tensor.
        op: the linalg.generic that picks, or None.
        width: number of columns.
    """

    kind: str
    value: ir.Value
    op: ir.Operation | None
    width: int

    @property
    def extract(self) -> ir.Operation:
        """The tensor.extract of picks: its first index is the sample itself."""
        assert self.op is not None
        return defining_op(yield_of(self.op).operands[0])  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """What was understood.

    Attributes:
        vectors: parts of the vectors, in order.
        columns: parts of the result's columns, in order.
        result: the tensor [rows, columns].
        ops: the operations that belong to it, in order of the program.
        rows: samples.
        width: elements of a vector.
    """

    vectors: tuple[Vectors, ...]
    columns: tuple[Columns, ...]
    result: ir.Value
    ops: tuple[ir.Operation, ...]
    rows: int
    width: int

    @property
    def count(self) -> int:
        """Vectors of a sample."""
        return sum(part.count for part in self.vectors)

    @property
    def dtype(self) -> str:
        """Element type of everything."""
        return str(ir.ShapedType(self.result.type).element_type)

    @property
    def padded(self) -> int:
        """Vectors of a sample, rounded up to the tensor cores' rows."""
        return -(-self.count // 16) * 16

    @property
    def pitch(self) -> int:
        """Elements of on-chip memory from one row of products to the next: rows begin in different banks."""
        return self.padded + 2

    @property
    def vector_bytes(self) -> int:
        """Bytes of on-chip memory from one vector to the next, an odd number of 16-byte pieces."""
        return 2 * self.width + 16

    @property
    def product_bytes(self) -> int:
        """On-chip memory of a sample's products, apart from the rest."""
        return -(-2 * self.count * self.pitch // 16) * 16

    def column_at(self, number: int) -> int:
        """Where part `number` of the columns, rows of memory, is in a sample's on-chip memory; after the last part: its end."""
        place = self.count * self.vector_bytes + 16
        for part in self.columns[:number]:
            place += -(-2 * part.width // 16) * 16 if part.kind == "rows" else 0
        return place

    @property
    def zero_at(self) -> int:
        """Where a sample's on-chip memory has a zero."""
        return self.column_at(0) - 16

    @property
    def sample_bytes(self) -> int:
        """On-chip memory of a sample without its products: an odd number of 16-byte pieces."""
        return self.column_at(len(self.columns)) | 16


def read_pairs(joined: ir.Operation) -> Pairs:
    """What the concatenation `joined` makes.

    Raises:
        MatchFailure: something else.
    """
    result = joined.results[0]
    require(joined.name == "tensor.concat" and len(shape_of(result)) == 2, "no concatenation of columns")
    require(ir.IntegerAttr(joined.attributes["dim"]).value == 1, "no concatenation of columns")
    columns = tuple(_columns(value) for value in joined.operands)
    sources = {part.extract.operands[0] for part in columns if part.kind == "picks"}
    require(len(sources) == 1, "not one tensor of products that is picked from")
    rounded = sources.pop()
    rounding = defining_op(rounded)
    require(_rounds(rounding), "products that are not rounded alone")
    assert rounding is not None
    product = defining_op(rounding.operands[0])
    require(product is not None and is_contraction(product) and is_projected_product(product), "no product")
    assert product is not None
    require(subscripts(product) == "bmk,bnk->bmn", "no product of all pairs in a batch")
    require(product.operands[0] == product.operands[1], "a product of different vectors")
    require(fills_zero(defining_op(product.operands[2])), "a product that is added to something")
    gathered = product.operands[0]
    maker = defining_op(gathered)
    inner = maker is not None and maker.name == "tensor.concat"
    require(not inner or ir.IntegerAttr(maker.attributes["dim"]).value == 1, "vectors joined otherwise")  # type: ignore[union-attr]
    vectors = tuple(_vectors(value) for value in (list(maker.operands) if inner else [gathered]))  # type: ignore[union-attr]
    rows, count, width = shape_of(gathered)
    ops = [part.gather for part in vectors if part.gather is not None] + ([maker] if inner else [])
    ops += [product, rounding, *(part.op for part in columns if part.op is not None and part.kind == "picks"), joined]
    pairs = Pairs(vectors, columns, result, tuple(ops), rows, width)  # type: ignore[arg-type]
    types = {str(ir.ShapedType(value.type).element_type) for value in (gathered, rounded, result)}
    require(types == {pairs.dtype} and pairs.dtype in HALF_TYPES, f"vectors and products of {', '.join(sorted(types))}")
    require(count <= MOST_VECTORS, f"{count} vectors; up to {MOST_VECTORS} are done")
    require(width % STEP == 0, f"vectors of {width} elements; multiples of {STEP} are done")
    for part in columns:
        require(part.kind != "rows" or part.width % 8 == 0, f"{part.width} columns of memory; multiples of 8 are done")
    return pairs


def maker_of(vectors: ir.Value) -> ir.Value:
    """The tensor [rows, width] that one vector of each sample is; `vectors` itself where it is no reshape."""
    op = defining_op(vectors)
    return op.operands[0] if op is not None and op.name == "tensor.expand_shape" else vectors


def _rounds(op: ir.Operation | None) -> bool:
    if op is None or not is_generic(op) or len(op.operands) != 2 or "reduction" in iterator_kinds(op):
        return False
    source, result = affine_maps(op)
    return source == result and result.is_permutation and [inner.name for inner in body_of(op)] == ["arith.truncf"]


def _columns(value: ir.Value) -> Columns:
    op, width = defining_op(value), shape_of(value)[1]
    if constant_fill(op) is not None:
        require(fills_zero(op), "columns of another constant than zero")
        return Columns("zeros", value, None, width)
    if _reads_by_index(op, 2) and len(shape_of(_extracted(op).operands[0])) == 3:  # type: ignore[arg-type]
        assert op is not None
        first, *others = list(_extracted(op).operands)[1:]
        require(_loop(first) == 0 and all(_loop(index) is None for index in others), "picks of other samples")
        require(_walks(op, {1}) and not _positions(op, 0, first), "picks that differ from sample to sample")
        return Columns("picks", value, op, width)
    require(op is None or op.name != "arith.constant", "columns of a constant tensor")
    return Columns("rows", value, None, width)


def _vectors(value: ir.Value) -> Vectors:
    op, (_, count, width) = defining_op(value), shape_of(value)
    if not _reads_by_index(op, 3):
        return Vectors(value, None, count)
    assert op is not None
    table, *indices = list(_extracted(op).operands)
    require(_loop(indices[-1]) == 2 and shape_of(table)[-1] == width, "parts of a table's rows")
    require(_walks(op, {0, 1}) and not _positions(op, 2, indices[-1]), "elements of vectors that are gathered one by one")
    return Vectors(value, op, count)


def _reads_by_index(op: ir.Operation | None, rank: int) -> bool:
    """Whether a generic's elements are read from one tensor by index, and nothing else is done with them."""
    if op is None or not is_generic(op) or len(op.results) != 1 or "reduction" in iterator_kinds(op):
        return False
    if len(shape_of(op.results[0])) != rank or plain_loops(affine_maps(op)[-1]) != list(range(rank)):
        return False
    found = [inner for inner in body_of(op) if inner.name == "tensor.extract"]
    return len(found) == 1 and yield_of(op).operands[0] == found[0].results[0] and is_tensor(found[0].operands[0])


def _extracted(op: ir.Operation) -> ir.Operation:
    return defining_op(yield_of(op).operands[0])  # type: ignore[return-value]


def _loop(index: ir.Value) -> int | None:
    """The loop whose position an index is."""
    op = defining_op(index)
    return ir.IntegerAttr(op.attributes["dim"]).value if op is not None and op.name == "linalg.index" else None


def _walks(op: ir.Operation, loops: set[int]) -> bool:
    """Whether the operands are walked along some loops only."""
    return {loop for map_ in affine_maps(op)[:-1] for loop in plain_loops(map_)} <= loops


def _positions(op: ir.Operation, loop: int, but: ir.Value) -> bool:
    """Whether a body asks for its position along `loop` for something else than the index `but`."""
    asked = [inner.results[0] for inner in body_of(op) if inner.name == "linalg.index" and _loop(inner.results[0]) == loop]
    if any(value != but for value in asked):
        return True
    return any(len(list(value.uses)) > 1 for value in asked)
