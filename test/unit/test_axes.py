"""dialects/axes.py: dimensions that walk together, with operands read in odd ways."""

from __future__ import annotations

import itertools
import random

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects.axes import Axes, Node


def map_of(context: ir.Context, text: str) -> ir.AffineMap:
    return ir.AffineMapAttr(ir.Attribute.parse(f"affine_map<{text}>", context)).value


def test_a_node_alone_stands_for_itself():
    axes = Axes()
    assert axes.find(("x", 0)) == ("x", 0)
    assert axes.classes() == {("x", 0): [("x", 0)]}


@pytest.mark.parametrize("seed", range(20))
def test_classes_are_what_is_connected(seed):
    """Against the closure of the pairs, in any order of uniting and asking."""
    rng = random.Random(seed)
    nodes: list[Node] = [(name, dim) for name in "abcdef" for dim in range(3)]
    axes = Axes()
    connected: dict[Node, set[Node]] = {node: {node} for node in nodes}
    for node in nodes:
        axes.find(node)
    for _ in range(rng.randrange(1, 18)):
        a, b = rng.choice(nodes), rng.choice(nodes)
        axes.unite(a, b)
        together = connected[a] | connected[b]
        connected.update(dict.fromkeys(together, together))
        axes.find(rng.choice(nodes))
    for a, b in itertools.combinations(nodes, 2):
        assert (axes.find(a) == axes.find(b)) == (b in connected[a])
    classes = axes.classes()
    assert all(root in members and set(members) == connected[root] for root, members in classes.items())
    assert sorted(itertools.chain(*classes.values()), key=str) == nodes


def test_uniting_keeps_what_stands_for_the_second():
    axes = Axes()
    axes.unite(("x", 0), ("y", 0))
    axes.unite(("z", 0), ("x", 0))
    assert {axes.find((name, 0)) for name in "xyz"} == {("y", 0)}
    axes.unite(("y", 0), ("z", 0))  # one already: no circle
    assert axes.find(("x", 0)) == ("y", 0)


def test_transposed_operands(context):
    axes = Axes()
    axes.walk("op", "x", map_of(context, "(d0, d1) -> (d0, d1)"))
    axes.walk("op", "y", map_of(context, "(d0, d1) -> (d1, d0)"))
    assert axes.find(("x", 0)) == axes.find(("y", 1)) != axes.find(("x", 1)) == axes.find(("y", 0))


def test_one_tensor_read_transposed_and_not_has_one_axis(context):
    axes = Axes()
    axes.walk("op", "x", map_of(context, "(d0, d1) -> (d0, d1)"))
    axes.walk("op", "x", map_of(context, "(d0, d1) -> (d1, d0)"))
    assert len(axes.classes()) == 1
    apart = Axes()  # as two readings of it
    apart.walk("op", ("op", 0), map_of(context, "(d0, d1) -> (d0, d1)"))
    apart.walk("op", ("op", 1), map_of(context, "(d0, d1) -> (d1, d0)"))
    assert len(apart.classes()) == 2


def test_batch_and_product(context):
    axes = Axes()
    for tensor, dims in (("a", "d0, d1, d3"), ("b", "d0, d2, d3"), ("c", "d0, d1, d2")):
        axes.walk("product", tensor, map_of(context, f"(d0, d1, d2, d3) -> ({dims})"))
    axes.walk("after", "c", map_of(context, "(d0, d1, d2) -> (d0, d1, d2)"))
    assert axes.find(("after", 0)) == axes.find(("a", 0)) == axes.find(("b", 0))
    assert axes.find(("after", 1)) == axes.find(("a", 1))
    assert axes.find(("after", 2)) == axes.find(("b", 1))
    assert axes.find(("a", 2)) == axes.find(("b", 2)) != axes.find(("after", 2))
    assert len(axes.classes()) == 4


def test_diagonals_windows_and_constants(context):
    axes = Axes()
    axes.walk("trace", "x", map_of(context, "(d0) -> (d0, d0)"))
    assert axes.find(("x", 0)) == axes.find(("x", 1))
    before = len(axes.classes())
    axes.walk("conv", "image", map_of(context, "(d0, d1, d2) -> (d0 + d1, d2 * 2, 0)"))
    assert len(axes.classes()) == before  # no dimension of it is walked by a loop alone
    axes.walk("conv", "weight", map_of(context, "(d0, d1, d2) -> (d1)"))
    assert axes.find(("weight", 0)) == axes.find(("conv", 1)) != axes.find(("image", 0))
