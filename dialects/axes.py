"""Which dimensions walk together: loops of operations and dimensions of tensors, in classes (union-find)."""

from __future__ import annotations

from collections.abc import Hashable

from torch_mlir import ir

from .access import plain_loops

__all__ = ["Axes", "Node"]

Node = tuple[Hashable, int]
"""(operation, loop), or (tensor, dimension); any other hashable may stand for an operation or a tensor."""


class Axes:
    """Classes of nodes, each of which is one axis of what is computed."""

    def __init__(self) -> None:
        self._parents: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        """The node that stands for the class of a node, which may be a new one."""
        parents = self._parents
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def unite(self, a: Node, b: Node) -> None:
        """Make the classes of two nodes one; what stood for that of `b` stands for it."""
        self._parents[self.find(a)] = self.find(b)

    def walk(self, op: Hashable, tensor: Hashable, map_: ir.AffineMap) -> None:
        """Unite each dimension of a tensor with the loop of `op` that walks it alone, if one does."""
        for dim, loop in enumerate(plain_loops(map_)):
            if loop is not None:
                self.unite((op, loop), (tensor, dim))

    def classes(self) -> dict[Node, list[Node]]:
        """All nodes by what stands for their class, in the order in which they were met."""
        found: dict[Node, list[Node]] = {}
        for node in list(self._parents):
            found.setdefault(self.find(node), []).append(node)
        return found
