"""Masks and biases of scores: their trees, at one row and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.operation import create
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, i64, minimum
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.engines.attention.match import Masked
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.factors import Factor
from kitsune_mlir.dialects.scalar_tree import Tree, children

__all__ = ["Masks", "rows_of_masks"]


def rows_of_masks(row: Value, count: int, covered: int, drops: bool) -> list[Value]:
    """A thread's two rows of a tile, `row` and 8 below, as masks see them: among the tile's `count` rows.

    Dropout draws numbers for both at once. For LLVM to see that, it must know bits of the rows, which a minimum loses.

    Args:
        covered: rows that threads have, a power of 2.
    """
    if drops and count >= covered:
        row = row & (covered - 1)
        return [row, row + 8]
    return [minimum(row + 8 * half, count - 1) for half in range(2)]


class Masks:
    """Evaluates trees for one thread.

    Args:
        sides, loads: those of the tile's pattern.
        tile: the tile.
        rows: of each of the thread's two rows the indices along the tile's row dimensions.
    """

    def __init__(
        self, sides: Mapping[Factor, str], loads: Mapping[tuple, Masked], tile: TileContext, rows: Sequence[Sequence[Value]]
    ):
        self.sides, self.loads, self.tile, self.rows = sides, loads, tile, rows
        self.known: list[dict[int, Value]] = [{} for _ in rows]

    def prepare(self, tree: Tree) -> None:
        """Evaluate here what of a tree is the same for all keys."""
        for half, known in enumerate(self.known):
            keyed: set[int] = set()
            for node in postorder([tree], children, id):
                if self._is_keyed(node) or any(id(child) in keyed for child in children(node)):
                    keyed.add(id(node))
                else:
                    known[id(node)] = self._scalar(node, [known[id(child)] for child in children(node)], half, i32(0))

    def _is_keyed(self, node: Tree) -> bool:
        if node[0] == "index":
            return any(self.sides[factor] == "key" for factor in node[1])
        return node[0] == "load" and "key" in self.loads[node].sides

    def value(self, tree: Tree, half: int, key: Value) -> Value:
        """A scalar of a mask or bias at one row and key."""
        made = dict(self.known[half])
        for node in postorder([tree], lambda node: () if id(node) in made else children(node), id):
            if id(node) not in made:
                made[id(node)] = self._scalar(node, [made[id(child)] for child in children(node)], half, key)
        return made[id(tree)]

    def _scalar(self, node: Tree, operands: list[Value], half: int, key: Value) -> Value:
        kind = node[0]
        if kind == "const":
            return constant(bool(node[1]) if node[2] == "i1" else node[1], "i64" if node[2] == "index" else node[2])
        if kind == "outside":
            return cast(self.tile.index(node[1]), "i64") if _is_index(node[1].type) else self.tile.index(node[1])
        if kind == "index":
            total = i32(0)
            for factor in node[1]:
                total = total * factor.size + self._position(self.sides[factor], half, key)
            return cast(total, "i64")
        if kind == "load":
            return self._load(self.loads[node], half, key)
        type_ = "i64" if node[3] == "index" else node[3]
        if node[1] in ("arith.index_cast", "arith.index_castui"):
            return cast(operands[0], type_)
        attributes = {"predicate": ir.Attribute.parse(node[2])} if node[2] else {}
        return create(node[1], operands, [type_], attributes)[0]

    def _position(self, side: str, half: int, key: Value) -> Value:
        return key if side == "key" else self.rows[half][int(side.removeprefix("row"))]

    def _load(self, masked: Masked, half: int, key: Value) -> Value:
        window = masked.window
        place = window.start(self.tile)
        for side in masked.sides:
            place = offset(place, i64(self._position(side, half, key)) * (window.stride(side) * window.bytes))
        return load_elements(place, window.dtype, 1, constant=window.constant)[0]


def _is_index(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IndexType)
