"""What the tiles of a stage wait for, without the waits that others of the same stage imply.

A wait costs a round trip to L2 before a tile may start, a post one after it has finished. If a stage waits for all of Q, and
Q's tiles together have waited for all of P, then P is complete and visible: release and acquire add up along a chain of blocks
(PTX ISA, memory consistency model, causality order).
"""

import functools
import operator
from collections.abc import Container, Iterable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import INTO, UPDATES
from kitsune_mlir.dialects.edges import Edge, covers, edge_of, stage_space
from kitsune_mlir.dialects.stage_graph import inputs_of

__all__ = ["complete_before", "edges_of", "needed_edges", "stages_by_name"]


def stages_by_name(stages: Sequence[ir.Operation]) -> dict[str, ir.Operation]:
    """Stages by their symbols."""
    return {ir.StringAttr(stage.attributes["sym_name"]).value: stage for stage in stages}


def edges_of(stage: ir.Operation, by_name: Mapping[str, ir.Operation], inputs: Sequence[ir.Value] | None = None) -> list[Edge]:
    """Every edge over which a stage waits: for the producers of its inputs (or of `inputs` only), and for the stages in its
    attribute `after`, whose memory it overwrites. Who waits for all of a producer does not wait for parts of it as well."""
    space = stage_space(stage)
    edges: dict[tuple, Edge] = {}
    for value in inputs_of(stage) if inputs is None else inputs:
        edge = edge_of(stage, space, value)
        if edge is not None:
            edges[hash(edge.producer), edge.policy == "all", edge.dim, edge.scale, edge.extent, edge.named] = edge
    for name in ir.ArrayAttr(stage.attributes["after"]) if "after" in stage.attributes else ():
        producer = by_name[ir.StringAttr(name).value]
        edges.setdefault((hash(producer), True, -1, 1, 1, ()), Edge(producer, "all"))
    whole = {key[0] for key in edges if key[1]}
    return [edge for edge in edges.values() if edge.policy == "all" or hash(edge.producer) not in whole]


def needed_edges(stages: Sequence[ir.Operation], rings: Container[int] = ()) -> dict[int, list[Edge]]:
    """The edges of each stage (by its hash) without those that its other edges imply; `stages`: producers first.

    Scatter-adds are several tasks that wait for different things: they keep their edges.

    Args:
        rings: the stages (by their hashes) whose results are handed over in rings, not by waits and posts.
    """
    number = {hash(stage): n for n, stage in enumerate(stages)}
    by_name, order, needed = stages_by_name(stages), _Order(number, rings), dict[int, list[Edge]]()
    for stage in stages:
        edges = edges_of(stage, by_name)
        implied = order.add(stage, edges)
        needed[hash(stage)] = [edge for edge in edges if not implied >> number[hash(edge.producer)] & 1]
    return needed


def complete_before(stages: Sequence[ir.Operation]) -> list[int]:
    """For each stage, as bits, the numbers of those that are complete before any of its tiles starts, because of what it reads;
    nothing goes through rings."""
    order = _Order({hash(stage): n for n, stage in enumerate(stages)})
    for stage in stages:
        found = (edge_of(stage, stage_space(stage), value) for value in inputs_of(stage))
        order.add(stage, [edge for edge in found if edge is not None])
    return order.complete


class _Order:
    """Which stages are complete when others start and end, as bits.

    Args:
        number: of each stage, by its hash.
        rings: as of `needed_edges`.

    Attributes:
        complete: for each stage those before any of its tiles starts; none for scatter-adds, of which some tasks wait for less.
    """

    def __init__(self, number: Mapping[int, int], rings: Container[int] = ()):
        self.complete, self._number, self._rings = list[int](), number, rings
        self._ended: list[int] = []  # those when all tiles of the stage have ended, itself among them

    def add(self, stage: ir.Operation, edges: Sequence[Edge]) -> int:
        """Take the next stage with all that its tiles wait for; returns the stages that need no wait."""
        numbers = [self._number[hash(edge.producer)] for edge in edges]
        whole = [n for n, edge in zip(numbers, edges, strict=True) if edge.policy == "all"]
        mine, ended = 1 << self._number[hash(stage)], _union(self._ended[n] for n in whole)
        if INTO in stage.attributes or UPDATES in stage.attributes:
            self.complete.append(0)
            self._ended.append(mine | (ended if UPDATES in stage.attributes else 0))
            return 0
        implied = _union(self.complete[n] for n in numbers) | _union(self._ended[n] & ~(1 << n) for n in whole)
        self.complete.append(implied | ended)
        space = stage_space(stage)
        parts = [
            n for n, edge in zip(numbers, edges, strict=True) if hash(edge.producer) not in self._rings and covers(edge, space)
        ]
        self._ended.append(mine | implied | ended | _union(self._ended[n] for n in parts))
        return implied


def _union(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)
