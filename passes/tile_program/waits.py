"""What the tiles of a stage wait for, without the waits that others of the same stage imply.

A wait costs a round trip to L2 before a tile may start, a post one after it has finished. If a stage waits for all of Q, and
Q's tiles have waited for all of P, then P is complete and visible: release and acquire add up along a chain of blocks (PTX
ISA, memory consistency model, causality order).
"""

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import INTO, UPDATES
from kitsune_mlir.dialects.edges import Edge, edge_of, stage_space
from kitsune_mlir.dialects.stage_graph import inputs_of

__all__ = ["edges_of", "needed_edges", "stages_by_name"]


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


def needed_edges(stages: Sequence[ir.Operation]) -> dict[int, list[Edge]]:
    """The edges of each stage (by its hash) without those that its other edges imply; `stages`: producers first.

    Scatter-adds are several tasks that wait for different things: they keep their edges and imply nothing.
    """
    by_name = stages_by_name(stages)
    complete: dict[int, set[int]] = {}  # for each stage those that are complete before any of its tiles starts
    needed: dict[int, list[Edge]] = {}
    for stage in stages:
        edges = edges_of(stage, by_name)
        if INTO in stage.attributes or UPDATES in stage.attributes:
            needed[hash(stage)], complete[hash(stage)] = edges, set()
            continue
        behind: set[int] = set().union(*(complete[hash(edge.producer)] for edge in edges))
        needed[hash(stage)] = [edge for edge in edges if hash(edge.producer) not in behind]
        complete[hash(stage)] = behind | {hash(edge.producer) for edge in edges if edge.policy == "all"}
    return needed
