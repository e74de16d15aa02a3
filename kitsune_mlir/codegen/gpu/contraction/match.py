"""Reading the body of a task for tensor cores: which steps it consists of, and along which side of the tile each tensor lies.

A body is a list of steps in the order of the program: products, element-wise maps, reshapes that only add or drop unit
dimensions (`contraction.elementwise`). Loops that walk the same data are united, so each dimension of each tensor belongs to
one *side*: the rows or the columns of the product's tile, its sum (`k`), or to nothing, where the extent is 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW, Sides
from kitsune_mlir.codegen.gpu.contraction.elementwise import Body, Step, check_outputs, is_constant, read_step
from kitsune_mlir.codegen.gpu.contraction.gather import tables_of
from kitsune_mlir.dialects.access import affine_maps, loop_sizes, plain_loops
from kitsune_mlir.dialects.attribute_table import OPERAND_SUM
from kitsune_mlir.dialects.axes import Node
from kitsune_mlir.dialects.contraction import contraction_dims, matrix_extents
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of, is_contraction, is_projected_product
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.tile_records import Load, TaskView

__all__ = ["Pattern", "Product", "loaded", "match"]

_DTYPES = HALF_TYPES


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A contraction out[.., row, col] = init + sum over k of a[.., row, k] * b[.., col, k].

    Attributes:
        op: the `linalg.generic`.
        a, b: numbers of the operands that hold the rows and the columns.
        sums: the reduction loops longer than 1, in the order of the nest, with their lengths.
        rows, cols: extents of the tile.
        dtype: element type of both operands, "bf16" or "f16".
    """

    op: ir.Operation
    a: int
    b: int
    sums: tuple[tuple[int, int], ...]
    rows: int
    cols: int
    dtype: str

    @property
    def init(self) -> ir.Value:
        """The tensor that the sum starts from."""
        return self.op.operands[2]


@dataclasses.dataclass(eq=False)
class Pattern(Body):
    """A body that was understood.

    Attributes:
        product: the contraction; the first of them.
        products: all contractions, of one size and one first operand.
        operand_sum: adds up the product's operand that has the rows, over its terms, beside it (`kitsune.operand_sum`).
    """

    product: Product
    products: tuple[Product, ...] = ()
    operand_sum: ir.Operation | None = None

    @property
    def sum_store(self) -> int | None:
        """The number of the store of `operand_sum`."""
        if self.operand_sum is None:
            return None
        return next(n for n, store in enumerate(self.task.stores) if store.tensor == self.operand_sum.results[0])

    @functools.cached_property
    def reads_matrices(self) -> bool:
        """Whether steps after the products read tensors that have rows and columns."""
        uses = [(step.op, number) for step in dict.fromkeys(self.steps.values()) for number in step.operands]
        loaded = [(op, number) for op, number in uses if self.task.load_of(op.operands[number]) is not None]
        return any(set(self.operand_sides(op, number)) == {ROW, COL} for op, number in loaded)


def match(task: TaskView, dtypes: Sequence[str] = _DTYPES, one_sum: bool = False) -> Pattern:
    """Read the body of a task.

    Args:
        dtypes: element types of the product's operands that the engine does.
        one_sum: both operands are loaded, without rows that an index names, and the sum is over one dimension.

    Raises:
        MatchFailure: it is no product of them, or several of one operand, with element-wise work around it.
    """
    sides = Sides(task)
    steps, products, operand_sums = _read_body(task, sides, dtypes, () if one_sum else tables_of(task))
    if not products:
        raise MatchFailure("no product")
    _unite_products(task, sides, products)
    for product in products:
        _name_sides(sides, product)
        for operand in (product.a, product.b) if one_sum else (product.b,):
            loaded(task, product, operand)
        if one_sum and len(product.sums) != 1:
            raise MatchFailure(f"a sum over {len(product.sums)} dimensions; one is done")
    operand_sum = _operand_sum(task, sides, products, operand_sums, one_sum)
    pattern = Pattern(task, steps, sides, products[0], tuple(products), operand_sum)
    whole = {side for side, extent in ((ROW, pattern.product.rows), (COL, pattern.product.cols)) if extent != 1}
    check_outputs(pattern, {product.op.results[0]: product.init for product in products}, whole, operand_sums)
    return pattern


def loaded(task: TaskView, product: Product, number: int) -> Load:
    """The load that an operand of a product is.

    Raises:
        MatchFailure: it is none.
    """
    load = task.load_of(product.op.operands[number])
    if load is None:
        raise MatchFailure("an operand of the product is computed in the task")
    return load


def _unite_products(task: TaskView, sides: Sides, products: Sequence[Product]) -> None:
    """Rows and columns of products of one first operand and one size are the same rows and columns of the tile.

    Raises:
        MatchFailure: their first operands, sizes or types differ.
    """

    def key(product: Product) -> tuple:
        source = task.load_of(product.op.operands[product.a])
        # What is read in place, part by part (`mma.k_ranges`), is the same if it is one value.
        where = (source.buffer.memory, source.offsets, source.sizes) if source else (product.op.operands[product.a],)
        sums = [length for _, length in product.sums]
        return *where, product.rows, product.cols, sums, product.dtype

    for other in products:
        if key(other) != key(products[0]):
            raise MatchFailure("several products of different inputs, sizes or types")
        results = (product.op.results[0] for product in (products[0], other))
        for one, same in zip(*(sides.dims(result, result) for result in results), strict=True):
            sides.unite(one, same)


def _read_body(
    task: TaskView, sides: Sides, dtypes: Sequence[str], tables: Collection[ir.Value] = ()
) -> tuple[dict[ir.Value, Step], list[Product], list[ir.Operation]]:
    """The steps (by the value that each makes), products, and sums beside these of a task's body, in order; `sides` learns what
    walks together.

    Args:
        dtypes, tables: as for `_read_product`; tensors whose elements the engine can read by index.

    Raises:
        MatchFailure: an operation is neither a product of these types nor element-wise.
    """
    steps: dict[ir.Value, Step] = {}
    products: list[Product] = []
    operand_sums: list[ir.Operation] = []
    for op in task.work():
        if op.name == "tensor.empty" or (len(op.results) and is_constant(op.results[0])):
            continue
        if OPERAND_SUM in op.attributes and not is_contraction(op):
            operand_sums.append(op)
            sides.generic(op, (0,))
            continue
        step = read_step(op, sides, tables.__contains__)
        if step is not None:
            steps.update(dict.fromkeys(op.results, step))
            continue
        if not is_contraction(op):
            raise MatchFailure(f"'{op.name}' is neither a product nor element-wise")
        products.append(_read_product(op, dtypes))
        sides.generic(op, (0, 1, 2))
    return steps, products, operand_sums


def _operand_sum(
    task: TaskView, sides: Sides, products: Sequence[Product], found: Sequence[ir.Operation], one_sum: bool
) -> ir.Operation | None:
    """The sum that is made beside a product; what it stores lies along the product's rows.

    Raises:
        MatchFailure: it is of another operand, or the engine (`one_sum`) makes none.
    """
    if not found:
        return None
    product, op = products[0], found[0]
    if one_sum or len(found) > 1 or len(products) > 1:
        raise MatchFailure("a sum of an operand beside the product, or several")
    (load, same) = (task.load_of(value) for value in (op.operands[0], product.op.operands[product.a]))
    if load is None or same is None or product.dtype not in _DTYPES:
        raise MatchFailure("a sum of an operand that is not loaded, or not of 16-bit elements")
    places = [(one.buffer.memory, one.offsets, one.sizes) for one in (load, same)]
    if places[0] != places[1]:
        raise MatchFailure("a sum of another tensor than the operand that has the product's rows")
    result, made = product.op.results[0], op.results[0]
    for node, row in zip(reversed(sides.dims(made, made)), reversed(sides.dims(result, result)[:-1]), strict=False):
        sides.unite(node, row)
    return op


def _read_product(op: ir.Operation, dtypes: Sequence[str] = _DTYPES) -> Product:
    """A contraction read as a product of a tile's rows and columns.

    Args:
        dtypes: element types of the operands that the engine does; the sum is f32.

    Raises:
        MatchFailure: it is none, or of other types.
    """
    if not is_projected_product(op):
        raise MatchFailure("a convolution: its operands are not indexed by plain loops")
    types = [str(ir.ShapedType(operand.type).element_type) for operand in op.operands]
    if types[0] != types[1] or types[0] not in dtypes or types[2] != "f32":
        raise MatchFailure(f"a product of {types[0]} and {types[1]} into {types[2]}; {' or '.join(dtypes)} into f32 are done")
    if [inner.name for inner in body_of(op)][-2:] != ["arith.mulf", "arith.addf"]:
        raise MatchFailure("the product's body is not a multiplication and an addition in f32")
    dims, sizes = contraction_dims(op), loop_sizes(op)
    wide = [loop for loop in plain_loops(affine_maps(op)[2]) if loop is not None and sizes[loop] != 1]
    if len(wide) > 2:
        raise MatchFailure(f"a tile of {len(wide)} wide dimensions; rows and columns are done")
    a, b = (1, 0) if wide and wide[-1] in dims.m else (0, 1)
    if any(loop not in side for loop, side in zip(reversed(wide), (dims.m, dims.n) if a else (dims.n, dims.m), strict=False)):
        raise MatchFailure("a batch dimension is wider than 1 in the tile")
    sums = tuple((loop, sizes[loop]) for loop in dims.k if sizes[loop] != 1)
    if math.prod(length for _, length in sums) != matrix_extents(op)[2]:
        raise MatchFailure("an operand is summed on its own")
    rows = sizes[wide[-2]] if len(wide) == 2 else 1
    cols = sizes[wide[-1]] if wide else 1
    return Product(op, a, b, sums, rows, cols, types[0])


def _name_sides(sides: Sides, product: Product) -> None:
    """Name the classes of loops that are the rows, the columns and the sums of a product.

    Raises:
        MatchFailure: one class is two of them.
    """
    result = product.op.results[0]
    nodes: list[tuple[Node, str]] = [*zip(reversed(sides.dims(result, result)), (COL, ROW), strict=False)]
    nodes += [((product.op, loop), f"k{loop}") for loop, _ in product.sums]
    for node, name in nodes:
        sides.call(node, name)
