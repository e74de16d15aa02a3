"""The sides of a product's tile: which dimension of each tensor of a task walks along its rows, its columns, or its sum."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch_mlir import ir

from kitsune_mlir.dialects.access import affine_maps, plain_loops, shape_of
from kitsune_mlir.dialects.axes import Axes, Node
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.sizes import wide_dims
from kitsune_mlir.dialects.tile_records import TaskView

__all__ = ["COL", "ROW", "Sides"]

ROW, COL = "row", "col"


class Sides(Axes):
    """The axes of a task's tensors; `names` says by what stands for an axis which of the product's tile it is."""

    def __init__(self, task: TaskView):
        super().__init__()
        self.loaded = {load.tensor for load in task.loads}
        self.names: dict[Node, Any] = {}

    def name(self, node: Node) -> Any:
        """Which axis of the tile a dimension lies along; "" for none."""
        return self.names.get(self.find(node), "")

    def call(self, node: Node, name: Hashable) -> None:
        """Give the axis that a dimension lies along a name.

        Raises:
            MatchFailure: it has another one.
        """
        if self.names.setdefault(self.find(node), name) != name:
            raise MatchFailure("one tensor is walked along two sides of the tile")

    def operand(self, op: ir.Operation, number: int) -> list[Node]:
        """The nodes of an operand's wide dimensions. What is loaded may be walked differently by each of its users."""
        value = op.operands[number]
        return self.dims((op, number) if value in self.loaded else value, value)

    def dims(self, tensor: Hashable, value: ir.Value) -> list[Node]:
        """The nodes of a value's wide dimensions, with `tensor` standing for it."""
        return [(tensor, dim) for dim in wide_dims(shape_of(value))] if isinstance(value.type, ir.ShapedType) else []

    def generic(self, op: ir.Operation, numbers: Sequence[int]) -> None:
        """Unite the loops of a generic with the dimensions of its operands `numbers` and of its results.

        Raises:
            MatchFailure: an operand is indexed by more than plain loops.
        """
        maps = affine_maps(op)
        inputs = len(op.operands) - len(op.results)
        found = [(self.operand(op, number), maps[number]) for number in numbers]
        found += [(self.dims(result, result), maps[inputs + number]) for number, result in enumerate(op.results)]
        for nodes, map_ in found:
            loops = plain_loops(map_)
            for node in nodes:
                if (loop := loops[node[1]]) is None:
                    raise MatchFailure(f"an operand is indexed by {map_.results[node[1]]}, which is no plain loop")
                self.unite(node, (op, loop))
