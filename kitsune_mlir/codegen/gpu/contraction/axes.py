"""The sides of a product's tile: which dimension of each tensor of a task walks along its rows, its columns, or its sum."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import wide_dims
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["COL", "ROW", "Sides"]

ROW, COL = "row", "col"


class Sides:
    """Unites dimensions of tensors with loops (union-find), and names the classes of the product's tile."""

    def __init__(self, task: TaskView):
        self.loaded = {load.tensor for load in task.loads}
        self.parents: dict[Hashable, Hashable] = {}
        self.names: dict[Hashable, str] = {}

    def find(self, node: Hashable) -> Hashable:
        while (parent := self.parents.get(node, node)) != node:
            node = parent
        return node

    def unite(self, a: Hashable, b: Hashable) -> None:
        self.parents[self.find(a)] = self.find(b)

    def operand(self, op: ir.Operation, number: int) -> list[Hashable]:
        """The nodes of an operand's wide dimensions. What is loaded may be walked differently by each of its users."""
        value = op.operands[number]
        count = len(wide_dims(shape_of(value))) if isinstance(value.type, ir.ShapedType) else 0
        if value in self.loaded:
            return [("use", op, number, dim) for dim in range(count)]
        return [("value", value, dim) for dim in range(count)]

    def generic(self, op: ir.Operation, numbers: Sequence[int]) -> None:
        """Unite the loops of a generic with the dimensions of its operands `numbers` and of its results.

        Raises:
            Mismatch: an operand is indexed by more than plain loops.
        """
        maps = affine_maps(op)
        inputs = len(op.operands) - len(op.results)
        places = [(self.operand(op, number), op.operands[number], maps[number]) for number in numbers]
        for number, result in enumerate(op.results):
            nodes: list[Hashable] = [("value", result, dim) for dim in range(len(wide_dims(shape_of(result))))]
            places.append((nodes, result, maps[inputs + number]))
        for nodes, value, map_ in places:
            if not isinstance(value.type, ir.ShapedType):
                continue
            for node, dim in zip(nodes, wide_dims(shape_of(value)), strict=True):
                expression = map_.results[dim]
                if not isinstance(expression, ir.AffineDimExpr):
                    raise MatchFailure(f"an operand is indexed by {expression}, which is no plain loop")
                self.unite(node, ("loop", op, expression.position))
