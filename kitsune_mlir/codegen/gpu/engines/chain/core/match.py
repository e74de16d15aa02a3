"""Reading the body of a task as a chain: products whose rows are the tile's rows, with row-local work between them.

Every tensor of the body lies along the rows of the tile, its columns, or both: a computed tensor of rank 2 is rows x columns,
one of rank 1 has a value a row. A product sums over *ranges* of columns: what a concatenation puts side by side stays where it
is, and each range is read from its own place.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step, check_body, is_constant, read_operands
from kitsune_mlir.codegen.gpu.engines.chain.core.body import SUM, Chain, Layer, Scatter, ranges_of
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, plain_loops, shape_of
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.iteration import is_reshape, is_trivial_reshape
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of, constant_fill, is_contraction, is_projected_product, yield_of
from kitsune_mlir.dialects.sizes import HALF_TYPES, wide_dims
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ['NEUTRAL', 'combination', 'match_chain', 'zero']  # fmt: skip


NEUTRAL = {
    "arith.addf": 0.0,
    "arith.mulf": 1.0,
    **dict.fromkeys(("arith.maximumf", "arith.maxnumf"), float("-inf")),
    **dict.fromkeys(("arith.minimumf", "arith.minnumf"), float("inf")),
}
"""What changes nothing, for each operation that may combine the elements of a row."""

_DTYPES = HALF_TYPES


def zero(value: ir.Value) -> bool:
    """Whether a tensor is filled with 0."""
    while not isinstance(value.owner, ir.Block) and is_reshape(value.owner.operation):
        value = value.owner.operands[0]
    maker = None if isinstance(value.owner, ir.Block) else constant_fill(value.owner.operation)
    return maker is not None and ir.FloatAttr(maker.attributes["value"]).value == 0


def match_chain(task: TaskView) -> Chain:
    """Read the body of a task.

    Raises:
        MatchFailure: it is no chain of products of bf16 or f16.
    """
    work = [op for op in task.work() if op.name != "tensor.empty" and not (len(op.results) and is_constant(op.results[0]))]
    products = [op for op in work if is_contraction(op)]
    if not products:
        raise MatchFailure("no product")
    rows = {shape_of(op.results[0])[0] for op in products if shape_of(op.results[0])}
    if len(rows) != 1:
        raise MatchFailure("the products' rows differ")
    chain = Chain(task, rows.pop(), (), (), {}, {})
    layers, scatters = [], []
    for op in work:
        if is_contraction(op):
            layers.append(_layer(chain, op))
        elif op.name == "kitsune.atomic_scatter":
            scatters.append(_scatter(chain, op))
        else:
            step = _step(chain, op)
            chain.steps.update(dict.fromkeys(op.results, step))
    chain.layers, chain.scatters = tuple(layers), tuple(scatters)
    _check(chain)
    return chain


def _loops(chain: Chain, op: ir.Operation) -> tuple[str, ...]:
    """The side of each loop of a generic: the result's dimensions are rows and columns, sums run along columns."""
    out = affine_maps(op)[len(op.operands) - len(op.results)]
    shape = shape_of(op.results[0])
    if len(shape) not in (1, 2) or shape[0] != chain.rows:
        raise MatchFailure(f"'{op.name}' makes a tensor of shape {shape}, not of {chain.rows} rows")
    sides = [COL] * len(iterator_kinds(op))
    for expression, side in zip(out.results, (ROW, COL), strict=False):
        if not isinstance(expression, ir.AffineDimExpr):
            raise MatchFailure("a result is not indexed by plain loops")
        sides[expression.position] = side
    return tuple(sides)


def _layer(chain: Chain, op: ir.Operation) -> Layer:
    if not is_projected_product(op):
        raise MatchFailure("a convolution")
    types = [str(ir.ShapedType(operand.type).element_type) for operand in op.operands]
    if types[0] != types[1] or types[0] not in _DTYPES or types[2] != "f32":
        raise MatchFailure(f"a product of {types[0]} and {types[1]} into {types[2]}; bf16 or f16 into f32 are done")
    if [inner.name for inner in body_of(op)][-2:] != ["arith.mulf", "arith.addf"]:
        raise MatchFailure("the product's body is not a multiplication and an addition in f32")
    loops = chain.sides[op] = _loops(chain, op)
    kinds = iterator_kinds(op)
    if kinds.count("reduction") != 1 or kinds.count("parallel") != len(shape_of(op.results[0])):
        raise MatchFailure("a product over several dimensions")
    names = [SUM if kind == "reduction" else side for kind, side in zip(kinds, loops, strict=True)]
    walked = [[names[loop] for loop in plain_loops(map_) if loop is not None] for map_ in affine_maps(op)]
    a, b = (0, 1) if loops.index(ROW) in contraction_dims(op).m else (1, 0)
    if walked[a] != [ROW, SUM] or ROW in walked[b]:
        raise MatchFailure("a product whose rows are not the tile's")
    weight = chain.task.load_of(op.operands[b])
    if weight is None:
        raise MatchFailure("both factors of a product are computed")
    if not weight.given or not all(isinstance(start, int) for start in weight.offsets):
        raise MatchFailure("weights that are computed, or differ from tile to tile")
    shape = shape_of(op.operands[b])
    sides = tuple(walked[b][dim] for dim in wide_dims(shape))
    result = shape_of(op.results[0])
    return Layer(op, ranges_of(chain, op.operands[a]), weight, sides, result[1] if len(result) == 2 else 1, types[0])


def _scatter(chain: Chain, op: ir.Operation) -> Scatter:
    updates, indices, _, destination = list(op.operands)
    load = chain.task.load_of(indices)
    buffer = next((buffer for buffer in chain.task.buffers if buffer.value == destination), None)
    if load is None or buffer is None or ir.StringAttr(op.attributes["kind"]).value != "addf":
        raise MatchFailure("rows are added at computed places, or as integers")
    if len(shape_of(updates)) != 2 or len(buffer.shape) != 2:
        raise MatchFailure("what is added are no rows of numbers")
    return Scatter(op, updates, load, buffer)


def _step(chain: Chain, op: ir.Operation) -> Step:
    if is_reshape(op):
        source, result = shape_of(op.operands[0]), shape_of(op.results[0])
        if not is_trivial_reshape(op) or not 1 <= len(result) <= 2 or len(source) > 2:
            raise MatchFailure(f"'{op.name}' splits or merges dimensions")
        return Step(op, "alias", (0,))
    if op.name == "tensor.concat":
        if ir.IntegerAttr(op.attributes["dim"]).value != 1 or len(shape_of(op.results[0])) != 2:
            raise MatchFailure("a concatenation that is not of columns")
        return Step(op, "concat", tuple(range(len(op.operands))))
    if op.name == "linalg.fill":
        return Step(op, "map", (0,))
    if op.name != "linalg.generic":
        raise MatchFailure(f"'{op.name}' is no step of a chain")
    chain.sides[op] = _loops(chain, op)
    check_body(op, lambda table: chain.task.load_of(table) is not None)
    numbers = read_operands(op)
    for number in numbers:
        _check_operand(chain, op, number)
    if "reduction" not in iterator_kinds(op):
        return Step(op, "map", numbers)
    if len(op.results) != 1 or len(shape_of(op.results[0])) != 1:
        raise MatchFailure("a reduction that does not run over the columns")
    combination(op)
    return Step(op, "reduce", numbers)


def combination(op: ir.Operation) -> tuple[ir.Operation, ir.Value]:
    """The operation that combines a reduction's result with the next element, and that element.

    Raises:
        MatchFailure: it is none that has a neutral element.
    """
    combine = yield_of(op).operands[0].owner
    out = op.regions[0].blocks[0].arguments[len(op.operands) - 1]
    if isinstance(combine, ir.Block) or combine.name not in NEUTRAL or out not in list(combine.operands):
        raise MatchFailure("a reduction that is no sum, product, maximum or minimum")
    if len(list(out.uses)) != 1:
        raise MatchFailure("a reduction that reads its running result twice")
    return combine.operation, next(operand for operand in combine.operands if operand != out)


def _check_operand(chain: Chain, op: ir.Operation, number: int) -> None:
    """Computed operands are walked as they lie; loaded ones may be walked along rows and columns in any way."""
    operand = op.operands[number]
    sides = chain.operand_sides(op, number)
    if len(set(sides)) != len(sides):
        raise MatchFailure("an operand is walked along its diagonal")
    if isinstance(operand.type, ir.ShapedType) and chain.task.load_of(operand) is None and not is_constant(operand):
        wanted = [side for side, extent in zip((ROW, COL), shape_of(operand), strict=False) if extent != 1]
        if list(sides) != wanted:
            raise MatchFailure("a computed tensor is transposed")


def _check(chain: Chain) -> None:
    """Everything that a body reads is loaded, constant or computed, and the results are whole tiles."""
    made = {layer.result for layer in chain.layers} | set(chain.steps)

    def known(values: Sequence[ir.Value]) -> bool:
        return all(
            not isinstance(v.type, ir.ShapedType) or v in made or chain.task.load_of(v) is not None or is_constant(v)
            for v in values
        )

    for step in chain.steps.values():
        if not known([step.op.operands[number] for number in step.operands]):
            raise MatchFailure(f"an operand of '{step.op.name}' is neither loaded nor computed")
    for layer in chain.layers:
        if not known([part.value for part in layer.ranges]):
            raise MatchFailure("a factor of a product is neither loaded nor computed")
    if not chain.task.stores and not chain.scatters:
        raise MatchFailure("the task stores nothing")
    if not known([scatter.updates for scatter in chain.scatters]):
        raise MatchFailure("rows that are added are neither loaded nor computed")
    for store in chain.task.stores:
        step = chain.steps.get(store.tensor)
        if store.tensor not in made or (step is not None and step.kind == "concat"):
            raise MatchFailure("a result is copied or concatenated, not computed")
        if shape_of(store.tensor)[0] != chain.rows:
            raise MatchFailure("a result has other rows than the products")
