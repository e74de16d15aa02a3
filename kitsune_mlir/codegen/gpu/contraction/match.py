"""Reading the body of a task for tensor cores: which steps it consists of, and along which side of the tile each tensor lies.

A body is a list of steps in the order of the program: products, element-wise maps, reshapes that only add or drop unit
dimensions. Every step names its operands by their SSA values; what comes from memory is the value of a `tasks.Load`. Loops
that walk the same data are united, so each dimension of each tensor belongs to one *side*: the rows or the columns of the
product's tile, its sum (`k`), or to nothing, where the extent is 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Hashable, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW, Sides
from kitsune_mlir.codegen.gpu.contraction.gather import tables_of
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes, plain_loops, shape_of
from kitsune_mlir.dialects.contraction import contraction_dims, matrix_extents
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of, is_contraction, is_projected_product
from kitsune_mlir.dialects.sizes import wide_dims
from kitsune_mlir.dialects.tile_records import Load, TaskView

__all__ = ["COL", "ROW", "Pattern", "Product", "Sides", "Step", "is_constant", "loaded", "match"]

_DTYPES = ("bf16", "f16")


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """An element-wise `linalg.generic` (or `linalg.fill`), a reshape of unit dimensions, or a concatenation.

    Attributes:
        op: the operation.
        kind: "map", "fill", "alias", or "concat" (of the terms of a sum).
        operands: numbers of the operands that it reads.
    """

    op: ir.Operation
    kind: str
    operands: tuple[int, ...]


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
class Pattern:
    """A body that was understood.

    Attributes:
        task: where it comes from.
        steps: by the value that each makes.
        product: the contraction; the first of them.
        products: all contractions, of one size and one first operand.
    """

    task: TaskView
    steps: dict[ir.Value, Step]
    product: Product
    sides: Sides
    products: tuple[Product, ...] = ()

    def operand_sides(self, op: ir.Operation, number: int) -> tuple[str, ...]:
        """The side of each wide dimension of an operand of a step."""
        return tuple(self._side(node) for node in self.sides.operand(op, number))

    def value_sides(self, value: ir.Value) -> tuple[str, ...]:
        """The side of each wide dimension of a computed tensor."""
        return tuple(self._side(("value", value, dim)) for dim in range(len(wide_dims(shape_of(value)))))

    def loop_side(self, op: ir.Operation, loop: int) -> str:
        """The side that a loop of a step walks; "" for a loop of one iteration."""
        return self._side(("loop", op, loop))

    def _side(self, node: Hashable) -> str:
        return self.sides.names.get(self.sides.find(node), "")


def match(task: TaskView, dtypes: Sequence[str] = _DTYPES, one_sum: bool = False) -> Pattern:
    """Read the body of a task.

    Args:
        dtypes: element types of the product's operands that the engine does.
        one_sum: both operands are loaded, without rows that an index names, and the sum is over one dimension.

    Raises:
        Mismatch: it is no product of them, or several of one operand, with element-wise work around it.
    """
    sides = Sides(task)
    steps, products = _read_body(task, sides, dtypes, () if one_sum else tables_of(task))
    if not products:
        raise MatchFailure("no product")
    _unite_products(task, sides, products)
    for product in products:
        _name_sides(sides, product)
        for operand in (product.a, product.b) if one_sum else (product.b,):
            loaded(task, product, operand)
        if one_sum and len(product.sums) != 1:
            raise MatchFailure(f"a sum over {len(product.sums)} dimensions; one is done")
    pattern = Pattern(task, steps, products[0], sides, tuple(products))
    _check_outputs(pattern, products)
    return pattern


def loaded(task: TaskView, product: Product, number: int) -> Load:
    """The load that an operand of a product is.

    Raises:
        Mismatch: it is none.
    """
    load = task.load_of(product.op.operands[number])
    if load is None:
        raise MatchFailure("an operand of the product is computed in the task")
    return load


def _unite_products(task: TaskView, sides: Sides, products: Sequence[Product]) -> None:
    """Rows and columns of products of one first operand and one size are the same rows and columns of the tile.

    Raises:
        Mismatch: their first operands, sizes or types differ.
    """

    def key(product: Product) -> tuple:
        source = task.load_of(product.op.operands[product.a])
        # What is read in place, part by part (`mma.k_ranges`), is the same if it is one value.
        where = (source.buffer.memory, source.offsets, source.sizes) if source else (product.op.operands[product.a],)
        sums = [length for _, length in product.sums]
        return *where, product.rows, product.cols, sums, product.dtype

    def loops(product: Product) -> list[Hashable]:
        out = affine_maps(product.op)[2]
        return [("loop", product.op, out.results[dim].position) for dim in wide_dims(shape_of(product.op.results[0]))]

    for other in products:
        if key(other) != key(products[0]):
            raise MatchFailure("several products of different inputs, sizes or types")
        for one, same in zip(loops(products[0]), loops(other), strict=True):
            sides.unite(one, same)


def _read_body(
    task: TaskView, sides: Sides, dtypes: Sequence[str], tables: Collection[ir.Value] = ()
) -> tuple[dict[ir.Value, Step], list[Product]]:
    """The steps (by the value that each makes) and products of a task's body, in order; `sides` learns what walks together.

    Args:
        dtypes, tables: as for `_read_product` and `_read_step`.

    Raises:
        Mismatch: an operation is neither a product of these types nor element-wise.
    """
    steps: dict[ir.Value, Step] = {}
    products: list[Product] = []
    for op in task.work():
        if op.name == "tensor.empty" or (len(op.results) and is_constant(op.results[0])):
            continue
        step = _read_step(op, sides, tables)
        if step is not None:
            steps.update(dict.fromkeys(op.results, step))
            continue
        if not is_contraction(op):
            raise MatchFailure(f"'{op.name}' is neither a product nor element-wise")
        products.append(_read_product(op, dtypes))
        sides.generic(op, (0, 1, 2))
    return steps, products


def is_constant(value: ir.Value) -> bool:
    """Whether a value is a constant: a scalar, or a tensor of one number."""
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return False
    attribute = value.owner.attributes["value"]
    return not isinstance(value.type, ir.ShapedType) or (
        isinstance(attribute, ir.DenseElementsAttr) and ir.DenseElementsAttr(attribute).is_splat
    )


def _check_captures(op: ir.Operation, tables: Collection[ir.Value]) -> None:
    """A body may use constants and index arithmetic from outside, and tables that it indexes."""
    block = op.regions[0].blocks[0]
    for inner in body_of(op):
        for operand in inner.operands:
            owner = operand.owner
            outside = owner != block if isinstance(owner, ir.Block) else owner.operation.block != block
            if inner.name == "tensor.extract" and operand in tables:
                continue
            if outside and not is_constant(operand) and not isinstance(operand.type, ir.IndexType):
                raise MatchFailure(f"an element-wise body uses a {operand.type} that is computed outside of it")


def _read_step(op: ir.Operation, sides: Sides, tables: Collection[ir.Value] = ()) -> Step | None:
    """The step that `op` is, with its loops united; None for anything else.

    Args:
        tables: tensors whose elements the engine can read by index.

    Raises:
        Mismatch: a reshape of wide dimensions, or a body that cannot be emitted element by element.
    """
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        source, result = shape_of(op.operands[0]), shape_of(op.results[0])
        if [d for d in source if d != 1] != [d for d in result if d != 1]:
            raise MatchFailure(f"'{op.name}' splits or merges dimensions of the tile")
        for dim, node in enumerate(sides.operand(op, 0)):
            sides.unite(("value", op.results[0], dim), node)
        return Step(op, "alias", (0,))
    if op.name == "linalg.fill":
        return Step(op, "fill", (0,))
    if op.name == "tensor.concat":
        return _joined(op, sides)
    if op.name != "linalg.generic" or any(kind != "parallel" for kind in iterator_kinds(op)):
        return None
    inputs = len(op.operands) - len(op.results)
    arguments = op.regions[0].blocks[0].arguments
    # An init is read only where the body uses its argument.
    numbers = [n for n in range(len(op.operands)) if n < inputs or len(list(arguments[n].uses))]
    for inner in body_of(op):
        gathers = inner.name == "tensor.extract" and inner.operands[0] in tables
        if inner.regions or not (gathers or inner.name.startswith(("arith.", "math.", "linalg.index"))):
            raise MatchFailure(f"an element-wise body holds '{inner.name}'")
    _check_captures(op, tables)
    sides.generic(op, numbers)
    return Step(op, "map", tuple(numbers))


def _joined(op: ir.Operation, sides: Sides) -> Step:
    """A concatenation: each part lies along the sides of the whole."""
    whole = wide_dims(shape_of(op.results[0]))
    for number, part in enumerate(op.operands):
        for dim, node in zip(wide_dims(shape_of(part)), sides.operand(op, number), strict=True):
            sides.unite(node, ("value", op.results[0], whole.index(dim)))
    return Step(op, "concat", tuple(range(len(op.operands))))


def _read_product(op: ir.Operation, dtypes: Sequence[str] = _DTYPES) -> Product:
    """A contraction read as a product of a tile's rows and columns.

    Args:
        dtypes: element types of the operands that the engine does; the sum is f32.

    Raises:
        Mismatch: it is none, or of other types.
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
        Mismatch: one class is two of them.
    """
    out = affine_maps(product.op)[2]
    wide = [out.results[dim].position for dim in wide_dims(shape_of(product.op.results[0]))]
    named = [*zip(reversed(wide), (COL, ROW), strict=False), *((loop, f"k{loop}") for loop, _ in product.sums)]
    for loop, name in named:
        root = sides.find(("loop", product.op, loop))
        if sides.names.get(root, name) != name:
            raise MatchFailure("one tensor is walked along two sides of the tile")
        sides.names[root] = name


def _check_outputs(pattern: Pattern, products: Sequence[Product]) -> None:
    """Everything that is stored must be a whole tile, and be made of steps along its sides.

    Args:
        products: those of the task, all of one size; `pattern.product` is one of them.

    Raises:
        Mismatch: it is not.
    """
    product = pattern.product
    whole = {side for side, extent in ((ROW, product.rows), (COL, product.cols)) if extent != 1}
    inits = {product.op.results[0]: product.init for product in products}

    def made_of(value: ir.Value) -> list[ir.Value]:
        if not isinstance(value.type, ir.ShapedType):
            return []
        step = pattern.steps.get(value)
        start = [inits[value]] if value in inits else []
        if step is None and not start and pattern.task.load_of(value) is None and not is_constant(value):
            raise MatchFailure("an element-wise operand is neither loaded nor computed")
        if step is None:
            return start
        if step.kind == "concat":
            raise MatchFailure("element-wise work on a concatenation")
        for number in step.operands:
            if any(side not in (ROW, COL) for side in pattern.operand_sides(step.op, number)):
                raise MatchFailure("an element-wise operand does not lie along the rows and columns of the product")
        return [*start, *(step.op.operands[number] for number in step.operands)]

    if not pattern.task.stores:
        raise MatchFailure("the task stores nothing")
    for store in pattern.task.stores:
        if pattern.task.load_of(store.tensor) is not None:
            raise MatchFailure("a tensor is copied from memory to memory")
        sides = pattern.value_sides(store.tensor)
        if set(sides) != whole or len(set(sides)) != len(sides):
            raise MatchFailure("a result is not a whole tile of the product")
    for _ in postorder([store.tensor for store in pattern.task.stores], made_of):
        pass
