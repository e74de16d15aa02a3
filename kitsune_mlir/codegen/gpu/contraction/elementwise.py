"""Element-wise work around products: the steps that a task's body consists of, and along what each of their operands lies.

Every step names its operands by their SSA values; what comes from memory is the value of a `tile_records.Load`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.axes import Sides
from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.iteration import is_reshape, is_trivial_reshape
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import body_of
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["Body", "Step", "check_body", "check_outputs", "is_constant", "read_operands", "read_step"]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """An operation that is no product.

    Attributes:
        op: the operation.
        kind: "map" (an element-wise `linalg.generic`), "fill", "alias" (a reshape of unit dimensions), "concat", or "reduce".
        operands: numbers of the operands that it reads.
    """

    op: ir.Operation
    kind: str
    operands: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Body:
    """A task's body: its steps by the value that each makes, and the axes that its tensors lie along."""

    task: TaskView
    steps: dict[ir.Value, Step]
    sides: Sides

    def operand_sides(self, op: ir.Operation, number: int) -> tuple[Any, ...]:
        """The side of each wide dimension of an operand of a step."""
        return tuple(map(self.sides.name, self.sides.operand(op, number)))

    def value_sides(self, value: ir.Value) -> tuple[Any, ...]:
        """The side of each wide dimension of a computed tensor."""
        return tuple(map(self.sides.name, self.sides.dims(value, value)))

    def loop_side(self, op: ir.Operation, loop: int) -> Any:
        """The side that a loop of a step walks; "" for a loop of one iteration."""
        return self.sides.name((op, loop))


def is_constant(value: ir.Value) -> bool:
    """Whether a value is a constant: a scalar, or a tensor of one number."""
    if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
        return False
    attribute = value.owner.attributes["value"]
    return not isinstance(value.type, ir.ShapedType) or (
        isinstance(attribute, ir.DenseElementsAttr) and ir.DenseElementsAttr(attribute).is_splat
    )


def read_operands(op: ir.Operation) -> tuple[int, ...]:
    """Numbers of the operands that a linalg.generic reads: an init only where the body uses its argument."""
    inputs, arguments = len(op.operands) - len(op.results), op.regions[0].blocks[0].arguments
    return tuple(n for n in range(len(op.operands)) if n < inputs or len(list(arguments[n].uses)))


def check_body(op: ir.Operation, is_table: Callable[[ir.Value], bool] | None = None, positions: bool = True) -> None:
    """A body may hold arithmetic on its arguments, on constants and on index arithmetic from outside.

    Args:
        is_table: whether elements of a tensor can be read by index; None: of none.
        positions: the body may ask for its position along a loop.

    Raises:
        MatchFailure: it holds something else.
    """
    allowed = ("arith.", "math.", "linalg.index") if positions else ("arith.", "math.")
    block = op.regions[0].blocks[0]
    for inner in body_of(op):
        gathers = inner.name == "tensor.extract" and is_table is not None and is_table(inner.operands[0])
        if inner.regions or not (gathers or inner.name.startswith(allowed)):
            raise MatchFailure(f"an element-wise body holds '{inner.name}'")
        for operand in list(inner.operands)[gathers:]:
            owner = operand.owner
            outside = owner != block if isinstance(owner, ir.Block) else owner.operation.block != block
            if outside and not is_constant(operand) and not isinstance(operand.type, ir.IndexType):
                raise MatchFailure(f"an element-wise body uses a {operand.type} that is computed outside of it")


def read_step(
    op: ir.Operation, sides: Sides, is_table: Callable[[ir.Value], bool] | None = None, positions: bool = True
) -> Step | None:
    """The step that `op` is, with its loops united; None for anything else.

    Args:
        is_table, positions: as for `check_body`.

    Raises:
        MatchFailure: a reshape of wide dimensions, or a body that cannot be emitted element by element.
    """
    if is_reshape(op):
        if not is_trivial_reshape(op):
            raise MatchFailure(f"'{op.name}' splits or merges dimensions of the tile")
        for mine, node in zip(sides.dims(op.results[0], op.results[0]), sides.operand(op, 0), strict=True):
            sides.unite(mine, node)
        return Step(op, "alias", (0,))
    if op.name == "linalg.fill":
        return Step(op, "fill", (0,))
    if op.name == "tensor.concat":
        for number in range(len(op.operands)):
            for node in sides.operand(op, number):
                sides.unite(node, (op.results[0], node[1]))
        return Step(op, "concat", tuple(range(len(op.operands))))
    if op.name != "linalg.generic" or any(kind != "parallel" for kind in iterator_kinds(op)):
        return None
    check_body(op, is_table, positions)
    numbers = read_operands(op)
    sides.generic(op, numbers)
    return Step(op, "map", numbers)


def check_outputs(
    body: Body, inits: Mapping[ir.Value, ir.Value], whole: Collection[Any], beside: Collection[ir.Operation] = ()
) -> None:
    """Everything that is stored must be a whole tile, and be made of products and of steps along the tile's sides.

    Args:
        inits: what each product's sums start from, by its result.
        whole: the sides of the tile that are longer than 1.
        beside: what makes results that are no tile, in a way of the engine's own.

    Raises:
        MatchFailure: it is not.
    """
    apart = {result for op in beside for result in op.results}
    stored = [store.tensor for store in body.task.stores if store.tensor not in apart]

    def made_of(value: ir.Value) -> list[ir.Value]:
        if not isinstance(value.type, ir.ShapedType):
            return []
        step = body.steps.get(value)
        start = [inits[value]] if value in inits else []
        if step is None and not start and body.task.load_of(value) is None and not is_constant(value):
            raise MatchFailure("an element-wise operand is neither loaded nor computed")
        if step is None:
            return start
        if step.kind == "concat":
            raise MatchFailure("element-wise work on a concatenation")
        for number in step.operands:
            if not set(body.operand_sides(step.op, number)) <= set(whole):
                raise MatchFailure("an element-wise operand does not lie along the sides of the product's tile")
        return [*start, *(step.op.operands[number] for number in step.operands)]

    if not stored:
        raise MatchFailure("the task stores nothing")
    for tensor in stored:
        if body.task.load_of(tensor) is not None:
            raise MatchFailure("a tensor is copied from memory to memory")
        sides = body.value_sides(tensor)
        if set(sides) != set(whole) or len(set(sides)) != len(sides):
            raise MatchFailure("a result is not a whole tile of the product")
    for _ in postorder(stored, made_of):
        pass
